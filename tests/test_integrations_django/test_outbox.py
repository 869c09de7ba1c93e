"""The outbox of Django: entries and tasks are there if their transaction committed, and once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from django.test import override_settings

from postgresql import postgresql
from streamkeep import ArgumentError
from streamkeep.integrations.django.interface import task_backends
from streamkeep.integrations.django.outbox import append
from streamkeep.integrations.django.outbox.models import OutboxRow
from streamkeep.jobs import PayloadError, take
from test_integrations_django import shop_tasks
from test_integrations_django.conftest import BACKEND, Configure


@pytest.fixture
def outbox_backend(configure: Configure, database: None) -> Iterator[Any]:
    """A backend whose tasks go through the table."""
    with configure(outbox=True):
        found = task_backends["default"]
        yield found
        found.queue("default").close()


def forward() -> str:
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


@pytest.mark.parametrize(
    ("options", "args", "text"),
    [
        ({}, ("x" * (17 << 20),), "the payload has"),
        ({"run_after": datetime(2200, 1, 1, tzinfo=UTC)}, (1,), "between 1970 and 2170"),
        ({"queue_name": "mail:high"}, (1,), "'mail:high'"),
    ],
)
@pytest.mark.parametrize("outbox", [True, False])
def test_a_task_that_cannot_be_put_is_refused_where_it_is_enqueued(
    configure: Configure,
    database: None,
    options: dict[str, Any],
    args: tuple[Any, ...],
    text: str,
    outbox: bool,
) -> None:
    queues = ["default", "mail:high"]
    with configure(queues, outbox=outbox, max_result_bytes=20 << 20), transaction.atomic():
        with pytest.raises((PayloadError, ArgumentError), match=text):
            shop_tasks.fail.using(**options).enqueue(*args)
        assert OutboxRow.objects.count() == 0


@pytest.mark.parametrize(
    "change", [{"queue": "mail:high"}, {"run_after": "soon"}, {"headers": {"a": 1}}, {"task": None}]
)
def test_a_row_that_cannot_be_put_ends_the_forwarder_and_is_named(
    outbox_backend: Any, change: dict[str, Any]
) -> None:
    shop_tasks.add.enqueue(1)
    row = OutboxRow.objects.get()
    row.payload = json.dumps({**json.loads(row.payload), **change})
    row.save()
    with pytest.raises(CommandError, match=f"row {row.pk} of the outbox is not a task"):
        call_command("streamkeep_forward", stderr=StringIO())
    assert OutboxRow.objects.count() == 1


def two_backends(**options: dict[str, Any]) -> Any:
    """Return a block in which two backends have an outbox, each with options of its own."""
    whole = {
        alias: {"BACKEND": BACKEND, "OPTIONS": {"outbox": True, **its}}
        for alias, its in options.items()
    }
    return override_settings(TASKS=whole)


def test_a_task_goes_into_the_store_of_its_backend(tmp_path: Path, database: None) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    add = shop_tasks.add.using(backend="default")
    with two_backends(default={"path": one}, reports={"path": one, "retries": 3}):
        result = add.using(backend="reports").enqueue(1)
        assert forward() == "1 row forwarded"
        result.refresh()
        task_backends["default"].queue("default").close()
        task_backends["reports"].queue("default").close()
        result = add.enqueue(1)
    with two_backends(default={"path": one, "outbox": False}, reports={"path": other}):
        row = OutboxRow.objects.get()
        with pytest.raises(CommandError, match=f"row {row.pk} .*'default'.*'reports'.*--backend"):
            call_command("streamkeep_forward", "--backend", "reports")
        assert forward() == "1 row forwarded"
        result.refresh()
        shop_tasks.add.using(backend="reports").enqueue(1)
        task_backends["default"].queue("default").close()
        task_backends["reports"].queue("default").close()
    with two_backends(other={"path": other}):
        with pytest.raises(CommandError, match=r"row .*no backend 'reports'"):
            call_command("streamkeep_forward", "--backend", "other")
        task_backends["other"].queue("default").close()


def test_two_stores_are_not_fed_from_one_table(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with (
        two_backends(default={"path": one}, reports={"path": other}),
        pytest.raises(ImproperlyConfigured, match=r"'reports'.*'default'"),
    ):
        _ = task_backends["reports"].path
    with two_backends(default={"path": one}, reports={"path": other, "database": "shop"}):
        assert task_backends["reports"].database == "shop"


def test_a_forwarder_reads_the_database_of_its_backend(configure: Configure) -> None:
    with configure(outbox=True, database="shop"), pytest.raises(CommandError, match="'shop'"):
        forward()


@pytest.mark.slow
def test_a_forwarder_takes_no_connection_of_the_pool(configure: Configure) -> None:
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with postgresql() as socket, configure():
        options = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "postgres",
            "USER": "postgres",
            "HOST": socket,
            "OPTIONS": {"pool": True},
        }
        connections.settings["pooled"] = {**connections.settings["default"], **options}
        plain = ConnectionHandler({"default": {**options, "OPTIONS": {}}})["default"]
        try:
            with plain.schema_editor() as editor:
                editor.create_model(OutboxRow)
            row = "INSERT INTO streamkeep_outbox (stream, payload) VALUES ('s', '{\"a\":1}')"
            with plain.cursor() as cursor:
                cursor.execute(row)
            plain.close()
            said = StringIO()
            call_command("streamkeep_forward", "--until-idle", "--database", "pooled", stderr=said)
            assert said.getvalue() == "1 row forwarded\n"
            task_backends["default"].queue("default").close()
        finally:
            del connections.settings["pooled"]


def test_a_queue_takes_what_it_has_room_for_and_the_table_keeps_the_rest(
    outbox_backend: Any,
) -> None:
    queue = outbox_backend.queue("default")
    queue.set_limits(max_length=2)
    results = [shop_tasks.add.enqueue(number, 1) for number in range(3)]
    with pytest.raises(CommandError, match="full"):
        forward()
    assert OutboxRow.objects.count() == 1
    assert queue.run_until_idle() == 2
    assert forward() == "1 row forwarded"
    queue.run_until_idle()
    for number, one in enumerate(results):
        one.refresh()
        assert one.return_value == number + 1


def test_wrong_rows_and_fields_are_refused(backend: Any, database: None) -> None:
    for stream, fields in (("", {"a": "b"}), ("s", {}), ("s", {"a": None}), ("s", {"a": True})):
        with pytest.raises(ArgumentError):
            append(stream, fields)  # type: ignore[arg-type]
    row = OutboxRow.objects.create(stream="s", payload="[1]")
    for payload in ("[1]", "[" * 100_000):
        OutboxRow.objects.update(payload=payload)
        with pytest.raises(CommandError, match=f"row {row.pk} of the outbox"):
            forward()
    row.stream = ""
    row.save()
    with pytest.raises(CommandError, match="is not a task"):
        forward()
    for arguments in (["--database", "nosuch"], ["--backend", "nosuch"], ["--every", "soon"]):
        with pytest.raises(CommandError):
            call_command("streamkeep_forward", *arguments)


def test_a_forwarder_without_a_store_ends_with_an_error(
    configure: Configure, database: None, tmp_path: Path
) -> None:
    (tmp_path / "tasks.store").touch()
    with configure(), pytest.raises(CommandError, match=r"tasks\.store"):
        forward()
