"""The consumer groups of the engine and of the model against a real redis-server.

Both follow Redis 8.10; the server on the test machine may be of 7.0. What differs between versions
is kept away from or left out of the comparison; each such place has a comment that begins with
`7.0`. Engine and model are handed the same time and must agree to the last bit; server and model
agree as far as versions and clocks let them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
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
from hypothesis.strategies import SearchStrategy

from conftest import assert_sound
from model import ZERO, Id, ModelStore
from model.group_steps import (
    COARSE_MS,
    XGroupConsumer,
    XGroupCreate,
    XGroupDestroy,
    XGroupSetId,
    XInfoConsumers,
    XInfoGroups,
    XPending,
    XPendingRange,
    XReadGroup,
    coarse,
)
from model.group_strategies import SELDOM, Places
from model.key_steps import Delete, Rename
from model.nodes import Stream
from model.pending_steps import XAck, XAutoClaim, XClaim
from model.profile import configured
from model.steps import (
    Bound,
    Failed,
    Step,
    XAdd,
    XDel,
    XInfoFull,
    XInfoStream,
    XSetId,
    XTrim,
    attempt,
    pairwise,
)
from model.strategies import PAIRS, bounds, ids, mostly, some_ids, trims
from real_redis.compare import begin, empties_a_node, on_server, on_store
from real_redis.server import RealRedis, running_redis
from stores import SYNC_MODES, open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.system.clock import ManualClock

pytestmark = pytest.mark.redis

KEYS = st.sampled_from([b"a"] * 6 + [b"b", b"missing"])
GROUPS = st.sampled_from([b"g", b"g", b"h", b"", b"none"])
CONSUMERS = st.sampled_from([b"ann", b"ann", b"bob", b"", b"cy\xff"])
COUNTS = st.one_of(st.none(), st.none(), st.integers(-1, 4))
UNITS = st.integers(0, 4)
IDLES = st.one_of(st.just(0), UNITS.map(lambda units: units * COARSE_MS + COARSE_MS // 2))


@pytest.fixture(scope="module")
def real_redis() -> Iterator[RealRedis]:
    """A server for all tests of this file."""
    with running_redis() as server:
        yield server


def now_ms() -> int:
    """Return the time; the server runs on the same machine."""
    return time.time_ns() // 1_000_000


class GroupMachine(RuleBasedStateMachine):
    """The same steps on a server, on a store, and on two models: one as Redis, one as the engine.

    As in `test_differential_stream`, the models differ in nodes that the engine rewrites.
    """

    server: ClassVar[RealRedis]

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="streamkeep-"))
        self.clock = ManualClock(0)
        self.model = ModelStore(4096, 5)
        self.engine_model = ModelStore(4096, 5, rewrites=True)
        self.store: Store = None  # type: ignore[assignment]  # `begin` opens it
        self.disturbed: set[bytes] = set()  # streams from which something was removed
        self.began = now_ms()

    @initialize(sync=SYNC_MODES)
    def begin(self, sync: Sync) -> None:
        begin(self.server, 4096, 5)
        self.store = open_at(
            self.path, sync=sync, clock=self.clock, node_max_bytes=4096, node_max_entries=5
        )
        for seq in range(1, 9):
            self.run_step(XAdd(b"a", ((b"f", b"%d" % seq),), (1, seq)))
        self.run_step(XGroupCreate(b"a", b"g", ZERO))
        self.run_step(XReadGroup(b"g", b"ann", ((b"a", ">"),), 5))

    # --- running a step ---------------------------------------------------------------------

    def run_step(self, step: Step) -> None:
        """Run a step everywhere, and compare: its answer, and what XINFO shows of its stream."""
        self.compare(step)
        for key, _ in getattr(step, "streams", ((getattr(step, "key", b""), None),)):
            if key in self.model.streams:
                self.compare(XInfoFull(key, 0))

    def compare(self, step: Step) -> None:
        """Run a step everywhere, and compare the answers."""
        theirs = on_server(self.server, step)
        self.clock.ms = now_ms()
        expected = attempt(lambda: step.on_model(self.model, self.clock.ms))
        if not isinstance(expected, Failed):
            expected = step.wire_from_model(expected)
        key = getattr(step, "key", b"")
        assert self.comparable(step, key, theirs) == self.comparable(step, key, expected)
        exact = attempt(lambda: step.on_model(self.engine_model, self.clock.ms))
        if not isinstance(exact, Failed):
            exact = step.as_server_knows(step.from_model(exact))
        assert on_store(self.store, step) == exact
        if isinstance(step, XDel | XTrim | XSetId):
            self.disturbed.add(key)
        if isinstance(step, XAdd) and step.trim is not None:
            self.disturbed.add(key)

    def comparable(self, step: Step, key: bytes, answer: Any) -> Any:
        """Return an answer without what versions do not agree on."""
        if isinstance(answer, Failed):
            return answer
        if isinstance(step, XInfoGroups):
            return [self.without_lag(key, group) for group in answer]
        if isinstance(step, XInfoConsumers):
            # 7.0: idle is the time since something was read or claimed, and there is no inactive.
            return [(consumer["name"], consumer["pending"]) for consumer in answer]
        if isinstance(step, XInfoFull):
            groups = [self.full_group(key, group) for group in answer["groups"]]
            return {**answer, "groups": groups}
        return answer

    def full_group(self, key: bytes, answer: Any) -> dict[str, Any]:
        """Return one group of XINFO STREAM FULL, with times as units since the machine began."""
        group = self.without_lag(key, pairwise(answer) if isinstance(answer, list) else answer)
        group.pop("nacked-count", None)  # 7.0: it came with 8.8
        group["pending"] = [
            [entry_id, name, self.units(time_ms), count]
            for entry_id, name, time_ms, count in group["pending"]
        ]
        consumers = []
        for one in group["consumers"]:
            consumer = pairwise(one) if isinstance(one, list) else dict(one)
            # 7.0: the time of the last delivery, as above; active-time came with 7.2.
            consumer.pop("seen-time")
            consumer.pop("active-time", None)
            consumer["pending"] = [
                [entry_id, self.units(time_ms), count]
                for entry_id, time_ms, count in consumer["pending"]
            ]
            consumers.append(consumer)
        return {**group, "consumers": consumers}

    def units(self, time_ms: int) -> int:
        """Return a point in time as whole units before the machine began, rounded."""
        return coarse(self.began - time_ms + COARSE_MS // 2 + 10 * COARSE_MS)

    def without_lag(self, key: bytes, group: dict[str, Any]) -> dict[str, Any]:
        """Leave out what is counted differently once entries were removed."""
        if key not in self.disturbed:
            return dict(group)
        # 7.0: lag and entries-read were wrong in several ways, fixed in 2024 and 2025.
        return {name: item for name, item in group.items() if name not in ("lag", "entries-read")}

    # --- drawing steps ----------------------------------------------------------------------

    @property
    def places(self) -> Places:
        """Strategies for places, for the model's present state."""
        return Places(self.model, keys=KEYS, groups=GROUPS)

    def stream(self, key: bytes) -> Stream | None:
        return self.model.streams.get(key)

    def alike(self) -> bool:
        """Say whether the nodes of the engine are those of Redis, so that `~` does the same."""
        ours = self.engine_model.streams
        return all(one.nodes == ours[key].nodes for key, one in self.model.streams.items())

    def make_consumer(self, key: bytes, group: bytes, consumer: bytes) -> None:
        """Create a consumer that a step names.

        7.0: reading and claiming create it only when there is something to give it.
        """
        if self.places.group(key, group) is not None:
            self.run_step(XGroupConsumer(key, group, consumer))

    # --- rules ------------------------------------------------------------------------------

    @rule(key=KEYS, pairs=PAIRS, ahead=st.integers(0, 2), seq=st.integers(0, 3))
    def append(self, key: bytes, pairs: Any, ahead: int, seq: int) -> None:
        stream = self.stream(key)
        last = stream.last_id if stream is not None else ZERO
        if last[0] < 1000:
            self.run_step(XAdd(key, pairs, (last[0] + ahead, None if ahead == 0 else seq)))

    @rule(data=st.data(), key=KEYS)
    def remove(self, data: st.DataObject, key: bytes) -> None:
        stream = self.stream(key)
        tilde = st.booleans() if self.alike() else st.just(False)
        trim = data.draw(mostly(st.none(), trims(stream, approximate=tilde)))
        if trim is None:
            self.run_step(XDel(key, data.draw(some_ids(stream))))
        elif stream is None or not empties_a_node(stream, trim):
            self.run_step(XTrim(key, trim))

    @rule(data=st.data(), key=KEYS, group=GROUPS, mkstream=st.booleans())
    def create_group(self, data: st.DataObject, key: bytes, group: bytes, mkstream: bool) -> None:
        # 7.0: ENTRIESREAD is taken as it is, also where it is more than was ever added.
        added = self.model.streams[key].entries_added if key in self.model.streams else 0
        read = data.draw(st.one_of(st.none(), st.none(), st.integers(-2, added)))
        last_id = data.draw(self.places.last_ids(key))
        if read is not None:
            self.disturbed.add(key)
        self.run_step(XGroupCreate(key, group, last_id, mkstream, read))

    @rule(data=st.data())
    def set_group(self, data: st.DataObject) -> None:
        key, group = data.draw(self.places.places())
        read = data.draw(st.one_of(st.none(), st.none(), st.integers(-2, 9)))
        if read is not None:
            self.disturbed.add(key)
        self.run_step(XGroupSetId(key, group, data.draw(self.places.last_ids(key)), read))

    @rule(data=st.data(), consumer=CONSUMERS, delete=SELDOM)
    def change_consumer(self, data: st.DataObject, consumer: bytes, delete: bool) -> None:
        key, group = data.draw(self.places.places())
        self.run_step(XGroupConsumer(key, group, consumer, delete))

    @rule(data=st.data(), consumer=CONSUMERS, count=COUNTS, noack=SELDOM)
    def read(self, data: st.DataObject, consumer: bytes, count: int | None, noack: bool) -> None:
        first, group = data.draw(self.places.places())

        def one(key: bytes) -> SearchStrategy[tuple[bytes, Id | str]]:
            history: SearchStrategy[Id | str] = self.places.pending_id(key, group)
            new: SearchStrategy[Id | str] = st.just(">")
            return st.tuples(st.just(key), st.one_of(new, new, history, st.just(ZERO)))

        streams = dict([data.draw(one(first))])  # redis-py names each stream once
        if data.draw(SELDOM, "another stream"):
            streams |= [data.draw(KEYS.flatmap(one))]
        if all(self.places.group(key, group) is not None for key in streams):
            for key in streams:
                self.make_consumer(key, group, consumer)
        self.run_step(XReadGroup(group, consumer, tuple(streams.items()), count, noack))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        key, group = data.draw(self.places.places())
        self.run_step(XAck(key, group, data.draw(self.places.pending_ids(key, group))))

    @rule(data=st.data(), idle=st.one_of(st.none(), IDLES))
    def look_at_pending(self, data: st.DataObject, idle: int | None) -> None:
        key, group = data.draw(self.places.places())
        self.run_step(XPending(key, group))
        everything = (Bound(None, word=b"-"), Bound(None, word=b"+"))
        self.run_step(XPendingRange(key, group, *everything, 100))
        some = st.tuples(bounds(self.stream(key)), bounds(self.stream(key)))
        start, end = data.draw(st.one_of(st.just(everything), some))
        consumer = data.draw(st.one_of(st.none(), CONSUMERS))
        count = data.draw(mostly(st.integers(1, 9), st.integers(-1, 0)))
        self.run_step(XPendingRange(key, group, start, end, count, consumer, idle))

    @rule(data=st.data(), consumer=CONSUMERS, min_idle=IDLES)
    def claim(self, data: st.DataObject, consumer: bytes, min_idle: int) -> None:
        key, group = data.draw(self.places.places())
        options: dict[str, Any] = {
            "force": data.draw(st.booleans()),
            "justid": data.draw(st.booleans()),
            "retrycount": data.draw(st.one_of(st.none(), st.none(), st.integers(-1, 5))),
            "lastid": data.draw(mostly(st.none(), ids(self.stream(key)))),
        }
        units = data.draw(st.integers(-1, 4))  # -1 is in the future
        kind = data.draw(st.sampled_from(["", "", "idle", "time"]))
        if kind:
            past = units * COARSE_MS
            options[kind] = past if kind == "idle" else self.began - past
        some = data.draw(self.places.pending_ids(key, group))
        self.make_consumer(key, group, consumer)
        self.run_step(XClaim(key, group, consumer, min_idle, some, **options))

    @rule(data=st.data(), consumer=CONSUMERS, min_idle=IDLES)
    def claim_by_itself(self, data: st.DataObject, consumer: bytes, min_idle: int) -> None:
        key, group = data.draw(self.places.places())
        start = data.draw(st.one_of(st.just(ZERO), self.places.pending_id(key, group)))
        count = data.draw(st.one_of(st.none(), st.integers(0, 3)))
        self.make_consumer(key, group, consumer)
        justid = data.draw(st.booleans())
        self.run_step(XAutoClaim(key, group, consumer, min_idle, start, count, justid))

    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        key, group = data.draw(self.places.places())
        self.run_step(XInfoStream(key))
        self.run_step(XInfoGroups(key))
        self.run_step(XInfoConsumers(key, group))
        self.run_step(XInfoFull(key, 3))

    @rule(data=st.data(), old=KEYS, new=KEYS, sure=st.integers(0, 3))
    def move_or_destroy(self, data: st.DataObject, old: bytes, new: bytes, sure: int) -> None:
        """Groups go where their stream goes, and with it."""
        if sure == 0:
            self.run_step(XGroupDestroy(*data.draw(self.places.places())))
        elif sure == 1:
            self.run_step(Rename(old, new))
            if old in self.disturbed:
                self.disturbed.add(new)
        elif sure == 2 and new != b"a":
            self.run_step(Delete((new,)))
            self.disturbed.discard(new)

    def teardown(self) -> None:
        try:
            for key in list(self.model.streams):
                self.run_step(XInfoGroups(key))
            if self.store is None:
                return
            self.store.close()
            assert_sound(self.path)
        finally:
            if self.store is not None:
                self.store.close()
            shutil.rmtree(self.path)


def test_what_redis_py_cannot_say(real_redis: RealRedis) -> None:
    """A stream that is named twice, and XCLAIM without IDs: only server and model can do that."""
    begin(real_redis, 4096, 100)
    model = ModelStore()
    entries = [XAdd(b"a", ((b"f", b"%d" % seq),), (1, seq)) for seq in range(1, 6)]
    for step in (
        *entries,
        XGroupCreate(b"a", b"g", ZERO),
        XReadGroup(b"g", b"ann", ((b"a", ">"), (b"a", ">")), 2),
        XReadGroup(b"g", b"ann", ((b"a", ">"), (b"a", ZERO), (b"a", (1, 1))), 2),
        XClaim(b"a", b"g", b"ann", 0, (), force=True),
        XClaim(b"a", b"g", b"ann", 0, (), justid=True, lastid=(1, 5)),
        XReadGroup(b"g", b"ann", ((b"a", ">"),)),
        XPending(b"a", b"g"),
    ):
        expected = step.wire_from_model(step.on_model(model, now_ms()))
        assert on_server(real_redis, step) == expected


def run_groups(real_redis: RealRedis, examples: int) -> None:
    """Run the machine on this server."""

    class Machine(GroupMachine):
        server = real_redis

    run_state_machine_as_test(Machine, settings=configured(examples))


def test_groups_answer_as_those_of_a_server(real_redis: RealRedis) -> None:
    run_groups(real_redis, 25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_groups_answer_as_those_of_a_server_thoroughly(real_redis: RealRedis) -> None:
    run_groups(real_redis, 1500)
