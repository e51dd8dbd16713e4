# Before deploy: it only adds, and what the version before writes has the defaults of the database.

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('compute', '0005_grace'),
    ]

    operations = [
        migrations.AddField(
            model_name='computenode',
            name='is_whole',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='computenode',
            name='out_of_use',
            field=models.CharField(blank=True, db_default='', default='', max_length=255),
        ),
        migrations.AddField(
            model_name='computenode',
            name='resource_class',
            field=models.CharField(blank=True, db_default='', default='', max_length=255),
        ),
    ]
