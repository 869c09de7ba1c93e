"""The application with the table of the outbox."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "streamkeep.integrations.django.outbox"
    label = "streamkeep_outbox"
    verbose_name = "Streamkeep outbox"
    default_auto_field = "django.db.models.BigAutoField"
