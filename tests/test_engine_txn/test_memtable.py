"""Rows of the memtable: no reader, no process and no replay sees a difference to rows in LMDB."""

from __future__ import annotations

import gc
import os
import random
import signal
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, cast

import lmdb
import pytest

import inside
from inside import context_of, environment_of
from stopped import child_of, copy_of_killed
from streamkeep.engine.api.store import Store
from streamkeep.engine.tables.scan import at_or_below
from streamkeep.engine.txn.memtable import Memtable
from streamkeep.engine.txn.overlay import Cursor, Table
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.keys import META, ROWS, TABLES
from test_engine_store.test_shared_cache import calls, open_one, run
from tiers import slow_but

Rows = dict[int, list[tuple[bytes, bytes]]]


# --- cursors ------------------------------------------------------------------------------------


class Counting:
    """A cursor of LMDB that counts its steps."""

    def __init__(self, cursor: Any) -> None:
        self.cursor = cursor
        self.steps = 0

    def next(self) -> bool:
        self.steps += 1
        return bool(self.cursor.next())

    def prev(self) -> bool:
        self.steps += 1
        return bool(self.cursor.prev())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cursor, name)


@pytest.mark.parametrize("removed", [True, False])
def test_searches_pass_rows_that_were_removed_once_and_few_that_are_newer_in_memory(
    tmp_path: Path, removed: bool
) -> None:
    count = 500
    memtable = Memtable()
    raw = lmdb.open(str(tmp_path / "rows"), max_dbs=1, sync=False)
    handles = {ROWS: raw.open_db(b"rows")}
    table = memtable.tables[ROWS] = Table()
    for number in range(count):
        table.put(b"%03d" % number, b"value")
    with raw.begin(write=True) as txn:
        memtable.write(txn, handles)
    table = Table()
    with raw.begin() as txn:
        lmdb_cursor = Counting(txn.cursor(handles[ROWS]))
        for number in range(count):
            cursor = Cursor(cast(Any, lmdb_cursor), [Table(), table])
            db_key = b"%03d" % number
            assert cursor.set_range(b"0") if removed else at_or_below(cursor, db_key + b"5")
            assert cursor.key() == db_key
            if removed:
                table.remove(db_key)
            else:
                table.put(db_key, b"newer")
            if number % 100 == 99:  # as beside a snapshot
                table = table.copy()
        assert cursor.set_range(b"0") == (not removed)
    raw.close()
    assert lmdb_cursor.steps < 10 * count


# --- stores -------------------------------------------------------------------------------------


def all_rows(store: Store[bytes]) -> Rows:
    """Return the rows of each table, except `meta`, which has the epoch."""
    rows: Rows = {}
    with inside.begin_read(store) as txn:
        for table in TABLES:
            if table != META:
                cursor = txn.cursor(table)
                rows[table] = []
                found = cursor.first()
                while found:
                    rows[table].append((cursor.key(), cursor.value()))
                    found = cursor.next()
                assert txn.rows(table) == len(rows[table])
    return rows


@pytest.mark.parametrize("seed", slow_but(range(20), 1, 2, 3))
def test_a_replayed_store_equals_the_one_that_went_on(tmp_path: Path, seed: int) -> None:
    """Its record has all that a transaction has changed, and nothing of one that failed."""
    draw = random.Random(seed)
    made = calls(draw)
    with open_one(tmp_path / "store", lease=False) as store:
        inside.context_of(store).memtable.most_commits = draw.choice((7, 100, 1000))
        for number in range(200):
            fails = number % 10 == 0
            with suppress(ZeroDivisionError), store.transaction() as txn:
                for call in islice(made, draw.randint(1, 9)):
                    run(txn, call)
                if fails:
                    raise ZeroDivisionError
            run(store, next(made))
            store.row_put(b"space", b"%d" % draw.randrange(9), bytes(draw.randrange(50)))
            store.row_delete(b"space", b"%d" % draw.randrange(9))
        store.xadd("a", {"one of": "the memtable"})
        copy = copy_of_killed(store, tmp_path / "copy")
        wanted = all_rows(store)
        inside.checkpoint_now(store)
        assert not inside.context_of(store).memtable.commits
        assert all_rows(store) == wanted
    with open_one(copy, lease=False) as again:
        assert again.durability().last_recovery is not None
        assert all_rows(again) == wanted


# --- other processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("readonly", [False, True])
def test_a_process_that_fell_behind_recycled_files_begins_at_the_image(
    path: Path, readonly: bool
) -> None:
    Store(path).close()
    ready, go = os.pipe(), os.pipe()

    def work() -> None:
        with Store(path, sync="none") as own:
            inside.checkpointer_of(own).stop()
            journal = inside.journal_of(own)
            journal.file_size = 1 << 16
            own.xadd("s", {"n": 0})
            os.write(ready[1], b"y")
            os.read(go[0], 1)
            for number in range(1, 400):
                own.xadd("s", {"n": number, "f": bytes(2000)})
                if number % 20 == 0:
                    inside.checkpoint_now(own)
            assert journal.log.number > 4
            os.write(ready[1], b"y")
            os.read(go[0], 1)

    child = child_of(work)
    os.read(ready[0], 1)
    with Store(path, readonly=readonly) as store:
        assert store.xlen("s") == 1
        os.write(go[1], b"y")
        os.read(ready[0], 1)
        assert [entry.fields[b"n"] for entry in store.xrange("s")] == [
            b"%d" % number for number in range(400)
        ]
        if not readonly:
            store.xadd("s", {"n": 400})
            assert store.xlen("s") == 401
    os.write(go[1], b"y")
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("first", ["reader", "writer"])
def test_a_reader_finds_the_file_that_is_begun_when_all_were_removed(
    path: Path, first: str
) -> None:
    with Store(path, sync="none") as store:
        journal = inside.journal_of(store)
        journal.file_size = 1 << 16
        while journal.log.number < 3:
            store.xadd("s", {"f": bytes(2000)})
        count = store.xlen("s")
    for file in (path / "journal").glob("*.skj"):
        file.unlink()
    ask, told = os.pipe(), os.pipe()

    def work() -> None:
        with Store(path, readonly=True) as reader:
            os.write(told[1], b"opened")
            while os.read(ask[0], 1):
                os.write(told[1], b"%d" % reader.xlen("s"))

    early = Store(path, sync="none") if first == "writer" else None
    child = child_of(work)
    os.close(told[1])
    assert os.read(told[0], 9) == b"opened"
    with early or Store(path, sync="none") as store:
        for number in range(3):
            os.write(ask[1], b"y")
            assert int(os.read(told[0], 9)) == count + number
            store.xadd("s", {"n": number})
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# --- snapshots: of a caller that keeps the streams it has read, and those that no one ends --------


def test_a_known_stream_is_decoded_again_when_it_has_changed(store: Store) -> None:
    known: dict[bytes, Stream] = {}

    def found() -> Stream | None:
        with environment_of(store).begin_read() as txn:
            txn.known = known
            return txn.find_stream(b"s")

    assert found() is None
    store.xadd("s", {"f": "v"}, id="1-0")
    first = found()
    assert first is not None
    assert found() is first
    store.xadd("s", {"f": "v"}, id="2-0")
    second = found()
    assert second is not None
    assert second is not first
    assert second.record.length == 2
    store.delete("s")
    assert found() is None
    store.xadd("s", {"f": "v"}, id="3-0")
    third = found()
    assert third is not None
    assert third.record.length == 1
    assert third.number != second.number


def test_few_streams_are_kept(store: Store) -> None:
    known: dict[bytes, Stream] = {}
    for number in range(100):
        store.xadd(f"s{number}", {"f": "v"})
        with environment_of(store).begin_read() as txn:
            txn.known = known
            assert txn.find_stream(b"s%d" % number) is not None
    assert 0 < len(known) <= 64


def test_the_garbage_collector_may_end_a_snapshot_while_another_one_ends(store: Store) -> None:
    store.xadd("s", {"f": "v"})
    context = context_of(store)
    lost: list[object] = [store.snapshot()]
    lost.append(lost)
    del lost
    with context.exit_gate:
        gc.collect()
    assert context.left == context.entered
