"""The task of `django_queue`, in a module of its own, as Django wants it."""

from __future__ import annotations

from typing import Any

import django

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task  # type: ignore[untyped-decorator, unused-ignore]
def nothing(number: int) -> dict[str, Any]:
    """Return a small result."""
    return {"number": number}
