# Before deploy: it only adds, and what the version before writes has the defaults of the database.

import compute.models.instance
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('compute', '0003_task_states'),
    ]

    operations = [
        migrations.CreateModel(
            name='Aggregate',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.CharField(default=compute.models.instance.new_uuid, max_length=36, unique=True)),
                ('name', models.CharField(max_length=255, unique=True)),
                ('metadata', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(null=True)),
            ],
            options={
                'ordering': ('pk',),
            },
        ),
        migrations.CreateModel(
            name='AggregateHost',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('host', models.CharField(db_index=True, max_length=255)),
            ],
        ),
        migrations.CreateModel(
            name='Departure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('server_id', models.CharField(max_length=36)),
                ('host', models.CharField(max_length=255)),
                ('moved_to', models.CharField(blank=True, default='', max_length=255)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('moving', 'Moving'), ('away', 'Away'), ('blocked', 'Blocked'), ('return_waiting', 'Return Waiting'), ('returning', 'Returning')], default='waiting', max_length=16)),
                ('request_id', models.CharField(blank=True, default='', max_length=64)),
                ('tries', models.PositiveIntegerField(default=0)),
                ('why', models.CharField(blank=True, default='', max_length=255)),
                ('not_before', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
        ),
        migrations.CreateModel(
            name='ServerGroup',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.CharField(default=compute.models.instance.new_uuid, max_length=36, unique=True)),
                ('name', models.CharField(max_length=255)),
                ('policy', models.CharField(max_length=32)),
                ('rules', models.JSONField(blank=True, default=dict)),
                ('project_id', models.CharField(max_length=64)),
                ('user_id', models.CharField(max_length=64)),
                ('host', models.CharField(blank=True, default='', max_length=255)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name='ServerGroupMember',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('server_id', models.CharField(max_length=36, unique=True)),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.AddField(
            model_name='instance',
            name='shelved_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='instance',
            name='shelved_image_id',
            field=models.CharField(blank=True, db_default='', default='', max_length=36),
        ),
        migrations.AddField(
            model_name='instance',
            name='soft_deleted_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='seen_when_forced',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='service',
            name='drain_moves',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AlterField(
            model_name='instance',
            name='task_state',
            field=models.CharField(choices=[('scheduling', 'Scheduling'), ('spawning', 'Spawning'), ('image_snapshot', 'Image Snapshot'), ('image_uploading', 'Image Uploading'), ('powering-off', 'Powering Off'), ('powering-on', 'Powering On'), ('rebooting', 'Rebooting'), ('rebooting_hard', 'Rebooting Hard'), ('pausing', 'Pausing'), ('unpausing', 'Unpausing'), ('suspending', 'Suspending'), ('resuming', 'Resuming'), ('deleting', 'Deleting'), ('migrating', 'Migrating'), ('resize_prep', 'Resize Prep'), ('resize_confirming', 'Resize Confirming'), ('resize_reverting', 'Resize Reverting'), ('rebuilding', 'Rebuilding'), ('rescuing', 'Rescuing'), ('unrescuing', 'Unrescuing'), ('shelving', 'Shelving'), ('shelving_offloading', 'Shelving Offloading'), ('unshelving', 'Unshelving'), ('soft-deleting', 'Soft Deleting'), ('restoring', 'Restoring'), ('image_backup', 'Image Backup')], max_length=32, null=True),
        ),
        migrations.AddIndex(
            model_name='instanceaction',
            index=models.Index(fields=['key', '-id'], name='actions_by_key'),
        ),
        migrations.AddField(
            model_name='aggregatehost',
            name='aggregate',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='hosts', to='compute.aggregate'),
        ),
        migrations.AddIndex(
            model_name='departure',
            index=models.Index(fields=['host', 'state'], name='departures_of_host'),
        ),
        migrations.AddConstraint(
            model_name='departure',
            constraint=models.UniqueConstraint(fields=('server_id', 'host'), name='one_departure_per_host'),
        ),
        migrations.AddIndex(
            model_name='servergroup',
            index=models.Index(fields=['project_id', 'id'], name='groups_of_project'),
        ),
        migrations.AddField(
            model_name='servergroupmember',
            name='group',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='members', to='compute.servergroup'),
        ),
        migrations.AddConstraint(
            model_name='aggregatehost',
            constraint=models.UniqueConstraint(fields=('aggregate', 'host'), name='once_in_an_aggregate'),
        ),
    ]
