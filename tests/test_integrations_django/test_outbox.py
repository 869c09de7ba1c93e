"""The outbox of Django: entries and tasks are there if their transaction committed, and once."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from streamkeep import ArgumentError
from streamkeep.integrations.django.interface import TaskResultDoesNotExist, task_backends
from streamkeep.integrations.django.outbox import append
from streamkeep.integrations.django.outbox.models import OutboxRow
from streamkeep.jobs import take
from test_integrations_django import shop_tasks
from test_integrations_django.conftest import Configure


@pytest.fixture
def outbox_backend(configure: Configure, database: None) -> Iterator[Any]:
    """A backend whose tasks go through the table."""
    with configure(outbox=True):
        found = task_backends["default"]
        yield found
        found.queue("default").close()


def forward() -> str:
    """Forward what is there; return what the command says."""
    said = StringIO()
    call_command("streamkeep_forward", "--until-idle", stderr=said)
    return said.getvalue().strip()


def test_entries_of_a_committed_transaction_are_forwarded_once(
    backend: Any, database: None
) -> None:
    with transaction.atomic():
        append("orders", {"sku": "7", "count": 2, "raw": b"\xff"})
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        append("orders", {"sku": "8"})
        _ = 1 / 0
    assert [forward(), forward()] == ["1 row forwarded", "0 rows forwarded"]
    [entry] = backend.queue("default").store.xrange("orders")
    assert entry.fields == {b"sku": b"7", b"count": b"2", b"raw": b"\xff"}
    assert OutboxRow.objects.count() == 0


@pytest.mark.parametrize("way", ["through the outbox", "after the commit"])
def test_a_task_has_the_trace_in_which_it_was_enqueued(
    configure: Configure, database: None, way: str
) -> None:
    propagate = pytest.importorskip("opentelemetry.propagate")
    from opentelemetry.context import attach, detach

    def within(trace: str) -> Any:
        return attach(propagate.extract({"traceparent": f"00-{trace * 32}-b7ad6b7169203331-01"}))

    with configure(outbox=way == "through the outbox"):
        committing = within("b")
        with transaction.atomic():
            enqueuing = within("a")
            shop_tasks.add.enqueue(20, 22)
            detach(enqueuing)
        forward()
        detach(committing)
        queue = task_backends["default"].queue("default")
        [job] = take([queue], queue.consumer, 1, timeout=0)
        assert job.headers["traceparent"].split("-")[1] == "a" * 32
        job.done()
        queue.close()


def test_a_task_is_enqueued_by_its_row(outbox_backend: Any) -> None:
    with transaction.atomic():
        result = shop_tasks.add.using(priority=4).enqueue(20, 22)
        assert result.enqueued_at is not None
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    assert forward() == "1 row forwarded"
    assert outbox_backend.get_result(result.id) == result
    outbox_backend.queue("default").run_until_idle()
    result.refresh()
    assert result.return_value == 42
    assert forward() == "0 rows forwarded"


def test_a_full_queue_keeps_the_row(outbox_backend: Any) -> None:
    outbox_backend.queue("default").set_limits(max_length=1)
    for number in range(2):
        shop_tasks.add.enqueue(number)
    with pytest.raises(CommandError, match="full"):
        forward()
    assert OutboxRow.objects.count() == 2
    outbox_backend.queue("default").set_limits(max_length=0)
    assert forward() == "2 rows forwarded"


def test_wrong_rows_and_fields_are_refused(backend: Any, database: None) -> None:
    for stream, fields in (("", {"a": "b"}), ("s", {}), ("s", {"a": None}), ("s", {"a": True})):
        with pytest.raises(ArgumentError):
            append(stream, fields)  # type: ignore[arg-type]
    row = OutboxRow.objects.create(stream="s", payload="[1]")
    with pytest.raises(CommandError, match=f"row {row.pk} of the outbox"):
        forward()
    row.stream = ""
    row.save()
    with pytest.raises(CommandError, match="is not a task"):
        forward()
    for arguments in (["--database", "nosuch"], ["--backend", "nosuch"], ["--every", "soon"]):
        with pytest.raises(CommandError):
            call_command("streamkeep_forward", *arguments)
