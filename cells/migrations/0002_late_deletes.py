# Before deploy: it only adds.

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('cells', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='LateDelete',
            fields=[
                ('server_id', models.CharField(max_length=36, primary_key=True, serialize=False)),
                ('project_id', models.CharField(max_length=64)),
                ('user_id', models.CharField(max_length=64)),
                ('is_admin', models.BooleanField(default=False)),
                ('request_id', models.CharField(max_length=64)),
                ('words', models.JSONField(default=dict)),
                ('asked_at', models.DateTimeField()),
                ('cell', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='late_deletes', to='cells.cell')),
            ],
            options={
                'abstract': False,
            },
        ),
    ]
