"""The engine against a model of history: trimming, archiving and deleting in any order.

The model knows of each entry whether it is live, and whether history shows it: that is what is
live, and what was trimmed while the stream archived. Where an entry is, in a live node, retired or
in a segment, must not be seen by anybody who reads; the checks see it, after every run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conftest import assert_sound
from streamkeep.engine.api import Store
from streamkeep.engine.archiver import ArchiveOptions
from streamkeep.engine.clock import ManualClock

Id = tuple[int, int]
KEYS = st.sampled_from([b"a", b"b" * 600])
SMALL = st.integers(0, 12)


class Model:
    """One stream."""

    def __init__(self) -> None:
        self.live: dict[Id, bytes] = {}
        self.history: dict[Id, bytes] = {}
        self.archiving = False
        self.maxlen: int | None = None

    def trim(self, ids: list[Id]) -> None:
        """Trim entries."""
        for one in ids:
            del self.live[one]
            if not self.archiving:
                del self.history[one]

    def delete(self, ids: list[Id]) -> int:
        """Delete entries; return how many were live."""
        there = [one for one in dict.fromkeys(ids) if one in self.live]
        for one in there:
            del self.live[one]
            del self.history[one]
        return len(there)

    def enforce(self) -> None:
        """Trim to the retention."""
        if self.maxlen is not None and len(self.live) > self.maxlen:
            self.trim(list(self.live)[: len(self.live) - self.maxlen])


def parse(text: bytes) -> Id:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def text(one: Id) -> str:
    return f"{one[0]}-{one[1]}"


class ArchiveMachine(RuleBasedStateMachine):
    """Runs each step on both."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp()) / "store"
        self.clock = ManualClock(1000)
        self.models: dict[bytes, Model] = {}
        self.nodes = 3
        self.store: Store = None  # type: ignore[assignment]  # `begin` opens it

    @initialize(nodes=st.sampled_from([1, 2, 3, 5]))
    def begin(self, nodes: int) -> None:
        self.nodes = nodes
        self.open()

    def open(self) -> None:
        self.store = Store(
            self.path, sync="none", clock=self.clock, node_max_entries=self.nodes, node_max_bytes=0
        )

    def model(self, key: bytes) -> Model:
        return self.models.setdefault(key, Model())

    def seen(self, key: bytes) -> Model:
        """Return a stream that need not exist."""
        return self.models.get(key, Model())

    @rule(key=KEYS, count=st.integers(1, 9))
    def append(self, key: bytes, count: int) -> None:
        model = self.model(key)
        for number in range(count):
            self.clock.ms += 1
            one = parse(self.store.xadd(key, {b"f": b"%d" % number}))
            model.live[one] = model.history[one] = b"%d" % number
            model.enforce()

    @rule(key=KEYS, archiving=st.booleans())
    def switch(self, key: bytes, archiving: bool) -> None:
        self.model(key).archiving = archiving
        self.store.set_retention(key, archive=archiving)

    @rule(key=KEYS, maxlen=st.sampled_from([-1, 0, 1, 4, 9]))
    def limit(self, key: bytes, maxlen: int) -> None:
        model = self.model(key)
        model.maxlen = None if maxlen < 0 else maxlen
        self.store.set_retention(key, maxlen=maxlen)
        self.store.maintain()
        for one in self.models.values():
            one.enforce()

    @rule(key=KEYS, maxlen=SMALL, approximate=st.booleans())
    def trim(self, key: bytes, maxlen: int, approximate: bool) -> None:
        live = list(self.seen(key).live)
        gone = self.store.xtrim(key, maxlen=maxlen, approximate=approximate)
        if not approximate:
            assert gone == max(0, len(live) - maxlen)
        self.seen(key).trim(live[:gone])

    @rule(key=KEYS, start=SMALL, count=SMALL)
    def trim_range(self, key: bytes, start: int, count: int) -> None:
        ids = list(self.seen(key).live)[start : start + count]
        if ids:
            assert self.store.trim_range(key, text(ids[0]), text(ids[-1])) == len(ids)
            self.seen(key).trim(ids)

    @rule(key=KEYS, data=st.data())
    def delete(self, key: bytes, data: st.DataObject) -> None:
        known = list(self.seen(key).history)
        if known:
            ids = data.draw(st.lists(st.sampled_from(known), max_size=6))
            if ids:
                assert self.store.xdel(key, *map(text, ids)) == self.seen(key).delete(ids)

    @rule(key=KEYS)
    def drop(self, key: bytes) -> None:
        assert self.store.delete(key) == (key in self.models)
        self.models.pop(key, None)

    @rule()
    def rename(self) -> None:
        source, target = b"a", b"b" * 600
        if source in self.models:
            self.store.rename(source, target)
            self.models[target] = self.models.pop(source)

    @rule(target_bytes=st.sampled_from([1, 200, 1 << 20]))
    def archive(self, target_bytes: int) -> None:
        self.store.archive(options=ArchiveOptions(target_bytes=target_bytes, block_bytes=200))
        with self.store.snapshot() as snapshot:
            assert snapshot.txn.rows(14) == 0  # `retired`

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @rule(key=KEYS, low=SMALL, high=SMALL, count=st.sampled_from([None, 1, 3]))
    def read_a_part(self, key: bytes, low: int, high: int, count: int | None) -> None:
        ids = list(self.seen(key).history)[low : low + high]
        if ids:
            start, end = text(ids[0]), text(ids[-1])
            found = self.store.xrange(key, start, end, count=count, history=True)
            assert [parse(one.id) for one in found] == ids[:count]
            found = self.store.xrevrange(key, end, start, count=count, history=True)
            assert [parse(one.id) for one in found] == ids[::-1][:count]

    @invariant()
    def alike(self) -> None:
        for key, model in self.models.items():
            live = {parse(one.id): one.fields[b"f"] for one in self.store.xrange(key)}
            assert live == model.live
            assert list(live) == list(model.live)
            shown = self.store.xrange(key, history=True)
            assert [parse(one.id) for one in shown] == list(model.history)
            assert {parse(one.id): one.fields[b"f"] for one in shown} == model.history
            back = self.store.xrevrange(key, history=True)
            assert back == shown[::-1]

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
            assert_sound(self.path)
        shutil.rmtree(self.path.parent)


TestArchive = ArchiveMachine.TestCase
TestArchive.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
