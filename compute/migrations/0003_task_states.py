# Before deploy: the database does not check the choices, so it changes nothing there.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('compute', '0002_draining'),
    ]

    operations = [
        migrations.AlterField(
            model_name='instance',
            name='task_state',
            field=models.CharField(choices=[('scheduling', 'Scheduling'), ('spawning', 'Spawning'), ('image_snapshot', 'Image Snapshot'), ('image_uploading', 'Image Uploading'), ('powering-off', 'Powering Off'), ('powering-on', 'Powering On'), ('rebooting', 'Rebooting'), ('rebooting_hard', 'Rebooting Hard'), ('pausing', 'Pausing'), ('unpausing', 'Unpausing'), ('suspending', 'Suspending'), ('resuming', 'Resuming'), ('deleting', 'Deleting'), ('migrating', 'Migrating'), ('resize_prep', 'Resize Prep'), ('resize_confirming', 'Resize Confirming'), ('resize_reverting', 'Resize Reverting')], max_length=32, null=True),
        ),
    ]
