"""How much work a command on groups does when very much is pending, in calls of LMDB."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from conftest import NOW_MS
from inside import begin_read, begin_write, environment_of, flush_each_commit, flush_now
from stopped import killed
from stores import Open, open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.keys import GARBAGE_STEP
from streamkeep.engine.commands.xack import xack
from streamkeep.engine.commands.xpending import xpending
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.keys import CONSUMER_PEL, CONSUMERS, GARBAGE, GROUPS, PEL, PEL_ORDER
from test_engine_commands.test_groups import FIELDS, NEW, prepare

MANY: Final = 30_000
ROWS_OF_GROUPS: Final = (GROUPS, CONSUMERS, PEL, PEL_ORDER, CONSUMER_PEL, GARBAGE)


class Work:
    """Calls of LMDB, by name; `transactions` has the calls up to each commit."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.transactions = [0]

    def count(self, name: str) -> None:
        self.calls[name] += 1
        self.transactions[-1] += 1

    def note(self, name: str) -> None:
        """Begin with the next commit when LMDB has one."""
        if name == "flush:ended":
            self.transactions.append(0)

    @property
    def total(self) -> int:
        return self.calls.total()


class Counting:
    """Takes the place of an LMDB environment, transaction or cursor, and counts calls."""

    COUNTED: Final = ("get", "put", "delete", "next", "prev", "first", "last", "set_range")

    def __init__(self, wrapped: Any, work: Work) -> None:
        self._wrapped = wrapped
        self._work = work

    def __getattr__(self, name: str) -> Any:
        if name in self.COUNTED:
            self._work.count(name)
        return getattr(self._wrapped, name)

    def begin(self, *args: Any) -> Counting:
        return Counting(self._wrapped.begin(*args), self._work)

    def cursor(self, *args: Any) -> Counting:
        return Counting(self._wrapped.cursor(*args), self._work)

    def __iter__(self) -> Iterator[Any]:
        for item in self._wrapped:
            self._work.count("next")
            yield item


@contextmanager
def counted(store: Store) -> Iterator[Work]:
    """Count what LMDB is asked for, from an empty cache on."""
    environment: Any = environment_of(store)
    environment.checkpointer.stop()  # what its thread asks for is not what is counted
    environment.checkpoints.pin()  # as before any first commit
    context = environment.context
    context.forget()
    work, raw = Work(), context.raw
    context.raw = Counting(raw, work)
    failpoints.watch(work.note)
    try:
        yield work
    finally:
        context.raw = raw


@pytest.fixture(scope="module")
def many_pending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store where very much is pending for one consumer, and some for another."""
    path = tmp_path_factory.mktemp("many") / "store"
    clock = ManualClock(NOW_MS - 2000)
    with open_at(path, sync="none", clock=clock) as store:
        prepare(store, MANY)
        store.xadd_many("s", [FIELDS] * 100)
        clock.ms += 1000
        store.xreadgroup("g", "bob", NEW)
    return path


@pytest.fixture
def many(open_store: Open, tmp_path: Path, many_pending: Path) -> Store:
    """A copy of that store, a second later."""
    shutil.copytree(many_pending, tmp_path / "store")
    return open_store()


def test_claiming_costs_what_is_claimed(many: Store) -> None:
    """Oldest first, wherever they are: at worst as many pages as entries, and not all of them."""
    with counted(many) as work:
        ((_, entries),) = many.xreadgroup("g", "cy", NEW, count=10, claim_min_idle_time=1)
    assert len(entries) == 10
    assert work.total < 100


def test_claiming_by_id_looks_at_ten_times_as_many(many: Store) -> None:
    for min_idle, claimed in ((3000, 0), (1, 10)):
        with counted(many) as work:
            cursor, entries, gone = many.xautoclaim("s", "g", "cy", min_idle, count=10)
        assert (len(entries), gone) == (claimed, [])
        assert many.xpending_range("s", "g", "-", cursor, MANY)[-1]["message_id"] == cursor
        assert work.total < 60


# What is looked at, how much it finds, and what that may cost.
LOOKS: Final[list[tuple[Callable[[Store], Any], int, int]]] = [
    # It ends at the first one that is too young.
    (lambda one: one.xreadgroup("g", "cy", NEW, count=10, claim_min_idle_time=3000), 0, 30),
    (lambda one: one.xpending("s", "g")["consumers"], 2, 30),
    (lambda one: one.xpending_range("s", "g", "-", "+", 10), 10, 60),
    (lambda one: one.xpending_range("s", "g", "-", "+", 10, "bob"), 10, 60),
    (lambda one: one.xreadgroup("g", "bob", {"s": "0"}, count=10)[0][1], 10, 60),
    (lambda one: one.xinfo_stream("s", full=True)["groups"][0]["pending"], 10, 60),
]


def test_a_look_at_little_costs_little(many: Store) -> None:
    for number, (look, found, most) in enumerate(LOOKS):
        with counted(many) as work:
            assert len(look(many)) == found, number
        assert work.total < most, number


def test_acknowledging_costs_the_pages_that_change(many: Store) -> None:
    ids = [row["message_id"] for row in many.xpending_range("s", "g", "-", "+", 200)]
    with counted(many) as work:
        assert many.xack("s", "g", *ids) == 200
    assert work.total < 60


def test_a_destroyed_group_is_removed_in_bounded_steps(many: Store) -> None:
    flush_each_commit(many)
    with counted(many) as work:
        assert many.xgroup_destroy("s", "g")
    destroying, *collecting = work.transactions
    assert destroying < 20
    assert len(collecting) > 1
    assert max(collecting) < 3 * GARBAGE_STEP + 50
    assert many.xinfo_groups("s") == []
    with many.snapshot() as snapshot:
        assert sum(snapshot.txn.rows(table) for table in ROWS_OF_GROUPS) == 0


def test_many_calls_of_a_transaction_write_the_rows_of_a_group_once(many: Store) -> None:
    ids = [row["message_id"] for row in many.xpending_range("s", "g", "-", "+", 20)]
    txn = begin_write(many)
    for entry_id in ids:
        assert xack(txn, b"s", b"g", [entry_id]) == 1
    txn.save()
    assert txn.count_changes() < 8
    txn.commit()
    assert not any((txn.changes, txn.streams, txn.cached_rows))  # the group refers to it


def test_commands_of_a_snapshot_decode_a_stream_and_a_group_once(many: Store) -> None:
    with counted(many) as work, begin_read(many) as txn:
        txn.keep_found()
        found = xpending(txn, b"s", b"g")
        before = work.calls["get"]
        assert xpending(txn, b"s", b"g") == found
        assert work.calls["get"] == before
    assert many.xack("s", "g", str(StreamId(*found.lowest or (0, 0)))) == 1
    with begin_read(many) as txn:
        txn.keep_found()
        assert xpending(txn, b"s", b"g").total == found.total - 1


def test_streams_of_one_transaction_write_the_counter_of_their_numbers_once(store: Store) -> None:
    txn = begin_write(store)
    numbers = [txn.create_stream(b"%d" % each).number for each in range(10)]
    txn.save()
    assert txn.count_changes() == 3 * 10 + 1  # names, the way back, and the streams
    numbers.append(txn.create_stream(b"more").number)
    txn.commit()
    txn = begin_write(store)
    assert [*numbers, txn.create_stream(b"later").number] == list(range(1, 13))
    txn.abort()


def test_groups_are_not_counted_for_each_call(store: Store) -> None:
    for number in range(300):
        store.xgroup_create("s", f"g{number}", mkstream=True)
    flush_now(store)
    with counted(store) as work:
        assert store.xinfo_stream("s")["groups"] == 300
        assert work.total > 300
        before = work.total
        assert store.xinfo_stream("s")["groups"] == 300
    assert work.total - before < 20


def test_groups_are_counted_again_only_if_another_process_created_or_destroyed_one(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store(sync="none")
    for number in range(300):
        store.xgroup_create("s", f"g{number}", mkstream=True)
    store.xadd_many("s", [FIELDS] * 20)
    flush_now(store)

    def elsewhere(work: Callable[[Store], object]) -> None:
        killed(lambda: work(Store(tmp_path / "store", sync="none")))

    def flushed(other: Store) -> None:
        begin_write(other).abort()
        flush_now(other)

    def destroyed(other: Store) -> None:
        other.xgroup_destroy("s", "other")
        flushed(other)

    with counted(store) as work:
        assert store.xinfo_stream("s")["groups"] == 300
        for change in (
            lambda other: other.xreadgroup("g7", "c", NEW, count=1),
            lambda other: other.xreadgroup("g7", "d", NEW, count=2),
            lambda other: other.xadd("s", FIELDS),
            flushed,
            lambda other: other.xreadgroup("g7", "c", NEW, count=1),
        ):
            elsewhere(change)
            before = work.total
            assert store.xinfo_stream("s")["groups"] == 300
            assert work.total - before < 40
        elsewhere(lambda other: other.xgroup_create("s", "other"))
        assert store.xinfo_stream("s")["groups"] == 301
        elsewhere(destroyed)
        assert store.xinfo_stream("s")["groups"] == 300
        elsewhere(lambda other: other.xgroup_destroy("s", "g7"))
        elsewhere(flushed)
        assert store.xinfo_stream("s")["groups"] == 299


@pytest.mark.parametrize("approximate", [False, True])
def test_an_append_asks_the_group_that_holds_the_stream_and_no_other(
    open_store: Open, approximate: bool
) -> None:
    store = open_store(sync="none", node_max_entries=10)
    store.xadd_many("s", [FIELDS] * 100)
    store.set_retention("s", maxlen=50, keep_unacknowledged=True, approximate=approximate)
    for number in range(300):
        store.xgroup_create("s", f"g{number}")
    store.xgroup_create("s", "slow", 0)
    store.xreadgroup("slow", "c", NEW, count=15)
    flush_now(store)
    with counted(store) as work:
        store.xadd("s", FIELDS)
        assert work.total > 300
        before = work.total
        for _ in range(10):
            store.xadd("s", FIELDS)
        assert work.total - before < 100
    assert store.xlen("s") == 111
    store.xack(
        "s", "slow", *(one["message_id"] for one in store.xpending_range("s", "slow", "-", "+", 12))
    )
    store.xadd("s", FIELDS)
    assert store.xlen("s") == 112 - (10 if approximate else 12)
    store.xgroup_destroy("s", "slow")
    store.xadd("s", FIELDS)
    assert store.xlen("s") in (50, 53)


def test_an_append_asks_no_group_before_a_whole_node_is_too_much(open_store: Open) -> None:
    store = open_store(sync="none", node_max_entries=50)
    store.xadd_many("s", [FIELDS] * 200)
    store.set_retention("s", maxlen=200, keep_unacknowledged=True, approximate=True)
    for number in range(300):
        store.xgroup_create("s", f"g{number}")
        store.xgroup_setid("s", f"g{number}", "$")
    flush_now(store)
    with counted(store) as work:
        for _ in range(49):
            store.xadd("s", FIELDS)
        assert work.total < 300
        for number in range(300):
            store.xgroup_setid("s", f"g{number}", "$")
        store.xadd("s", FIELDS)
        assert work.total > 300
    assert store.xlen("s") == 200


def test_what_was_trimmed_before_costs_nothing(open_store: Open) -> None:
    store = open_store(sync="none", node_max_entries=2)
    store.xadd_many("s", [FIELDS] * 4000)
    flush_now(store)
    with counted(store) as work:
        assert store.xtrim("s", maxlen=2000, approximate=False) == 2000
        assert work.total < 10 * 1000
        for look, most in (
            (lambda: store.xtrim("s", maxlen=1998, approximate=False), 30),
            (lambda: store.xrange("s", count=1), 10),
            (lambda: store.xrevrange("s", count=1998), 1100),
            (lambda: store.xinfo_stream("s"), 20),
        ):
            before = work.total
            assert look()
            assert work.total - before < most
