"""An outbox for Django: entries and tasks that are written in the transaction of the database.

    INSTALLED_APPS = [
        ...,
        "streamkeep.integrations.django",
        "streamkeep.integrations.django.outbox",
    ]

    with transaction.atomic():
        order.save()
        append("orders", {"order": order.pk})

`manage.py streamkeep_forward` moves the rows into the store, each exactly once. With the option
`"outbox": True` of the backend, tasks go the same way: a task is enqueued if and only if the
transaction in which `enqueue` was called has committed, also when the process dies in between.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamkeep.integrations.outbox_rows import Value, row_of

__all__ = ["append"]


def append(stream: str, fields: Mapping[str, Value], *, using: str | None = None) -> None:
    """Write an entry into the outbox, as a part of the open transaction of the database.

    Args:
        fields: texts, bytes and numbers.
        using: the alias of the database; by default where the router writes the outbox.

    Raises:
        ArgumentError: a field cannot be stored; nothing was written.
    """
    from streamkeep.integrations.django.outbox.models import OutboxRow

    rows = OutboxRow.objects if using is None else OutboxRow.objects.using(using)
    rows.create(**row_of(stream, fields))
