# Before deploy: it only adds.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('cells', '0002_late_deletes'),
    ]

    operations = [
        migrations.AddField(
            model_name='cell',
            name='swept_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.CreateModel(
            name='LastKnown',
            fields=[
                ('server_id', models.CharField(max_length=36, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=255)),
                ('vm_state', models.CharField(max_length=24)),
                ('task_state', models.CharField(blank=True, default='', max_length=32)),
                ('power_state', models.PositiveSmallIntegerField(default=0)),
                ('host', models.CharField(blank=True, default='', max_length=255)),
                ('flavor', models.CharField(blank=True, default='', max_length=255)),
                ('addresses', models.JSONField(default=dict)),
                ('changed_at', models.DateTimeField()),
                ('cell', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='last_known', to='cells.cell')),
            ],
            options={
                'indexes': [models.Index(fields=['cell', 'changed_at'], name='last_known_by_change')],
            },
        ),
    ]
