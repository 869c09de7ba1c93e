"""Snapshots and transactions against plain dicts, in one process and in several that are killed.

The test draws steps, knows the answer to each, and has a process take it: by a call, or through a
pipe. What happens depends on the seed alone, so no process has a checkpointer thread. A failure
names the seed and the step.
"""

from __future__ import annotations

import os
import random
import signal
import traceback
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Final

import lmdb
import pytest

import inside
from stopped import child_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys, xadd, xrange
from streamkeep.engine.system import failpoints
from streamkeep.engine.txn.overlay import Cursor
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.keys import CONSUMER_PEL, IDEMPOTENCY, ROWS, node_key
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range
from tiers import slow_but

# No command of this test uses these tables, so any row may be in them.
TABLES: Final = (ROWS, CONSUMER_PEL, IDEMPOTENCY)
STREAM_ROWS: Final = -1  # in the model: the entries of each stream, _TOKEN bytes of each
STREAMS: Final = (b"a", b"b", b"c")
TOKEN: Final = 8
NEWEST: Final = 5
TOP: Final = (1 << 64) - 1
WRITE: Final = 0  # the number of the view that is the write transaction
MOST_VIEWS: Final = 5
MOST_CURSORS: Final = 8
# Of a commit: before these it is not made, from the others on it is.
BEFORE: Final = ("commit:journaled",)
MADE: Final = ("commit:published", "commit:made")
FLUSHES: Final = ("flush:ending", "flush:ended")  # before the commit or after it
CHECKPOINT: Final = ("checkpoint:pinned", "checkpoint:synced", "checkpoint:slot-written")

Rows = dict[int, dict[bytes, bytes]]
Answer = Any


class Halfway(Exception):
    """What makes a commit fail at a failpoint."""


def entries(txn: Txn, name: bytes, count: int) -> bytes:
    """Return the first bytes of the newest entries of a stream, in its order."""
    found: list[Any] = xrange.xrange(txn, name, Range(0, 0, TOP, TOP, count, True, int(PAIRS)))
    return b"".join(entry[2][1][:TOKEN] for entry in reversed(found))


def walk(cursor: Cursor, found: bool, move: Callable[[], bool]) -> list[tuple[bytes, bytes]]:
    rows = []
    while found:
        rows.append((cursor.key(), cursor.value()))
        found = move()
    return rows


class Process:
    """Takes steps with the store; each method is one kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.views: dict[int, Any] = {}
        self.cursors: dict[int, tuple[int, Cursor]] = {}  # with the number of the view
        self.store = self.opened()
        self.release()

    def release(self) -> None:
        """Release the lock that a lone process keeps, as its checkpointer would."""
        lock = inside.context_of(self.store).write_lock
        if WRITE not in self.views and lock is not None:
            lock.release_idle()

    def opened(self) -> Store[bytes]:
        store = Store(self.path, sync="none", lease=False)
        inside.checkpointer_of(store).stop()
        return store

    def take(self, kind: str, *args: Any) -> Answer:
        answer = getattr(self, kind)(*args)
        self.release()
        return answer

    def begin(self) -> None:
        self.views[WRITE] = inside.begin_write(self.store)

    def append(self, name: bytes, value: bytes) -> None:
        xadd.xadd(self.views[WRITE], name, [b"f", value], xadd.ANY_ID, False, None, None)

    def remove(self, name: bytes) -> int:
        return keys.delete(self.views[WRITE], [name])

    def stream(self, view: int, name: bytes) -> tuple[int, bytes]:
        """Return the length of a stream, and its newest entries."""
        stream = self.views[view].find_stream(name)
        length = 0 if stream is None else stream.record.length
        return length, entries(self.views[view], name, NEWEST)

    def commit(self, failpoint: str, how: str) -> tuple[bool, bool]:
        """Return whether the commit was made, and whether it came to the failpoint."""
        self.drop_cursors(WRITE)
        txn = self.views.pop(WRITE)
        came = False

        def act() -> None:
            nonlocal came
            came = True
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise lmdb.Error("halfway") if how == "lmdb" else Halfway

        if failpoint:
            failpoints.arm(failpoint, act)
        try:
            txn.commit()
        except (Halfway, lmdb.Error):
            assert came
        finally:
            txn.abort()
            failpoints.disarm()
        return txn.committed, came

    def abort(self) -> None:
        self.drop_cursors(WRITE)
        self.views.pop(WRITE).abort()

    def snapshot(self, view: int) -> None:
        self.views[view] = inside.begin_read(self.store)

    def close(self, view: int) -> None:
        self.drop_cursors(view)
        self.views.pop(view).close()

    def drop_cursors(self, view: int) -> None:
        self.cursors = {n: one for n, one in self.cursors.items() if one[0] != view}

    def call(self, view: int, method: str, *args: Any) -> Answer:
        return getattr(self.views[view], method)(*args)

    def go(self, number: int, view: int, table: int, how: str, *args: bytes) -> Answer:
        """Move a cursor, which is made at its first use; return the row where it is."""
        if number not in self.cursors:
            self.cursors[number] = view, self.views[view].cursor(table)
        cursor = self.cursors[number][1]
        found = getattr(cursor, how)(*args)
        return (found, cursor.key(), cursor.value()) if found else (found, cursor.key(), b"")

    def all(self, view: int) -> Rows:
        """Return all rows, which are the same in both directions."""
        rows: Rows = {}
        for table in TABLES:
            cursor = self.views[view].cursor(table)
            forward = walk(cursor, cursor.first(), cursor.next)
            assert forward == walk(cursor, cursor.last(), cursor.prev)[::-1]
            rows[table] = dict(forward)
        found_streams = {name: entries(self.views[view], name, 1 << 40) for name in STREAMS}
        rows[STREAM_ROWS] = {name: value for name, value in found_streams.items() if value}
        return rows

    def flush_at(self, commits: int) -> None:
        inside.context_of(self.store).memtable.most_commits = commits

    def flush(self) -> None:
        inside.begin_write(self.store).abort()  # a process may flush while it has a pin
        inside.flush_now(self.store)

    def checkpoint(self, failpoint: str) -> None:
        if failpoint:
            failpoints.arm(failpoint, lambda: os.kill(os.getpid(), signal.SIGKILL))
        inside.checkpoint_now(self.store)
        failpoints.disarm()

    def end(self) -> None:
        if WRITE in self.views:
            self.abort()
        for view in list(self.views):
            self.close(view)
        tables = inside.context_of(self.store).memtable.tables.values()
        assert not any(table.shown != table.hidden for table in tables)
        self.store.close()

    def reopen(self) -> None:
        self.end()
        self.store = self.opened()


class Died(Exception):
    """A process was killed in a step."""


class Remote:
    """A process of its own that takes steps."""

    def __init__(self, path: Path) -> None:
        self.pipe, other = Pipe()

        def serve() -> None:
            self.pipe.close()
            try:
                process = Process(path)
                other.send("opened")
                while True:
                    other.send(process.take(*other.recv()))
            except BaseException:
                other.send(traceback.format_exc())

        self.pid = child_of(serve)
        other.close()
        assert self.pipe.recv() == "opened"  # which needs the write lock

    def take(self, *step: Any) -> Answer:
        try:
            self.pipe.send(step)
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            os.waitpid(self.pid, 0)
            self.pid = 0
            raise Died from None

    def end(self) -> None:
        self.pipe.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Known:
    """What is known of one process: its views, and where its cursors are."""

    numbers = 0  # that were given to views and cursors

    def __init__(self) -> None:
        self.views: dict[int, Rows] = {}
        self.cursors: dict[int, tuple[int, int, bytes]] = {}  # view, table, key

    def drop(self, view: int) -> Rows:
        self.cursors = {n: one for n, one in self.cursors.items() if one[0] != view}
        return self.views.pop(view)


class Model:
    """Draws steps and compares the answers."""

    def __init__(self, path: Path, seed: int, count: int) -> None:
        self.path = path
        self.draw = random.Random(seed)
        self.made: Rows = {number: {} for number in (*TABLES, STREAM_ROWS)}
        self.unmade: Rows | None = None  # with the record of a killed process, which none overwrote
        self.kills = 0
        self.rate = 0.5  # of changes that remove a row, in the present transaction
        self.left = 0  # changes in the present transaction
        self.apart = count > 0
        self.processes: list[Process | Remote] = [self.started() for _ in range(count or 1)]
        self.known = [Known() for _ in self.processes]
        self.writer = -1  # the process with a write transaction

    def started(self) -> Process | Remote:
        return Remote(self.path) if self.apart else Process(self.path)

    def key(self) -> bytes:
        if self.draw.random() < 0.5:
            return b"%d" % self.draw.randrange(150)
        return node_key(1, self.draw.randrange(3), self.draw.randrange(20))

    def step(self) -> None:
        draw = self.draw
        at = draw.randrange(len(self.processes))
        kind = draw.random()
        if kind < 0.4:
            self.write(self.writer if self.writer >= 0 else at)
        elif kind < 0.9:
            self.read(at)
        elif kind < 0.96:
            self.hold(at)
        else:
            self.maintain(at, draw.random())

    def ask(self, at: int, wanted: Answer, *step: Any) -> None:
        answer = self.processes[at].take(*step)
        assert answer == wanted, (at, step)

    def end_processes(self) -> None:
        for process in self.processes:
            process.end()

    def write(self, at: int) -> None:
        draw, views = self.draw, self.known[at].views
        if self.writer < 0:
            self.ask(at, None, "begin")
            self.writer = at
            self.rate = draw.choice((0.1, 0.5, 0.9))
            self.left = draw.choice((0, 1, 1, 3, 3, 30, 300))
            views[WRITE] = {table: dict(rows) for table, rows in self.made.items()}
        elif not self.left:
            self.end(at)
        else:
            self.left -= 1
            self.change(at, views[WRITE])

    def change(self, at: int, rows: Rows) -> None:
        draw, table, db_key = self.draw, self.draw.choice(TABLES), self.key()
        kind = draw.random()
        if kind < 0.1:
            name, streams = draw.choice(STREAMS), rows[STREAM_ROWS]
            if draw.random() < 0.05:
                self.ask(at, int(name in streams), "remove", name)
                streams.pop(name, None)
            else:
                token = draw.randbytes(TOKEN)
                self.ask(at, None, "append", name, token + bytes(draw.choice((1, 60, 900))))
                streams[name] = streams.get(name, b"") + token
        elif kind < 0.25 and rows[table]:
            db_key = draw.choice(list(rows[table]))
            target = draw.choice([one for one in TABLES if one != table])
            self.ask(at, None, "call", WRITE, "move", table, db_key, target)
            rows[target][db_key] = rows[table].pop(db_key)
        elif draw.random() < self.rate:
            self.ask(at, db_key in rows[table], "call", WRITE, "delete", table, db_key)
            rows[table].pop(db_key, None)
        else:
            value = draw.randbytes(draw.choice((0, 4, 4, 100, 5000)))
            self.ask(at, None, "call", WRITE, "put", table, db_key, value)
            rows[table][db_key] = value

    def end(self, at: int) -> None:
        """Commit or abort, perhaps with an error or a death on the way."""
        draw = self.draw
        self.writer = -1
        kind = draw.random()
        if kind < 0.15:
            self.known[at].drop(WRITE)
            self.ask(at, None, "abort")
            return
        failpoint = how = ""
        if kind < 0.3:
            failpoint = draw.choice(BEFORE + MADE + FLUSHES)
            how = "lmdb" if failpoint == "flush:ending" and draw.random() < 0.5 else "raise"
            if self.apart and draw.random() < 0.5:
                how = "kill"
        try:
            made, came = self.processes[at].take("commit", failpoint, how)
        except Died:
            self.resolve(at, failpoint)
            return
        if not came or failpoint not in FLUSHES:
            assert made is not (came and failpoint in BEFORE), (at, failpoint, how)
        rows = self.known[at].drop(WRITE)
        if rows != self.made and (made or (came and failpoint in BEFORE)):
            self.unmade = None
        if made:
            self.made = rows

    def resolve(self, at: int, failpoint: str) -> None:
        """Go on after a death in a commit: it is made wholly, or not at all."""
        made = self.known[at].views[WRITE]
        self.replace(at)
        self.ask(at, None, "snapshot", 1)
        found = self.processes[at].take("all", 1)
        self.ask(at, None, "close", 1)
        assert found in ([made] if failpoint in MADE else [self.made, made]), (at, failpoint)
        if failpoint in BEFORE and made != self.made:
            self.unmade = made
        elif found != self.made:
            self.unmade = None
        self.made = found

    def replace(self, at: int) -> None:
        self.kills += 1
        if self.writer == at:
            self.writer = -1
        process = self.processes[at]
        assert isinstance(process, Remote)
        process.end()
        self.processes[at] = self.started()
        self.known[at] = Known()

    def read(self, at: int) -> None:
        known, draw = self.known[at], self.draw
        if not known.views:
            return
        view = draw.choice(list(known.views))
        table, rows = draw.choice(TABLES), known.views[view]
        kind = draw.random()
        if kind < 0.2:
            db_key = self.key()
            self.ask(at, rows[table].get(db_key), "call", view, "get", table, db_key)
        elif kind < 0.23:
            self.ask(at, len(rows[table]), "call", view, "rows", table)
        elif kind < 0.28:
            name = draw.choice(STREAMS)
            tokens = rows[STREAM_ROWS].get(name, b"")
            wanted = len(tokens) // TOKEN, tokens[-NEWEST * TOKEN :]
            self.ask(at, wanted, "stream", view, name)
        else:
            self.go(at, known, view, table)

    def go(self, at: int, known: Known, view: int, table: int) -> None:
        """Move a cursor, a new one or one that is somewhere."""
        draw = self.draw
        here = b""
        if known.cursors and draw.random() < 0.9:
            number = draw.choice(list(known.cursors))
            view, table, here = known.cursors[number]
        elif len(known.cursors) >= MOST_CURSORS:
            return
        else:
            known.numbers += 1
            number = known.numbers
        rows = known.views[view][table]
        order = sorted(rows)
        how = draw.choice(("next", "next", "prev", "prev", "set_range", "first", "last"))
        if here and draw.random() < 0.7:
            how = draw.choice(("next", "prev"))
        least = self.key()
        args = (least,) if how == "set_range" else ()
        if how in ("next", "prev") and not here:
            place = -1
        elif how == "next":
            place = bisect_right(order, here)
        elif how == "prev":
            place = bisect_left(order, here) - 1
        elif how == "set_range":
            place = bisect_left(order, least)
        else:
            place = 0 if how == "first" else len(order) - 1
        found = 0 <= place < len(order)
        here = order[place] if found else b""
        wanted = found, here, rows[here] if found else b""
        self.ask(at, wanted, "go", number, view, table, how, *args)
        known.cursors[number] = view, table, here

    def hold(self, at: int) -> None:
        known = self.known[at]
        held = [view for view in known.views if view != WRITE]
        if len(held) < MOST_VIEWS and self.draw.random() < 0.6:
            known.numbers += 1
            self.ask(at, None, "snapshot", known.numbers)
            known.views[known.numbers] = self.made
        elif held:
            view = self.draw.choice(held)
            known.drop(view)
            self.ask(at, None, "close", view)

    def maintain(self, at: int, kind: float) -> None:
        draw, known = self.draw, self.known[at]
        if kind < 0.3:
            self.ask(at, None, "flush_at", draw.choice((1, 3, 20, 1000)))
        elif kind < 0.5:
            for view, rows in known.views.items():
                self.ask(at, rows, "all", view)
        elif self.apart and kind < 0.6 and self.writer in (-1, at):  # opening needs the write lock
            self.replace(at)
        elif self.writer >= 0:
            return  # the rest needs the write lock
        elif kind < 0.9:
            self.ask(at, None, "flush")
        elif kind < 0.97:
            failpoint = draw.choice(CHECKPOINT) if self.apart and draw.random() < 0.3 else ""
            try:
                self.ask(at, None, "checkpoint", failpoint)
            except Died:
                self.replace(at)
        else:
            self.ask(at, None, "reopen")
            self.known[at] = Known()


def run(path: Path, seed: int, count: int, steps: int) -> Model:
    """Take so many steps; look at the store when all processes are gone."""
    Store(path).close()
    model = Model(path, seed, count)
    number = 0
    try:
        while number < steps:
            model.step()
            number += 1
    except Exception as error:
        error.add_note(f"seed {seed}, {count} processes, step {number}")
        raise
    finally:
        model.end_processes()
    last = Process(path)
    last.snapshot(1)
    # A recovery makes the commit of a record that was left: its caller may have been told.
    assert last.take("all", 1) in (model.made, model.unmade), f"seed {seed}: after the end"
    last.end()
    return model


@pytest.mark.parametrize(
    ("seed", "steps"),
    slow_but([(1, 15_000), *((seed, 100_000) for seed in range(2, 12))], (1, 15_000)),
)
def test_views_are_as_copies_of_dicts(tmp_path: Path, seed: int, steps: int) -> None:
    run(tmp_path / "store", seed, 0, steps)


@pytest.mark.parametrize(
    ("seed", "count", "steps"),
    slow_but(
        [(1, 2, 3_000), (2, 4, 3_000), *((seed, 2 + seed % 3, 50_000) for seed in range(3, 13))],
        (1, 2, 3_000),
        (2, 4, 3_000),
    ),
)
def test_views_of_processes_that_are_killed_are_as_copies_of_dicts(
    tmp_path: Path, seed: int, count: int, steps: int
) -> None:
    assert run(tmp_path / "store", seed, count, steps).kills
