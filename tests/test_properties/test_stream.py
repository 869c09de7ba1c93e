"""The engine against the model: random commands, the same answers, the same error lines.

Two machines run the same rules. `RedisLimits` opens stores with small node limits, where nodes
must be those of Redis, except for nodes that the engine rewrites without tombstones: there the
model rewrites, too (`model.nodes`). `PageNodes` opens them as users do, with nodes that fill
pages; then the number of nodes and what `~` removes are the engine's own, and the machine checks
what `~` promises instead: whole nodes, the oldest, and never fewer entries than asked for stay.
The model of `PageNodes` rewrites nothing, so it also shows that nothing else can tell.

`model.profile` says how to run more; the tests marked `slow` run twenty times as many.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from inside import begin_read
from model import ModelError, ModelStore, NewId, Pairs, id_text
from model.profile import configured
from model.steps import Failed, Step, Trim, XAdd, XDel, XInfoStream, XRange, XTrim, attempt
from model.strategies import KEYS, PAIRS, SMALL, Steps, bounds, mostly, new_ids, some_ids
from model.values import ZERO
from stores import SYNC_MODES
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.format.node.check import validate
from streamkeep.format.node.node import peek_counts
from test_properties.store_machine import THOROUGH, StoreMachine, outcome


class StoredNode(NamedTuple):
    """A macro node as it is stored."""

    key: tuple[int, int]
    live: int
    last_slot: tuple[int, int]


def stored_nodes(store: Store, name: bytes) -> list[StoredNode]:
    """Return the nodes of a stream, every byte of them checked, and its counters against them."""
    txn = begin_read(store)
    try:
        stream = txn.find_stream(name)
        if stream is None:
            return []
        nodes: list[StoredNode] = []
        slots = size = 0
        walk = NodeWalk(txn, stream)
        found = walk.first()
        while found:
            data = walk.load()
            ends = validate(data, walk.ms, walk.seq)
            nodes.append(StoredNode((walk.ms, walk.seq), int(ends.live), ends.last_slot))
            size += len(data)
            slots += sum(peek_counts(data))
            found = walk.next()
        record = stream.record
        assert len(nodes) == stream.nodes()
        assert size == stream.node_bytes()
        assert sum(node.live for node in nodes) == record.length
        assert slots - record.length == record.tombstones
        for before, after in pairwise(nodes):
            assert before.last_slot < after.key
        if nodes:
            assert nodes[-1].last_slot <= (record.last_ms, record.last_seq)
        return nodes
    finally:
        txn.close()


@dataclass(frozen=True)
class XAddMany(Step):
    """Several XADD at once, all of them or none; a server has no such command."""

    key: bytes
    entries: tuple[Pairs, ...]
    ids: tuple[NewId, ...] | None = None

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        before = model.copy()
        ids = self.ids or (None,) * len(self.entries)
        if ZERO in ids:  # as with XADD, it is refused before the stream is looked at
            return model.xadd(self.key, self.entries[0], ZERO, now_ms=now_ms)
        try:
            return [
                model.xadd(self.key, pairs, new_id, now_ms=now_ms)
                for pairs, new_id in zip(self.entries, ids, strict=True)
            ]
        except ModelError:
            model.streams = before.streams
            raise

    def on_store(self, commands: Any) -> Any:
        texts = self.ids and [XAdd(self.key, (), new_id).id_text for new_id in self.ids]
        return commands.xadd_many(self.key, self.entries, ids=texts)


class StreamMachine(StoreMachine):
    """The rules; subclasses say how stores are opened."""

    exact_nodes = False  # whether the model knows the nodes of the store

    def steps(self, *, approximate: bool) -> Steps:
        return Steps(self.model, approximate=st.booleans() if approximate else st.just(False))

    def shown(self, step: Step, answer: Any) -> Any:
        """Take out of an answer what the model cannot know."""
        if isinstance(step, XInfoStream) and isinstance(answer, dict) and not self.exact_nodes:
            return {name: item for name, item in answer.items() if name != "radix-tree-keys"}
        return answer

    def run_step(self, step: Step) -> None:
        trim = getattr(step, "trim", None)
        if trim is not None and trim.approximate and not self.exact_nodes:
            assert isinstance(step, XAdd | XTrim)
            self.run_approximate(step, trim)
        else:
            super().run_step(step)

    def run_approximate(self, step: XAdd | XTrim, trim: Trim) -> None:
        """Run a `~` trim on nodes that the model does not know, and check what it promises."""
        before = stored_nodes(self.opened, step.key)
        answer = self.call(step, self.opened)
        if isinstance(step, XAdd):
            plain = XAdd(step.key, step.pairs, step.new_id, None, step.nomkstream)
            assert answer == self.expect(plain, self.clock.ms)
        if isinstance(answer, Failed) or step.key not in self.model.streams:
            return
        stream = self.model.streams[step.key]
        length, left = stream.length, int(self.opened.xlen(step.key))
        removed = length - left
        assert isinstance(step, XAdd) or answer == removed
        if trim.maxlen is not None:
            assert left >= min(trim.maxlen, length)
        if trim.minid is not None:
            assert not removed or stream.entries()[removed - 1][0] < trim.minid
        if trim.limit:
            assert removed <= trim.limit
        whole = [sum(node.live for node in before[:count]) for count in range(len(before) + 1)]
        assert removed in whole or (isinstance(step, XAdd) and removed == length)
        if isinstance(step, XTrim) and not trim.limit and removed < length:
            head = before[whole.index(removed)]
            if trim.maxlen is not None:
                assert left - head.live < trim.maxlen or left <= trim.maxlen
            else:
                assert trim.minid is not None
                assert head.last_slot >= trim.minid
        self.model.xtrim(step.key, maxlen=left)

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps(approximate=True).appends()))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps(approximate=True).removals()))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps(approximate=True).reads()))

    @rule(data=st.data())
    def set_or_rename(self, data: st.DataObject) -> None:
        steps = self.steps(approximate=True)
        self.run_step(data.draw(st.one_of(steps.settings(), steps.keyspace())))

    def batches(self) -> SearchStrategy[Step]:
        """Batches of appends, some with IDs, which may not rise."""

        def build(key: bytes) -> SearchStrategy[Step]:
            new_id = new_ids(self.model.streams.get(key))
            plain = st.lists(PAIRS, min_size=1, max_size=8).map(tuple)
            named = st.lists(st.tuples(PAIRS, new_id), min_size=1, max_size=5)
            return st.one_of(
                st.builds(XAddMany, st.just(key), plain),
                named.map(lambda some: XAddMany(key, *zip(*some, strict=True))),
            )

        return KEYS.flatmap(build)

    @rule(data=st.data())
    def append_many(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.batches()))

    @rule(key=KEYS, count=st.integers(2, 60), size=st.sampled_from([0, 1, 20, 100]))
    def append_alike(self, key: bytes, count: int, size: int) -> None:
        """Fill some nodes quickly."""
        entries = [((b"f", b"%d" % number), (b"g", b"x" * size)) for number in range(count)]
        self.run_step(XAddMany(key, tuple(entries)))

    @rule(data=st.data(), key=KEYS)
    def delete_some(self, data: st.DataObject, key: bytes) -> None:
        self.run_step(XDel(key, data.draw(some_ids(self.model.streams.get(key)))))

    @rule(ms=st.one_of(SMALL, st.sampled_from([10, 1_718_004_800_000, (1 << 63) - 1])))
    def set_clock(self, ms: int) -> None:
        self.clock.ms = ms

    def any_step(self) -> SearchStrategy[Step]:
        """What transactions and pipelines are made of."""
        return mostly(self.steps(approximate=self.exact_nodes).anything(), self.batches())

    def any_look(self) -> SearchStrategy[Step]:
        """What is asked of snapshots."""
        return self.steps(approximate=False).reads()

    @rule(data=st.data(), key=KEYS, reverse=st.booleans())
    def scan_and_delete(self, data: st.DataObject, key: bytes, reverse: bool) -> None:
        """A loop over a stream may delete its current entry, and later ones."""
        stream = self.model.streams.get(key)
        start, end = data.draw(bounds(stream)), data.draw(bounds(stream))
        step = XRange(key, start, end, None, reverse)
        listed = attempt(lambda: step.on_model(self.model, 0))
        if isinstance(listed, Failed):
            answer = outcome(lambda: self.opened.scan(key, start.text, end.text, reverse=reverse))
            assert answer == listed
            return
        seen = []
        for entry in self.opened.scan(key, start.text, end.text, reverse=reverse):
            seen.append(((*entry.stream_id,), tuple(entry.pairs)))
            if data.draw(st.booleans(), "delete it"):
                assert entry.delete() == self.model.xdel(key, seen[-1][0])
                assert entry.delete() is False
            elif data.draw(mostly(st.just(False), st.just(True)), "delete the next ones"):
                ahead = [one for one, _ in listed[len(seen) : len(seen) + 3]]
                if ahead:
                    self.opened.xdel(key, *map(id_text, ahead))
                    self.model.xdel(key, *ahead)
        assert seen == listed

    def compare_all(self) -> None:
        """Compare every stream: counters, entries pair by pair in both directions, nodes."""
        store = self.opened
        assert store.keys() == self.model.keys() == list(store.scan_iter())
        for key, stream in self.model.streams.items():
            entries = stream.entries()
            for reverse in (False, True):
                scanned = [
                    ((*entry.stream_id,), tuple(entry.pairs))
                    for entry in store.scan(key, reverse=reverse)
                ]
                assert scanned == (entries[::-1] if reverse else entries)
            info = XInfoStream(key)
            assert self.call(info, store) == self.expect(info, 0)
            nodes = stored_nodes(store, key)
            if self.exact_nodes:
                assert [node.key for node in nodes] == [node.key for node in stream.nodes]
                assert [node.live for node in nodes] == [node.live for node in stream.nodes]
        with store.snapshot() as snapshot:
            sizes = {stat.name: (stat.length, stat.nodes) for stat in snapshot.stats()}
        assert sizes == {
            key: (self.model.xlen(key), len(stored_nodes(store, key))) for key in self.model.streams
        }


class RedisLimits(StreamMachine):
    """Stores whose nodes are as small as Redis's limits make them."""

    exact_nodes = True

    @initialize(
        sync=SYNC_MODES,
        max_bytes=st.sampled_from([300, 800, 300, 800, 120, 4096, 60, 0]),
        max_entries=st.sampled_from([5, 10, 5, 10, 3, 2, 1, 100, 0]),
    )
    def begin(self, sync: Sync, max_bytes: int, max_entries: int) -> None:
        self.sync = sync
        max_bytes = max_bytes or (0 if max_entries else 300)  # a node without any limit is refused
        self.limits = {"node_max_bytes": max_bytes, "node_max_entries": max_entries}
        self.model = ModelStore(max_bytes, max_entries, rewrites=True)
        self.open()


class PageNodes(StreamMachine):
    """Stores as `streamkeep.open` makes them."""

    @initialize(sync=SYNC_MODES)
    def begin(self, sync: Sync) -> None:
        self.sync = sync
        self.open()


TestRedisLimits = RedisLimits.TestCase
TestRedisLimits.settings = configured(25)

TestPageNodes = PageNodes.TestCase
TestPageNodes.settings = configured(12)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(THOROUGH))
@pytest.mark.parametrize("machine", [RedisLimits, PageNodes])
def test_the_engine_answers_as_the_model_thoroughly(
    machine: type[StreamMachine], part: int
) -> None:
    run_state_machine_as_test(machine, settings=configured(40))
