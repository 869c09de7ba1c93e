"""A group continues where it stopped, after any change of the node."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import streamkeep
from inside import run_write
from streamkeep.engine.tables.read_cursor import ReadCursor
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, next_id
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.node.node import PAIRS, SlotCursor, read_header
from streamkeep.format.node.ranges import Range, resume_cursor

pytestmark = pytest.mark.both_modes

KEY, GROUP, CONSUMER = b"s", b"g", b"c"
Store = streamkeep.Store[bytes]


@pytest.fixture(params=["limits", "pages"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store whose nodes hold few entries, and one whose nodes fill pages."""
    most = 7 if request.param == "limits" else None
    with streamkeep.open(tmp_path / "store", sync="none", node_max_entries=most) as opened:
        yield opened


def add(store: Store, numbers: range) -> None:
    """Append entries 1-0, 2-0, ... as their numbers say."""
    entries = [{b"n": b"%d" % number, b"pad": b"x" * (number % 50)} for number in numbers]
    store.xadd_many(KEY, entries, ids=[b"%d-0" % number for number in numbers])


def deliver(store: Store, count: int) -> list[bytes]:
    """Return the IDs of the next entries, which must be the right ones with the right fields."""
    found = store.xreadgroup(GROUP, CONSUMER, {KEY: b">"}, count=count)
    if not found:
        return []
    for entry in found[0][1]:
        assert entry.fields[b"n"] + b"-0" == entry.id
    return [entry.id for entry in found[0][1]]


def expected(store: Store, count: int) -> list[bytes]:
    """Return what is next by the group's own record, read from the start of the node."""
    after = store.xinfo_groups(KEY)[0]["last-delivered-id"]
    return [entry.id for entry in store.xrange(KEY, b"(" + after, b"+", count=count)]


def test_every_delivery_is_what_a_read_from_the_start_finds(store: Store) -> None:
    rng = random.Random(7)
    store.xgroup_create(KEY, GROUP, id=0, mkstream=True)
    top = 0

    def append() -> None:
        nonlocal top
        size = rng.choice((1, 1, 2, 9, 70))
        add(store, range(top + 1, top + 1 + size))
        top += size

    def remove() -> None:
        live = [entry.id for entry in store.xrange(KEY)]
        if live:
            store.xdel(KEY, *rng.sample(live, min(len(live), rng.choice((1, 3, 40)))))

    def trim() -> None:
        store.xtrim(KEY, maxlen=rng.choice((0, 3, 50, 200)), approximate=rng.random() < 0.5)

    def set_id() -> None:
        store.xgroup_setid(KEY, GROUP, rng.randrange(max(0, top - 60), top + 1))

    def give_up() -> None:
        transaction = store.transaction()
        with pytest.raises(ZeroDivisionError), transaction as txn:
            txn.xreadgroup(GROUP, CONSUMER, {KEY: b">"}, count=3)
            raise ZeroDivisionError

    def start_over() -> None:
        nonlocal top
        store.delete(KEY)
        store.xgroup_create(KEY, GROUP, id=0, mkstream=True)
        top = 0

    actions: list[Callable[[], None]] = [append] * 8 + [remove, remove, trim, set_id, give_up]
    delivered = 0
    for step in range(600):
        if step % 250 == 249:
            start_over()
        if rng.random() < 0.4:
            rng.choice(actions)()
        count = rng.choice((1, 1, 1, 2, 5, 30))
        wanted = expected(store, count)
        assert deliver(store, count) == wanted
        delivered += len(wanted)
    assert delivered > 800


def test_the_node_is_not_looked_up_again_while_it_is_the_same(store: Store) -> None:
    add(store, range(1, 200))
    store.xgroup_create(KEY, GROUP, id=0)
    resume = ReadCursor()

    def read(txn: WriteTxn, after: int, count: int) -> list[int]:
        stream = txn.find_stream(KEY)
        assert isinstance(stream, Stream)
        wanted = Range(*next_id(after, 0), MAX, MAX, count, False, int(PAIRS))
        wanted.ids = []
        out: list[object] = []
        resume.read(txn, stream, (after, 0), wanted, out)
        return [ms for ms, _ in wanted.ids]

    assert run_write(store, read, 0, 2) == [1, 2]
    cursor = resume._cursor
    assert run_write(store, read, 2, 2) == [3, 4]
    assert resume._cursor is cursor
    assert run_write(store, read, 1, 1) == [2]  # elsewhere
    assert resume._cursor is not cursor


def test_a_damaged_node_leaves_no_cursor_behind(store: Store) -> None:
    resume = ReadCursor()
    add(store, range(1, 4))

    def read(txn: WriteTxn) -> None:
        stream = txn.find_stream(KEY)
        assert stream is not None
        whole = stream.tail_data()
        stream.replace_tail(
            stream.tail_ms, stream.tail_seq, whole[:-30] + b"\xfe" * 29 + b"\xff", b""
        )
        wanted = Range(1, 0, MAX, MAX, 9, False, int(PAIRS))
        wanted.ids = []
        with pytest.raises(CorruptionError):
            resume.read(txn, stream, (0, 0), wanted, [])
        assert resume._cursor is None
        stream.replace_tail(stream.tail_ms, stream.tail_seq, whole, b"")

    run_write(store, read)


def node(count: int, width: int = 1) -> NodeBuilder:
    """Return a node with the entries 1-0, 2-0, ..."""
    fields = [b"f%d" % index for index in range(width)]
    builder = NodeBuilder(1, 0, fields)
    for number in range(1, count + 1):
        builder.append(number, 0, [part for name in fields for part in (name, b"%d" % number)])
    return builder


@pytest.mark.parametrize("count", [3, 126, 127, 128, 4095])
def test_a_cursor_goes_on_in_a_node_that_has_grown(count: int) -> None:
    builder = node(count)
    cursor = SlotCursor(read_header(builder.listpack(), 1, 0))
    while cursor.next():
        cursor.skip_fields()
    assert resume_cursor(cursor, builder.listpack()) is cursor
    builder.append(count + 1, 5, [b"f0", b"more"])
    moved = resume_cursor(cursor, builder.listpack())
    assert moved is not None
    assert moved.next()
    assert moved.id() == (count + 1, 5)
    assert moved.pairs() == [b"f0", b"more"]
    assert moved.index == count


@pytest.mark.parametrize("other", [node(2), node(9, width=2)])
def test_a_cursor_does_not_go_on_in_another_node(other: NodeBuilder) -> None:
    cursor = SlotCursor(read_header(node(9).listpack(), 1, 0))
    for _ in range(4):
        cursor.next()
        cursor.skip_fields()
    assert resume_cursor(cursor, other.listpack()) is None
