"""The outbox: each row of a database becomes one entry or job, also after a crash at any step."""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import streamkeep
from crash.power import another_boot, watched
from streamkeep import ArgumentError, Store
from streamkeep.jobs import Queue, QueueFullError
from streamkeep.jobs.outbox import Outbox, _text

TABLE = "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, payload TEXT, note TEXT)"


class Cut(Exception):
    """A process died."""


class Connection:
    """A connection that dies at a chosen step."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self.real = real
        self.dies_at = ""

    autocommit: bool

    def __getattr__(self, name: str) -> Any:
        if name == self.dies_at:
            self.dies_at = ""
            raise Cut
        return getattr(self.real, name)


Connection.__module__ = "sqlite3"


class Unsynced:
    """A store whose transactions wait for no disk, as if their process died there."""

    def __init__(self, real: Store) -> None:
        self.real = real

    def transaction(self, sync: str) -> Any:
        return self.real.transaction(sync="none")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def database() -> Iterator[Connection]:
    real = sqlite3.connect(":memory:")
    real.execute(TABLE)
    yield Connection(real)
    real.close()


def insert(database: Connection, *payloads: str) -> None:
    with database.real as txn:
        txn.executemany("INSERT INTO outbox (payload) VALUES (?)", [(one,) for one in payloads])


def forwarded(store: Store) -> list[bytes]:
    return [entry.fields[b"payload"] for entry in store.xrange("mails")]


def test_rows_that_a_dead_forwarder_appended_hide_none_after_them(
    store: Store, database: Connection
) -> None:
    insert(database, "a", "b", "c")
    database.dies_at = "commit"
    with pytest.raises(Cut):
        Outbox(database, "outbox", store, stream="mails", batch=2).forward()
    outbox = Outbox(database, "outbox", store, stream="mails", batch=2)
    assert outbox.run(once=True) == 1
    assert forwarded(store) == [b"a", b"b", b"c"]


def test_who_has_rows_to_move_looks_at_no_others(store: Store, database: Connection) -> None:
    """Another forwarder is between two steps at most times, and the table may be long."""
    insert(database, "a", "b", "c")
    outbox = Outbox(database, "outbox", store, stream="mails", batch=2)
    store.row_put("outbox:outbox", b"id:int:7", b"")
    asked: list[str] = []
    database.real.set_trace_callback(asked.append)
    assert (outbox.forward(), outbox.forward()) == (2, 1)
    assert "SELECT id FROM outbox" not in asked
    assert (outbox.forward(), store.row_range("outbox:outbox")) == (0, [])


@pytest.mark.parametrize("dead", [False, True])  # another one, while it waited for the disk
def test_rows_are_on_disk_in_the_store_before_they_are_deleted(
    tmp_path: Path, database: Connection, dead: bool
) -> None:
    insert(database, "a")
    path = tmp_path / "unsynced"
    with watched(path) as disk, streamkeep.open(path, sync="none") as store:
        store.sync()
        if dead:
            database.dies_at = "commit"
            unsynced: Any = Unsynced(store)
            with pytest.raises(Cut):
                Outbox(database, "outbox", unsynced, stream="mails").forward()
        assert Outbox(database, "outbox", store, stream="mails").forward() == (not dead)
        for seed in range(4):
            disk.lose_power(tmp_path / f"lost-{seed}", random.Random(seed))
    for seed in range(4):
        with another_boot(seed + 1), streamkeep.open(tmp_path / f"lost-{seed}") as found:
            assert forwarded(found) == [b"a"]


def test_rows_before_one_that_cannot_be_put_are_forwarded(
    store: Store, database: Connection
) -> None:
    """Otherwise a queue never has room for a batch that is larger than its limit."""
    queue = Queue(store)
    queue.set_limits(max_length=2)
    insert(database, "a", "b", "c", "d", "e")
    outbox = Outbox(database, "outbox", store, put=lambda row: queue.put(row["payload"]))
    done = []
    for _ in range(3):
        with suppress(QueueFullError):
            outbox.run(once=True)
        jobs = queue.get_many(9)
        done += [job.payload for job in jobs]
        queue.done_many(jobs)
    assert done == ["a", "b", "c", "d", "e"]


def test_a_batch_for_which_the_store_never_has_room_goes_in_parts(
    tmp_path: Path, database: Connection
) -> None:
    """The commit raises, after all rows were put."""
    payloads = [str(number).zfill(30_000) for number in range(99)]
    insert(database, *payloads)
    appended: list[bytes] = []
    with streamkeep.open(tmp_path / "small", max_store_bytes=1 << 20) as small:
        outbox = Outbox(database, "outbox", small, stream="mails")
        while len(appended) < 99:
            outbox.forward()
            appended += forwarded(small)
            small.xtrim("mails", maxlen=0)
    assert appended == [one.encode() for one in payloads]


@pytest.mark.parametrize("ids", [(None,), ("x", "x"), (1, 2, 2)])
def test_rows_that_cannot_be_told_apart_are_refused(
    store: Store, database: Connection, ids: tuple[Any, ...]
) -> None:
    """An ID of the next batch is seen when that of this one is deleted."""
    database.real.execute("CREATE TABLE loose (id TEXT, payload TEXT)")
    with database.real as txn:
        txn.executemany("INSERT INTO loose VALUES (?, 'a')", [(one,) for one in ids])
    outbox = Outbox(database, "loose", store, stream="mails", batch=2)
    for _ in range(2):
        with pytest.raises(ArgumentError, match="a value of its own"):
            outbox.run(once=True)
    assert database.real.execute("SELECT count(*) FROM loose").fetchone()[0] == len(ids)
    assert store.xlen("mails") <= len(set(filter(None, ids)))


def test_values_that_are_no_text_travel_as_what_they_are(store: Store) -> None:
    values = [bytearray(b"\xff"), memoryview(b"\xff"), {"a": ["ü"]}, [1], True, 1.5, Decimal("1.0")]
    assert [_text(one) for one in values] == [
        *(b"\xff", b"\xff", '{"a": ["ü"]}', "[1]", 1, 1.5, "1.0")
    ]


def test_rows_become_jobs_in_the_transaction_that_remembers_them(
    store: Store, database: Connection
) -> None:
    queue = Queue(store)

    @queue.task
    def send(to: str) -> str:
        if to == "bad":
            raise ValueError
        return to

    insert(database, "ann", "bob")
    outbox = Outbox(database, "outbox", store, put=lambda row: send.delay(row["payload"]))
    assert outbox.forward() == 2
    assert (queue.run_until_idle(), queue.stats().done) == (2, 2)

    def fail(row: dict[str, Any]) -> None:
        send.delay(row["payload"])
        raise Cut

    insert(database, "eve")
    with pytest.raises(Cut):
        Outbox(database, "outbox", store, put=fail).forward()
    assert queue.stats().waiting == 0
    assert outbox.forward() == 1


def test_what_would_lose_rows_is_refused(store: Store, database: Connection) -> None:
    database.real.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, payload TEXT)")
    for table, options, problem in (
        ("plain", {"stream": "s"}, "AUTOINCREMENT"),
        ("missing", {"stream": "s"}, "no table 'missing'"),
        ("outbox; DROP", {"stream": "s"}, "not the name of a table"),
        ("outbox", {"stream": "s", "columns": ["a b"]}, "not the name of a table or a column"),
        ("outbox", {}, "either `stream` or `put`"),
        ("outbox", {"stream": "s", "batch": 0}, "batch"),
        ('"outbox', {"stream": "s"}, "not the name of a table"),
        ("outbox", {"stream": "s", "id_column": "ID"}, "no column 'ID'"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            Outbox(database, table, store, **options)
    database.autocommit = False  # as Python 3.12 has it
    with pytest.raises(ArgumentError, match="transaction open at any time"):
        Outbox(database, "outbox", store, stream="s")
    del database.autocommit
    outbox = Outbox(database, "outbox", store, stream="s", columns=["payload", "note"])
    database.real.execute("INSERT INTO outbox (payload) VALUES ('x')")
    store.row_put("outbox:outbox", b"id:left", b"")
    with pytest.raises(ArgumentError, match="transaction open"):
        outbox.forward()
    database.real.commit()
    assert outbox.forward() == 1
    assert store.xrange("s")[0].fields == {b"id": b"1", b"payload": b"x"}


@pytest.mark.parametrize("member", ["autocommit", "get_autocommit"])
def test_a_connection_that_commits_each_statement_is_refused(store: Store, member: str) -> None:
    class Other:
        """It locks no row that it selects."""

    setattr(Other, member, True if member == "autocommit" else lambda self: True)
    with pytest.raises(ArgumentError, match="autocommit off"):
        Outbox(Other(), "outbox", store, stream="s")


@pytest.mark.parametrize("name", ["main.outbox", '"other"."order"'])
def test_a_name_may_have_the_database_of_its_table(
    store: Store, database: Connection, name: str
) -> None:
    database.real.execute("ATTACH ':memory:' AS other")
    database.real.execute(TABLE.replace("outbox", '"other"."order"'))
    with database.real as txn:
        txn.execute(f"INSERT INTO {name} (payload) VALUES ('x')")
    assert Outbox(database, name, store, stream="mails", name="o").run(once=True) == 1
    assert forwarded(store) == [b"x"]
    with pytest.raises(ArgumentError, match="no table 'other"):
        Outbox(database, "other.outbox", store, stream="mails")


@pytest.mark.parametrize("others", [0, 2])
def test_other_databases_lock_the_rows_that_they_select(
    store: Store, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """A server that does not answer stops no writer, since it is not asked with the write lock.

    Args:
        others: how many other forwarders forget rows while this one waits for the store.
    """
    said: list[tuple[str, tuple[Any, ...]]] = []

    class Cursor:
        description = (("id",), ("payload",))
        rowcount = 2

        def execute(self, query: str, values: tuple[Any, ...] = ()) -> None:
            assert store.open_transaction() is None
            said.append((query, values))
            if len(said) <= others:
                Outbox(Other(), "shop.outbox", store, stream="s")._forget([b"id:another"])

        def fetchall(self) -> list[tuple[Any, ...]]:
            return [("a-1", "x"), ("a-2", None)]

        def close(self) -> None: ...

    class Other:
        def cursor(self) -> Cursor:
            return Cursor()

        def commit(self) -> None:
            said.append(("commit", ()))

    Other.__module__ = "otherdb.connection"
    module = ModuleType("otherdb")
    module.paramstyle = "pyformat"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "otherdb", module)
    assert Outbox(Other(), "shop.outbox", store, stream="s", batch=7).forward() == 2
    assert said == [
        ("SELECT * FROM shop.outbox ORDER BY id LIMIT 7 FOR UPDATE SKIP LOCKED", ()),
        *[("SELECT 1", ())] * others,  # they are still locked
        ("DELETE FROM shop.outbox WHERE id IN (%s, %s)", ("a-1", "a-2")),
        ("commit", ()),
    ]
    fields = [entry.fields for entry in store.xrange("s")]
    assert fields == [{b"payload": b"x"}, {b"id": b"a-2"}]
