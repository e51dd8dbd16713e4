# Before deploy: it only adds, and what the version before writes has the defaults of the database.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('compute', '0004_moves'),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='step',
            name='open_steps',
        ),
        migrations.RemoveIndex(
            model_name='step',
            name='open_steps_of_server',
        ),
        migrations.AddField(
            model_name='instance',
            name='resumes_with_host',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='step',
            name='clock',
            field=models.JSONField(null=True),
        ),
        migrations.AlterField(
            model_name='step',
            name='state',
            field=models.CharField(choices=[('queued', 'Queued'), ('running', 'Running'), ('waiting', 'Waiting'), ('done', 'Done'), ('failed', 'Failed'), ('cancelled', 'Cancelled')], default='queued', max_length=16),
        ),
        migrations.AddIndex(
            model_name='step',
            index=models.Index(condition=models.Q(('state__in', ['queued', 'running', 'waiting'])), fields=['host', 'queued_at'], name='open_steps'),
        ),
        migrations.AddIndex(
            model_name='step',
            index=models.Index(condition=models.Q(('state__in', ['queued', 'running', 'waiting'])), fields=['server_id'], name='open_steps_of_server'),
        ),
    ]
