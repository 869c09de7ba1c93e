"""The engine and the model against a real redis-server: the same commands, the same answers.

The server on the test machine may be old: 7.0 is enough. Where its version makes a difference,
the tests keep away from it, and say so in a comment that begins with `7.0`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from model import MAX, ModelStore
from model.profile import configured
from model.steps import (
    Failed,
    Step,
    Trim,
    XAdd,
    XDel,
    XInfoStream,
    XRead,
    XSetId,
    attempt,
    friendly,
)
from model.strategies import KEYS, Steps, some_ids
from real_redis.compare import (
    begin,
    check_bytes,
    check_restored,
    empties_a_node,
    entries_of,
    on_server,
    on_store,
)
from real_redis.server import RealRedis, running_redis
from stores import SYNC_MODES, open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system.clock import ManualClock

pytestmark = pytest.mark.redis

COUNTS = st.one_of(st.none(), st.integers(-1, 5))
FUTURE = 1 << 60  # milliseconds that no server's clock has reached


@pytest.fixture(scope="module")
def real_redis() -> Iterator[RealRedis]:
    """A server for all tests of this file."""
    with running_redis() as server:
        yield server


# --- all commands -------------------------------------------------------------------------------


class Differential(RuleBasedStateMachine):
    """The same steps on a server, on a store, and on two models: one as Redis, one as the engine.

    The models differ in nothing but nodes that the engine rewrites without their tombstones. While
    they do differ there, `~` is not used, since it would remove different entries.
    """

    server: ClassVar[RealRedis]

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="streamkeep-"))
        self.model = ModelStore()
        self.engine_model = ModelStore()
        self.store: Store | None = None

    @initialize(
        sync=SYNC_MODES,
        max_bytes=st.sampled_from([300, 800, 120, 4096, 60, 0]),
        max_entries=st.sampled_from([5, 10, 3, 2, 1, 100, 0]),
        in_the_future=st.booleans(),
    )
    def begin(self, sync: Sync, max_bytes: int, max_entries: int, in_the_future: bool) -> None:
        begin(self.server, max_bytes, max_entries)
        self.model = ModelStore(max_bytes, max_entries)
        self.engine_model = ModelStore(max_bytes, max_entries, rewrites=True)
        self.store = open_at(
            self.path,
            sync=sync,
            clock=ManualClock(0),
            node_max_bytes=max_bytes,
            node_max_entries=max_entries,
        )
        if in_the_future:  # so that the server's time does not come into its IDs
            self.run_step(XAdd(b"a", ((b"f", b"v"),), (FUTURE, 0)))

    def alike(self, key: bytes) -> bool:
        """Say whether the nodes of a stream are those of Redis."""
        theirs, ours = self.model.streams.get(key), self.engine_model.streams.get(key)
        return (theirs.nodes if theirs else []) == (ours.nodes if ours else [])

    def steps(self) -> Steps:
        # 7.0: XREAD does not know `+` as an ID.
        tilde = st.booleans() if all(map(self.alike, self.model.streams)) else st.just(False)
        return Steps(self.model, approximate=tilde, counts=COUNTS, words=("$",))

    def run_step(self, step: Step) -> None:
        """Run a step everywhere, and compare."""
        assert self.store is not None
        if isinstance(step, XAdd) and step.new_id is None:
            stream = self.model.streams.get(step.key)
            if stream is None or stream.last_id[0] < FUTURE:
                step = replace(step, new_id=(0 if stream is None else stream.last_id[0], None))
        if differs_in_7_0(self.model, step):
            return
        theirs = on_server(self.server, step)
        expected = attempt(lambda: step.on_model(self.model, 0))
        ours = attempt(lambda: step.on_model(self.engine_model, 0))
        if isinstance(expected, Failed):
            assert theirs == expected
        else:
            assert theirs == step.wire_from_model(expected)
        # redis-py, and so the engine, refuses a COUNT below 1, which a server takes.
        count = getattr(step, "count", None)
        if count is None or count >= 1 or isinstance(step, XInfoStream):
            answer = on_store(self.store, step)
            if not isinstance(ours, Failed):
                ours = step.as_server_knows(step.from_model(ours))
            assert answer == ours

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        step = data.draw(self.steps().anything())
        self.run_step(step)
        if isinstance(key := getattr(step, "key", None), bytes):
            self.run_step(XInfoStream(key))

    @rule(data=st.data(), key=KEYS, count=st.integers(2, 30), size=st.sampled_from([0, 1, 20]))
    def append_alike(self, data: st.DataObject, key: bytes, count: int, size: int) -> None:
        """Fill some nodes quickly, in the way of a stream whose IDs come from elsewhere."""
        stream = self.model.streams.get(key)
        ms = stream.last_id[0] if stream is not None else 0
        for number in range(count):
            pairs = ((b"f", b"%d" % number), (b"g", b"x" * size))
            self.run_step(XAdd(key, pairs, (ms, None)))

    @rule(data=st.data(), key=KEYS)
    def delete_some(self, data: st.DataObject, key: bytes) -> None:
        """Make tombstones."""
        self.run_step(XDel(key, data.draw(some_ids(self.model.streams.get(key)))))
        self.run_step(XInfoStream(key))

    def teardown(self) -> None:
        try:
            if self.store is not None:
                self.compare_all(self.store)
        finally:
            if self.store is not None:
                self.store.close()
            shutil.rmtree(self.path)

    def compare_all(self, store: Store) -> None:
        """Compare what is left, to the last byte where the engine rewrote nothing."""
        assert sorted(self.server.call(b"KEYS", b"*")) == store.keys()
        for key in self.model.streams:
            assert self.server.call(b"XRANGE", key, b"-", b"+") == entries_of(store, key)
            check_restored(self.server, store, key)
            if self.alike(key):
                check_bytes(self.server, store, key)


def differs_in_7_0(model: ModelStore, step: Step) -> bool:
    """Say whether an old server is known to answer a step differently."""
    stream = model.streams.get(getattr(step, "key", b""))
    if stream is None:
        return False
    if isinstance(step, XSetId):
        # 7.0: max_deleted_id is no lower limit of the last ID.
        return step.last_id < stream.max_deleted_id
    if isinstance(step, XAdd) and step.new_id == (stream.last_id[0], None):
        # 7.0: `ms-*` after the last ID of its millisecond says that elements are too large.
        return stream.last_id[1] == MAX
    trim: Trim | None = getattr(step, "trim", None)
    return trim is not None and empties_a_node(stream, trim)


# --- what the machine leaves out ----------------------------------------------------------------


@pytest.fixture
def server(real_redis: RealRedis) -> RealRedis:
    """The server, empty, with Redis's own limits."""
    begin(real_redis, 4096, 100)
    return real_redis


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store with the same limits."""
    options: dict[str, Any] = {"node_max_bytes": 4096, "node_max_entries": 100}
    with open_at(tmp_path / "store", clock=ManualClock(0), **options) as store:
        yield store


def test_ids_come_from_the_clock_as_on_a_server(server: RealRedis, tmp_path: Path) -> None:
    """The machine keeps its IDs away from the server's time; here they follow it."""
    clock = ManualClock(0)
    model = ModelStore()
    with open_at(tmp_path / "store", clock=clock) as store:
        for number in range(300):
            key = b"%d" % (number % 3)
            step = XAdd(key, ((b"f", b"v"),), None)
            if number == 100:
                step = XAdd(key, ((b"f", b"v"),), (FUTURE, MAX - 50))  # runs into the next ms
            theirs = on_server(server, step)
            clock.ms = int(theirs.split(b"-")[0])
            assert step.wire_from_model(step.on_model(model, clock.ms)) == theirs
            assert on_store(store, step) == theirs


def test_a_stream_named_twice_is_read_twice(server: RealRedis) -> None:
    """redis-py takes a dict of streams, so that only server and model can be compared."""
    model = ModelStore()
    for step in (
        XAdd(b"a", ((b"f", b"1"),), (1, 1)),
        XAdd(b"a", ((b"f", b"2"),), (1, 2)),
        XRead(((b"a", (0, 0)), (b"b", (0, 0)), (b"a", (1, 1))), 1),
        XRead(((b"a", "$"), (b"b", "$")), None),
    ):
        assert on_server(server, step) == step.wire_from_model(step.on_model(model, 0))


class NodeMachine(RuleBasedStateMachine):
    """Streams with nodes of every kind, which a server must accept: pages and Redis's limits."""

    server: ClassVar[RealRedis]

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="streamkeep-"))
        self.model = ModelStore()
        self.store: Store | None = None

    @initialize(
        sync=SYNC_MODES,
        limits=st.sampled_from([{}, {}, {"node_max_bytes": 500, "node_max_entries": 20}]),
    )
    def begin(self, sync: Sync, limits: dict[str, Any]) -> None:
        begin(self.server, 4096, 100)
        self.store = open_at(self.path, sync=sync, clock=ManualClock(0), **limits)

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        steps = Steps(self.model, keys=st.just(b"a"), approximate=st.just(False))
        self.run_step(data.draw(steps.appends()))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        steps = Steps(self.model, keys=st.just(b"a"), approximate=st.just(False))
        self.run_step(data.draw(steps.removals()))

    @rule(count=st.integers(2, 80), size=st.sampled_from([0, 1, 20, 100, 4000]))
    def append_alike(self, count: int, size: int) -> None:
        assert self.store is not None
        stream = self.model.streams.get(b"a")
        if stream is not None and stream.last_id[0] == MAX:
            return
        entries = [((b"f", b"%d" % number), (b"g", b"x" * size)) for number in range(count)]
        added = [self.model.xadd(b"a", pairs, now_ms=0) for pairs in entries]
        assert self.store.xadd_many(b"a", entries) == friendly(added)

    def run_step(self, step: Step) -> None:
        assert self.store is not None
        expected = attempt(lambda: step.on_model(self.model, 0))
        wanted = expected if isinstance(expected, Failed) else step.from_model(expected)
        assert on_store(self.store, step) == wanted

    @rule()
    def restore(self) -> None:
        assert self.store is not None
        if self.store.exists(b"a"):
            check_restored(self.server, self.store, b"a")

    def teardown(self) -> None:
        try:
            if self.store is not None:
                self.restore()
        finally:
            if self.store is not None:
                self.store.close()
            shutil.rmtree(self.path)


@pytest.mark.slow
def test_a_server_accepts_every_node(real_redis: RealRedis) -> None:
    class Machine(NodeMachine):
        server = real_redis

    run_state_machine_as_test(Machine, settings=configured(15))


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 125, 126, 4095, 4096, 16377, 16379, 70_000])
def test_a_server_reads_values_of_every_size(server: RealRedis, store: Store, size: int) -> None:
    # 7.0: a value of 16378 bytes has a longer backlen there than from Redis 8.10 on.
    for number, value in enumerate((b"x" * size, b"7" * size, b"-" + b"7" * size)):
        store.xadd("s", {b"f" * size: value, b"g": value}, id=f"1-{number + 1}")
    check_restored(server, store, b"s")


# --- how long ------------------------------------------------------------------------------------


def run_differential(real_redis: RealRedis, examples: int) -> None:
    """Run the machine on this server."""

    class Machine(Differential):
        server = real_redis

    run_state_machine_as_test(Machine, settings=configured(examples))


def test_all_three_answer_alike(real_redis: RealRedis) -> None:
    run_differential(real_redis, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_three_answer_alike_thoroughly(real_redis: RealRedis) -> None:
    run_differential(real_redis, 1000)
