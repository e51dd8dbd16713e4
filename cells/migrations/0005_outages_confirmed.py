# Before deploy: it only adds.

import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('cells', '0004_external_events'),
    ]

    operations = [
        migrations.AddField(
            model_name='celloutage',
            name='confirmed_at',
            field=models.DateTimeField(default=django.utils.timezone.now),
        ),
    ]
