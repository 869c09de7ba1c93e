"""The application: the worker's command, and the pages in the admin."""

from __future__ import annotations

from django.apps import AppConfig


class StreamkeepConfig(AppConfig):
    name = "streamkeep.integrations.django"
    label = "streamkeep"
    verbose_name = "Streamkeep"
    default_auto_field = "django.db.models.BigAutoField"
