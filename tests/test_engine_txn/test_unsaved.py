"""Rows that a deferred transaction keeps in memory: no reader and no replay sees a difference."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import inside
import streamkeep
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys, xadd, xgroup
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, NoSuchKeyError
from streamkeep.format.core.keys import GROUPS, KEYS, META, STREAMS, TABLES
from tiers import slow_but

Rows = dict[int, list[tuple[bytes, bytes]]]
NAMES = ("a", "b", "c")


def all_rows(store: Store[bytes]) -> Rows:
    """Return the rows of each table, except `meta`, which has the epoch."""
    rows: Rows = {}
    with inside.begin_read(store) as txn:
        for table in TABLES:
            if table != META and table in txn.tables:
                rows[table] = list(txn.cursor(table))
    return rows


def random_command(store: Store[bytes], draw: random.Random) -> None:
    """Run one command that changes rows of streams or groups."""
    name = draw.choice(NAMES)
    kind = draw.randrange(16)
    if kind < 7:
        store.xadd(name, {"f": bytes(draw.randrange(120)), "n": draw.randrange(1 << 40)})
    elif kind == 7:
        store.xadd(name, {"f": "v"}, maxlen=draw.randrange(40), approximate=False)
    elif kind == 8:
        found = store.xrange(name, count=draw.randrange(1, 30))
        store.xdel(name, *[entry.id for entry in found[-3:]] or [b"1-1"])
    elif kind == 9:
        store.xtrim(name, maxlen=draw.randrange(60))
    elif kind == 10:
        store.xadd(name, {"f": "v"}, idmp=("producer", str(draw.randrange(20))))
    elif kind == 11:
        store.rename(name, draw.choice(NAMES))
    elif kind == 12 and draw.randrange(4) == 0:
        store.delete(name)
    elif kind == 13:
        store.xsetid(name, "9999999999999-0")
    else:
        store.xgroup_create(name, "g", "0", mkstream=True)


def consume(store: Store[bytes], draw: random.Random) -> None:
    """Deliver entries of a group, and acknowledge some of them."""
    name = draw.choice(NAMES)
    who = draw.choice(("x", "y"))
    for _, entries in store.xreadgroup("g", who, {name: ">"}, count=draw.randrange(1, 20)):
        if draw.randrange(3):
            store.xack(name, "g", *[entry.id for entry in entries[::2]] or [b"1-1"])


@pytest.mark.parametrize("seed", slow_but(range(8), 1, 2))
def test_a_replayed_store_equals_the_one_that_went_on(tmp_path: Path, seed: int) -> None:
    """The copy is the store of a killed process, in the middle of a deferred transaction."""
    draw = random.Random(seed)
    with Store(tmp_path / "store", sync="none", lease=False) as store:
        inside.defer_for_long(store)
        for _ in range(300):
            with suppress(CommandError):  # it has changed nothing
                (random_command if draw.randrange(3) else consume)(store, draw)
        unsaved = inside.context_of(store).deferral.unsaved
        while not unsaved.count():  # snapshots before may have made deferral pause
            store.xadd("a", {"one of": "the last"})
        shutil.copytree(store.path, tmp_path / "copy", ignore=shutil.ignore_patterns("lock.mdb"))
        wanted = all_rows(store)
    with Store(tmp_path / "copy", lease=False) as copy:
        assert copy.durability().last_recovery is not None
        assert all_rows(copy) == wanted


def test_short_reads_leave_a_deferred_transaction_open(tmp_path: Path) -> None:
    with Store(tmp_path / "store", sync="none") as store:
        inside.defer_for_long(store)
        store.xgroup_create("s", "g", "0", mkstream=True)
        for number in range(50):
            first = store.xadd("s", {"n": number})
            assert store.xlen("s") == number + 1
            assert store.xrevrange("s", count=1)[0].fields == {b"n": b"%d" % number}
            assert store.xread({"s": first}, count=5) == []
            assert store.xinfo_stream("s")["length"] == number + 1
            assert store.exists("s", "other") == 1
        deferral = inside.context_of(store).deferral
        raw = deferral.raw
        assert raw is not None
        with pytest.raises(NoSuchKeyError):
            store.xinfo_stream("other")
        with pytest.raises(CommandError):
            store.xadd("s", {"n": "late"}, id="1-1")
        store.xadd("s", {"n": 50})
        assert deferral.raw is raw  # an error that changes nothing undoes nothing
        with streamkeep.open(store.path, sync="none") as other:
            assert len(other.xrange("s")) == 51


class Halfway(Exception):
    """What makes a transaction fail after some of its commands."""


class Shared:
    """Transactions of several commands over many streams; knows what must be in the store."""

    def __init__(self, store: Store[bytes], draw: random.Random) -> None:
        self.store = store
        self.draw = draw
        self.names = [b"s%d" % number for number in range(draw.choice((2, 5, 40)))]
        self.made: dict[bytes, list[bytes]] = {}  # the entries of each stream, by its name
        self.tried = 0

    def work(self, txn: WriteTxn, fails: bool) -> dict[bytes, list[bytes]]:
        """Run some commands; return what the store has when they are committed."""
        draw = self.draw
        made = {name: list(entries) for name, entries in self.made.items()}
        for _ in range(draw.randrange(1, 9)):
            name = draw.choice(self.names)
            kind = draw.randrange(24)
            if kind == 0:
                keys.delete(txn, [name])
                made.pop(name, None)
            elif kind == 1 and name in made:
                target = draw.choice(self.names)
                keys.rename(txn, name, target, False)
                made[target] = made.pop(name)
            elif kind == 2:
                self.tried += 1
                xgroup.xgroup_create(txn, name, b"g%d" % self.tried, (0, 0), True, None)
                made.setdefault(name, [])
            elif kind == 3:
                txn.rows(STREAMS)
            elif kind == 4:
                keys.collect_garbage(txn)
            else:
                self.tried += 1
                value = b"%d " % self.tried + bytes(draw.choice((3, 90, 5000)))
                xadd.xadd(txn, name, [b"f", value], xadd.ANY_ID, False, None, None)
                made.setdefault(name, []).append(value)
        if fails:
            raise Halfway
        return made

    def run(self) -> None:
        """Run one transaction, now and then with an empty cache, and now and then failing."""
        draw = self.draw
        if draw.randrange(4) == 0:
            inside.context_of(self.store).forget()
        fails = draw.randrange(10) == 0
        with suppress(Halfway):
            self.made = inside.run_write(self.store, self.work, fails)

    def check(self, store: Store[bytes]) -> None:
        """Compare a store with what must be in it."""
        found = {
            name: [entry.fields[b"f"] for entry in store.xrange(name)] for name in store.scan_iter()
        }
        assert found == self.made


@pytest.mark.parametrize("seed", slow_but(range(60), 0, 1, 2))
def test_all_that_a_transaction_of_many_commands_changed_is_in_its_record(
    tmp_path: Path, seed: int
) -> None:
    """In memory, in the store of a killed process, and after a replay in the same process."""
    draw = random.Random(seed)
    with Store(tmp_path / "store", sync="none", lease=False) as store:
        inside.defer_for_long(store)
        shared = Shared(store, draw)
        for _ in range(120):
            shared.run()
        shutil.copytree(store.path, tmp_path / "copy", ignore=shutil.ignore_patterns("lock.mdb"))
        shared.check(store)
        wanted = all_rows(store)
    with Store(tmp_path / "copy", lease=False) as copy:
        shared.check(copy)
        found = all_rows(copy)  # without some of the garbage
        assert all(found[table] == wanted[table] for table in (KEYS, STREAMS, GROUPS))


@pytest.mark.parametrize("second", ["append", "delete"])
def test_an_append_before_a_command_on_a_stream_that_is_not_in_memory(
    tmp_path: Path, second: str
) -> None:
    with Store(tmp_path / "store", sync="none", lease=False) as store:
        store.xadd("b", {"n": "first"})
        inside.defer_for_long(store)
        for number in range(8):
            store.xadd("a", {"n": number})
        with store.pipeline() as pipe:
            pipe.xadd("a", {"n": "shared"})
            if second == "append":
                inside.context_of(store).cache.pop(b"b", None)
                pipe.xadd("b", {"n": "shared"})
            else:
                pipe.delete("b")
            pipe.execute()
        shutil.copytree(store.path, tmp_path / "copy", ignore=shutil.ignore_patterns("lock.mdb"))
    with Store(tmp_path / "copy", lease=False) as copy:
        assert copy.xrevrange("a", count=1)[0].fields == {b"n": b"shared"}
        assert copy.xlen("a") == 9
        assert copy.xlen("b") == (2 if second == "append" else 0)
