"""The engine against a model of history: trimming, archiving and deleting in any order.

The model knows of each entry whether it is live, and whether history shows it: that is what is
live, and what was trimmed while the stream archived. Where an entry is, in a live node, retired or
in a segment, must not be seen by anybody who reads; the checks see it, after every run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conftest import assert_sound
from model.profile import configured
from stores import SYNC_MODES, open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.engine.system.clock import ManualClock

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
        self.max_age_ms: int | None = None

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

    def erase(self, ids: list[Id]) -> int:
        """Erase entries, live or not; return how many there were."""
        for one in ids:
            self.live.pop(one, None)
            del self.history[one]
        return len(ids)

    def enforce(self, now_ms: int) -> None:
        """Trim to the retention."""
        if self.maxlen is not None and len(self.live) > self.maxlen:
            self.trim(list(self.live)[: len(self.live) - self.maxlen])
        if self.max_age_ms is not None:
            self.trim([one for one in self.live if one[0] < now_ms - (self.max_age_ms or 0)])


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
        self.sync: Sync = "commit"
        self.store: Store = None  # type: ignore[assignment]  # `begin` opens it

    @initialize(sync=SYNC_MODES, nodes=st.sampled_from([1, 2, 3, 5]))
    def begin(self, sync: Sync, nodes: int) -> None:
        self.sync = sync
        self.nodes = nodes
        self.open()

    def open(self) -> None:
        self.store = open_at(
            self.path,
            sync=self.sync,
            clock=self.clock,
            node_max_entries=self.nodes,
            node_max_bytes=0,
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
        self.maintain()

    @rule()
    def maintain(self) -> None:
        """Appends trim a bounded number of nodes; this does the rest."""
        self.store.maintain()
        for one in self.models.values():
            one.enforce(self.clock.ms)

    @rule(key=KEYS, max_age_ms=st.sampled_from([-1, 0, 3, 10]), later=st.sampled_from([0, 5]))
    def limit_age(self, key: bytes, max_age_ms: int, later: int) -> None:
        self.model(key).max_age_ms = None if max_age_ms < 0 else max_age_ms
        self.store.set_retention(key, max_age=max_age_ms / 1000 if max_age_ms > 0 else max_age_ms)
        self.clock.ms += later
        self.maintain()

    @rule(key=KEYS, archiving=st.booleans())
    def switch(self, key: bytes, archiving: bool) -> None:
        self.model(key).archiving = archiving
        self.store.set_retention(key, archive=archiving)

    @rule(key=KEYS, maxlen=st.sampled_from([-1, 0, 1, 4, 9]))
    def limit(self, key: bytes, maxlen: int) -> None:
        model = self.model(key)
        model.maxlen = None if maxlen < 0 else maxlen
        self.store.set_retention(key, maxlen=maxlen)
        self.maintain()

    @rule(key=KEYS, max_bytes=st.sampled_from([0, 60, 150]))
    def limit_bytes(self, key: bytes, max_bytes: int) -> None:
        """Which nodes go depends on how they were written; they are the oldest, in any case."""
        model = self.model(key)
        self.store.set_retention(key, max_bytes=max_bytes)
        self.store.maintain()
        self.store.set_retention(key, max_bytes=-1)
        left = self.store.xlen(key)
        assert left > 0 or not model.live
        model.trim(list(model.live)[: len(model.live) - left])
        self.maintain()

    @rule(key=KEYS, read=st.integers(1, 9), acked=SMALL)
    def limit_for_a_group(self, key: bytes, read: int, acked: int) -> None:
        if key not in self.models:
            return
        model = self.models[key]
        delivered = list(model.live)[:read]
        self.store.xgroup_create(key, "g", id="0")
        self.store.xreadgroup("g", "c", {key: ">"}, count=read)
        if delivered[:acked]:
            self.store.xack(key, "g", *map(text, delivered[:acked]))
        self.store.set_retention(key, keep_unacknowledged=True, maxlen=0)
        self.store.maintain()
        model.trim(delivered[:acked])
        self.store.xgroup_destroy(key, "g")
        maxlen = -1 if model.maxlen is None else model.maxlen
        self.store.set_retention(key, keep_unacknowledged=False, maxlen=maxlen)
        self.maintain()

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

    @rule(key=KEYS, data=st.data())
    def erase(self, key: bytes, data: st.DataObject) -> None:
        known = list(self.seen(key).history)
        if known:
            ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6, unique=True))
            assert self.store.erase(key, *map(text, ids)) == self.seen(key).erase(ids)

    @rule(key=KEYS, place=SMALL)
    def drop_segments(self, key: bytes, place: int) -> None:
        known = list(self.seen(key).history)
        if known:
            before = known[min(place, len(known) - 1)]
            for record in self.store.drop_segments(key, before=text(before)):
                model = self.seen(key)
                gone = [one for one in known if record.first_id <= one <= record.last_id]
                assert record.last_id < before
                assert len(gone) == record.entries
                assert not model.live.keys() & set(gone)
                for one in gone:
                    del model.history[one]

    @rule(key=KEYS)
    def restore(self, key: bytes) -> None:
        """What is archived or retired comes back elsewhere; live nodes may show trimmed slots."""
        model = self.seen(key)
        if key in self.models:
            count = self.store.restore_archive(b"r", key).entries
            found = {parse(one.id): one.fields[b"f"] for one in self.store.xrange(b"r")}
            assert len(found) == count
            assert list(found) == [one for one in model.history if one in found]
            assert all(model.history[one] == value for one, value in found.items())
            assert not found.keys() & model.live.keys()
            assert self.store.delete(b"r") == (count > 0)

    @rule(sync=SYNC_MODES)
    def reopen(self, sync: Sync) -> None:
        self.store.close()
        self.sync = sync
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
TestArchive.settings = configured(25, steps=25)
