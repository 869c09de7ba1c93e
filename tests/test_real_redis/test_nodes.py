"""Macro nodes of every kind, which a real redis-server has to accept, byte by byte.

What commands answer is compared in `test_server/test_differential.py`, through the server of a
store; the engine and the model in `test_properties`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from model import MAX, ModelStore
from model.profile import configured
from model.steps import Failed, Step, attempt, friendly
from model.strategies import Steps
from real_redis.compare import begin, check_restored
from real_redis.server import RealRedis, running_redis
from stores import SYNC_MODES, open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError

pytestmark = pytest.mark.redis

FUTURE = 1 << 60  # milliseconds that no server's clock has reached


@pytest.fixture(scope="module")
def real_redis() -> Iterator[RealRedis]:
    with running_redis() as server:
        yield server


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
    clock = ManualClock(0)
    with open_at(tmp_path / "store", clock=clock) as store:
        for number in range(300):
            key, entry_id = b"%d" % (number % 3), b"*"
            if number == 100:
                entry_id = b"%d-%d" % (FUTURE, MAX - 50)  # runs into the next ms
            theirs = server.call(b"XADD", key, entry_id, b"f", b"v")
            clock.ms = int(theirs.split(b"-")[0])
            assert store.xadd(key, {b"f": b"v"}, id=entry_id) == theirs


class NodeMachine(stateful.RuleBasedStateMachine):
    """Streams with nodes of every kind, which a server must accept: pages and Redis's limits."""

    server: ClassVar[RealRedis]

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="streamkeep-"))
        self.model = ModelStore()
        self.store: Store | None = None

    @stateful.initialize(
        sync=SYNC_MODES,
        limits=st.sampled_from([{}, {}, {"node_max_bytes": 500, "node_max_entries": 20}]),
    )
    def begin(self, sync: Sync, limits: dict[str, Any]) -> None:
        begin(self.server, 4096, 100)
        self.store = open_at(self.path, sync=sync, clock=ManualClock(0), **limits)

    @stateful.rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        steps = Steps(self.model, keys=st.just(b"a"), approximate=st.just(False))
        self.run_step(data.draw(steps.appends()))

    @stateful.rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        steps = Steps(self.model, keys=st.just(b"a"), approximate=st.just(False))
        self.run_step(data.draw(steps.removals()))

    @stateful.rule(count=st.integers(2, 80), size=st.sampled_from([0, 1, 20, 100, 4000]))
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
        assert _on_store(self.store, step) == wanted

    @stateful.rule()
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


def _on_store(store: Store, step: Step) -> Any:
    try:
        return step.from_store(step.on_store(store))
    except CommandError as error:
        return Failed(error.redis_error)


@pytest.mark.slow
def test_a_server_accepts_every_node(real_redis: RealRedis) -> None:
    class Machine(NodeMachine):
        server = real_redis

    stateful.run_state_machine_as_test(Machine, settings=configured(15))


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 125, 126, 4095, 4096, 16377, 16379, 70_000])
def test_a_server_reads_values_of_every_size(server: RealRedis, store: Store, size: int) -> None:
    # 7.0: a value of 16378 bytes has a longer backlen there than from Redis 8.10 on.
    for number, value in enumerate((b"x" * size, b"7" * size, b"-" + b"7" * size)):
        store.xadd("s", {b"f" * size: value, b"g": value}, id=f"1-{number + 1}")
    check_restored(server, store, b"s")
