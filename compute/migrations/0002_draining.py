# Before deploy: it only adds, and what the version before writes has the database's defaults.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('compute', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='instanceaction',
            name='fault',
            field=models.JSONField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='drain_asked_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='drain_by',
            field=models.CharField(blank=True, db_default='', default='', max_length=255),
        ),
        migrations.AddField(
            model_name='service',
            name='drain_deadline',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='drain_reason',
            field=models.CharField(blank=True, db_default='', default='', max_length=255),
        ),
        migrations.AddField(
            model_name='service',
            name='drain_then_exit',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='service',
            name='drain_wanted',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='service',
            name='drained_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='draining_since',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='ended_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='in_progress',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.CreateModel(
            name='HostNeed',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(db_index=True, max_length=255)),
                ('action', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='needs', to='compute.instanceaction')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('action', 'host'), name='one_need_per_host')],
            },
        ),
    ]
