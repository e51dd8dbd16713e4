# Before deploy: it only adds an index.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('compute', '0008_queued_steps'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='instanceaction',
            index=models.Index(condition=models.Q(('key', 'HearEvent')), fields=['key', 'finished_at'], name='heard_events'),
        ),
    ]
