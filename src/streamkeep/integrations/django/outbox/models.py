"""The table of the outbox. Rows are short-lived: the forwarder deletes what it has moved."""

from __future__ import annotations

from django.db import models


class OutboxRow(models.Model):
    """A message that is to be forwarded: an entry for a stream, or a task where that is empty."""

    id = models.BigAutoField(primary_key=True)  # SQLite: with AUTOINCREMENT, so never used again
    stream = models.TextField()
    payload = models.TextField()

    class Meta:
        """No permissions: programs write it, and the forwarder deletes."""

        app_label = "streamkeep_outbox"
        db_table = "streamkeep_outbox"
        default_permissions = ()
