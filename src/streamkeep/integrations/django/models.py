"""What the admin shows. No table: tasks are in the store, and this names pages and permissions."""

from __future__ import annotations

from django.db import models


class QueuedTask(models.Model):
    """A task, as the admin names it."""

    class Meta:
        """Two permissions: to see tasks, and to requeue those that failed."""

        app_label = "streamkeep"
        managed = False
        default_permissions = ("view",)
        permissions = (("requeue_task", "Can requeue tasks that failed"),)
        verbose_name = "task"
        verbose_name_plural = "tasks"
