# Before deploy: it only adds.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('cells', '0003_last_known'),
    ]

    operations = [
        migrations.CreateModel(
            name='CellOutage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('seen_by', models.CharField(max_length=255)),
                ('reason', models.CharField(max_length=255)),
                ('began_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(null=True)),
                ('cell', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='outages', to='cells.cell')),
            ],
            options={
                'indexes': [models.Index(fields=['cell', '-began_at'], name='outages_of_cell')],
            },
        ),
        migrations.CreateModel(
            name='LateEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('server_id', models.CharField(max_length=36)),
                ('name', models.CharField(max_length=64)),
                ('tag', models.CharField(blank=True, default='', max_length=255)),
                ('status', models.CharField(max_length=16)),
                ('request_id', models.CharField(max_length=64)),
                ('user_id', models.CharField(max_length=64)),
                ('project_id', models.CharField(max_length=64)),
                ('received_at', models.DateTimeField()),
                ('cell', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='late_events', to='cells.cell')),
            ],
            options={
                'indexes': [models.Index(fields=['cell', 'id'], name='late_events_of_cell')],
            },
        ),
    ]
