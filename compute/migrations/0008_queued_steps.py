# Before deploy: it only adds an index.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('compute', '0007_claim_tokens'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='step',
            index=models.Index(condition=models.Q(('state', 'queued')), fields=['queued_at'], name='queued_steps'),
        ),
    ]
