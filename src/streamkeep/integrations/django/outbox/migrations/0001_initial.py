"""Create the table."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("stream", models.TextField()),
                ("payload", models.TextField()),
            ],
            options={"db_table": "streamkeep_outbox", "default_permissions": ()},
        ),
    )
