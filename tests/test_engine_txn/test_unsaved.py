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
from streamkeep.format.core.errors import CommandError, NoSuchKeyError
from streamkeep.format.core.keys import META, TABLES
from tiers import slow_but

Rows = dict[int, list[tuple[bytes, bytes]]]
STREAMS = ("a", "b", "c")


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
    name = draw.choice(STREAMS)
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
        store.rename(name, draw.choice(STREAMS))
    elif kind == 12 and draw.randrange(4) == 0:
        store.delete(name)
    elif kind == 13:
        store.xsetid(name, "9999999999999-0")
    else:
        store.xgroup_create(name, "g", "0", mkstream=True)


def consume(store: Store[bytes], draw: random.Random) -> None:
    """Deliver entries of a group, and acknowledge some of them."""
    name = draw.choice(STREAMS)
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
