"""The engine against a model of history: trimming, archiving, publishing, deleting in any order.

The model knows of each entry whether it is live, and whether history shows it: that is what is
live, and what was trimmed while the stream archived. Where an entry is, in a live node, retired or
in a segment, here or under a URI, must not be seen by anybody who reads; the checks see it, after
every life. The archive under the URI has what is in segments, and all when it was just sealed,
perhaps also what only sealed segments have kept, and nothing that was erased or removed. Processes
are killed at any step of this work, and then the work is done again.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from inside import environment_of
from segments import entries_of
from stopped import child_of, die, status_of
from stores import MODES, open_at
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import iterate, restore, sealed_segments, segments
from streamkeep.engine.archive.adopt import _open_part
from streamkeep.engine.archive.archiver import ArchiveOptions, archive, retired_streams
from streamkeep.engine.remote.object_store import folder_of
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.entry import MAX_ID
from streamkeep.format.core.errors import CommandError, ErasureBlockedError, StaleSnapshotError
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.remote import Manifest, parts_of
from streamkeep.recovery.fsck.findings import Severity
from tiers import slow_but

Id = tuple[int, int]
Entries = dict[Id, bytes]
KEYS = (b"a", b"b" * 600, b"c", b"d")


class Model:
    """One stream."""

    def __init__(self) -> None:
        self.ever: Entries = {}
        self.live: Entries = {}
        self.history: Entries = {}
        self.erased: set[Id] = set()
        self.removed: set[Id] = set()  # from the archive, here and under the URI
        self.kept: set[Id] = set()  # in sealed segments alone: trimmed since, and not archived
        self.sealed: set[Id] = set()
        self.names: list[bytes] = []  # all keys that it has had
        self.published = False  # under its last key
        self.archiving = self.archives_deleted = False
        self.maxlen: int | None = None
        self.max_age_ms: int | None = None
        self.archive_max_age_ms: int | None = None

    def trim(self, ids: list[Id]) -> None:
        for one in ids:
            del self.live[one]
            if not self.archiving:
                del self.history[one]
                self.kept.update(self.sealed & {one})

    def delete(self, ids: list[Id]) -> int:
        there = [one for one in ids if one in self.live]
        for one in there:
            del self.live[one]
            if not self.archives_deleted:
                del self.history[one]
        return len(there)

    def erase(self, ids: list[Id]) -> int:
        """Erase entries, wherever they are; return how many there were."""
        self.erased.update(self.ever.keys() & ids)
        self.kept.difference_update(ids)
        for one in ids:
            self.live.pop(one, None)
        return len([one for one in ids if self.history.pop(one, None)])

    def enforce(self, now_ms: int) -> None:
        if self.maxlen is not None and len(self.live) > self.maxlen:
            self.trim(list(self.live)[: len(self.live) - self.maxlen])
        if self.max_age_ms is not None:
            self.trim([one for one in self.live if one[0] < now_ms - (self.max_age_ms or 0)])

    def within(self, record: SegmentRecord) -> list[Id]:
        return [one for one in self.history if record.first_id <= one <= record.last_id]


def parse(text: bytes) -> Id:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def text(one: Id) -> str:
    return f"{one[0]}-{one[1]}"


def shown_by(reader: Any, key: bytes, *, history: bool = True) -> Entries:
    """Return what a store or a snapshot shows of a stream, which must ascend."""
    found = [(parse(one.id), one.fields[b"f"]) for one in reader.xrange(key, history=history)]
    assert found == sorted(dict(found).items())
    return dict(found)


class Life:
    """One store, and steps that were chosen with a seed, each done on both."""

    def __init__(self, folder: Path, seed: int) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        self.folder = folder
        self.clock = ManualClock(1000)
        self.models: dict[bytes, Model] = {}
        self.gone: dict[int, Model] = {}  # of deleted streams, by number
        self.names = map(str, count())
        self.place: Path | None = None  # where the archive is published
        self.spare: Path | None = None
        self.held: list[tuple[Any, dict[bytes, Entries]]] = []
        self.nodes = self.random.choice([1, 2, 3, 5])
        self.store = self.open()

    def open(self) -> Store[bytes]:
        return open_at(
            self.folder / "store",
            sync=self.random.choice(MODES),
            clock=self.clock,
            node_max_entries=self.nodes,
            node_max_bytes=0,
        )

    def live(self, steps: int) -> None:
        """Take steps, compare after each, and check the store at the end."""
        for _ in range(steps):
            step = self.random.choice(STEPS)
            print(step.__name__)  # for who reads of a failure
            step(self)
            self.compare()
        self.look_back(release=True)
        self.store.close()
        findings = [one for one in recovery.check(self.store.path) if one.severity > Severity.NOTE]
        only_room = ("SK311", "SK312")  # files that killed processes have left
        assert [str(one) for one in findings if one.code not in only_room] == []

    def key(self) -> bytes:
        """Return the key of a stream, which is made if there is none."""
        there = list(self.models)
        key = self.random.choice(there if there and self.random.random() < 0.8 else KEYS)
        if key not in self.models:
            self.models[key] = Model()
            self.models[key].names.append(key)
            self.store.set_retention(key)
            self.switch(key)
        return key

    def some(self, ids: Entries) -> list[Id]:
        """Return some IDs: one after the other, or here and there."""
        known, most = list(ids), self.random.randrange(1, 7)
        if self.random.random() < 0.5:
            start = self.random.randrange(len(known))
            return known[start : start + most]
        return sorted(self.random.sample(known, min(most, len(known))))

    def append(self) -> None:
        key = self.key()
        for _ in range(self.random.randrange(1, 12)):
            self.clock.ms += 1
            value = b"of nobody else: %s;" % next(self.names).encode()
            one = parse(self.store.xadd(key, {b"f": value}))
            model = self.models[key]
            model.live[one] = model.history[one] = model.ever[one] = value
        self.maintain()

    def maintain(self, steps: int = 0) -> None:
        """Appends trim a bounded number of nodes; this does the rest; see `attempt`."""
        before = self.store.archived_segments()
        self.attempt(steps, lambda store: store.maintain())
        self.store.maintain()
        after = self.store.archived_segments()
        for model in self.models.values():
            model.enforce(self.clock.ms)
        for record in before:
            model = self.numbered()[record.stream_number]
            age = model.archive_max_age_ms if model in self.models.values() else None
            assert (record in after) == (age is None or record.last_ms >= self.clock.ms - age)
            if record not in after:
                self.remove(model, record)

    def limit(self) -> None:
        """Change a limit, perhaps wait, and have it enforced."""
        key = self.key()
        name = self.random.choice(["maxlen", "max_age", "archive_max_age"])
        most = self.random.choice([None, None, 0, 3, 9, 30])
        setattr(self.models[key], name if name == "maxlen" else f"{name}_ms", most)
        value: Any = -1 if most is None else most if name == "maxlen" else most / 1000 or 0
        self.store.set_retention(key, **{name: value})
        self.clock.ms += self.random.choice([0, 0, 5])
        self.maintain()

    def switch(self, key: bytes | None = None) -> None:
        key = key or self.key()
        archiving, deleted = self.random.random() < 0.8, self.random.random() < 0.4
        self.models[key].archiving = archiving
        self.models[key].archives_deleted = archiving and deleted
        self.store.set_retention(key, archive=archiving, archive_deleted=archiving and deleted)

    def limit_bytes(self) -> None:
        """Which nodes go depends on how they were written; they are the oldest, in any case."""
        self.maintain()
        key = self.key()
        model = self.models[key]
        self.store.set_retention(key, max_bytes=self.random.choice([0, 60, 150]))
        self.store.maintain()
        self.store.set_retention(key, max_bytes=-1)
        left = self.store.xlen(key)
        assert left > 0 or not model.live
        model.trim(list(model.live)[: len(model.live) - left])

    def limit_for_a_group(self) -> None:
        self.maintain()
        key = self.key()
        model = self.models[key]
        if not model.live:
            return
        delivered = list(model.live)[: self.random.randrange(1, 9)]
        acked = delivered[: self.random.randrange(9)]
        self.store.xgroup_create(key, "g", id="0")
        self.store.xreadgroup("g", "c", {key: ">"}, count=len(delivered))
        self.store.xack(key, "g", *map(text, acked or [(0, 1)]))
        self.store.set_retention(key, keep_unacknowledged=True, maxlen=0)
        self.store.maintain()
        model.trim(acked)
        self.store.xgroup_destroy(key, "g")
        maxlen = -1 if model.maxlen is None else model.maxlen
        self.store.set_retention(key, keep_unacknowledged=False, maxlen=maxlen)
        self.maintain()

    def trim(self) -> None:
        key, approximate = self.key(), self.random.random() < 0.5
        live = list(self.models[key].live)
        maxlen = self.random.randrange(len(live) + 1)
        gone = self.store.xtrim(key, maxlen=maxlen, approximate=approximate)
        assert gone == len(live) - maxlen or (approximate and gone < len(live) - maxlen)
        self.models[key].trim(live[:gone])

    def trim_range(self) -> None:
        key = self.key()
        if live := list(self.models[key].live):
            start, end = sorted(self.random.choices(range(len(live)), k=2))
            gone = live[start : end + 1]
            assert self.store.trim_range(key, text(gone[0]), text(gone[-1])) == len(gone)
            self.models[key].trim(gone)

    def delete(self) -> None:
        key = self.key()
        if known := self.models[key].history:
            ids = self.some(known)
            assert self.store.xdel(key, *map(text, ids)) == self.models[key].delete(ids)

    def drop(self) -> None:
        key = self.key()
        self.bury(key)
        assert self.store.delete(key)

    def rename(self) -> None:
        source, other = self.random.sample(KEYS, 2)
        if source in self.models:
            self.bury(other)
            self.store.rename(source, other)
            self.models[other] = model = self.models.pop(source)
            model.names.append(other)
            model.published = False

    def set_id(self) -> None:
        """Go on with other IDs: higher ones, or lower ones where nothing is in the way."""
        key = self.key()
        model, last = self.models[key], self.store.xinfo_stream(key)["last-generated-id"]
        one = self.clock.ms + self.random.randrange(-9, 20), 1000 * int(next(self.names))
        with suppress(CommandError):
            self.store.xsetid(key, text(one))
            if one < parse(last):
                above = {each for each in model.ever if each > one}
                model.kept -= above
                model.removed |= above

    def bury(self, key: bytes) -> None:
        """Note what is left of a stream that is about to be deleted."""
        model = self.models.get(key)
        if model is not None:
            self.gone[self.number_of(model)] = model
            del self.models[key]
            for one in [] if model.archives_deleted else model.live:
                del model.history[one]
            model.live = {}

    def archive(self) -> None:
        size = self.random.choice([1, 200, 1 << 20])
        options = ArchiveOptions(target_bytes=size, block_bytes=200)
        publishes = self.random.random() < 0.7
        if publishes:
            self.store.archive(options=options)
        else:  # as writers do that have trimmed too much
            archive(environment_of(self.store), options)
        with self.store.snapshot() as snapshot:
            assert retired_streams(snapshot.txn) == []
        assert all(self.in_segments(one) == set(its.history) for one, its in self.gone.items())
        if publishes:
            self.compare_published()

    def erase(self) -> None:
        key = self.key()
        if known := self.models[key].ever:
            self.erase_now(self.models[key], self.some(known))

    def erase_of_gone(self) -> None:
        model = self.random.choice([Model(), *self.gone.values()])
        if model.ever:
            self.erase_now(model, self.some(model.ever))

    def erase_now(self, model: Model, ids: list[Id]) -> None:
        """Erase entries under their last key; old snapshots keep that from its end.

        Of a stream that was renamed and deleted, sealed segments may name only the key before.
        """
        alone = model in self.models.values() or self.place is None or model.published
        keys = set(model.names[-1:] if alone else model.names)
        if self.held:
            for key in keys:
                with pytest.raises(ErasureBlockedError):
                    self.store.erase(key, *map(text, ids), timeout=0)
            model.erase(ids)
            self.look_back(release=True)
            self.store.erase(b"")
        else:
            found = [self.store.erase(key, *map(text, ids)) for key in keys]
            assert sum(found) == model.erase(ids)
        for path in self.store.path.rglob("*"):
            data = path.read_bytes() if path.is_file() and path.name != "lock.mdb" else b""
            assert not [one for one in ids if model.ever[one] in data], path
        self.compare_published()

    def drop_segments(self) -> None:
        key = self.key()
        if known := self.models[key].history:
            self.drop_now(key, self.random.choice(list(known)))

    def drop_now(self, key: bytes, before: Id) -> None:
        model = self.models[key]
        if dropped := self.store.drop_segments(key, before=text(before)):
            for record in dropped:
                assert record.last_id < before
                assert len(model.within(record)) == record.entries
                self.remove(model, record)
            self.compare_published()

    def remove(self, model: Model, record: SegmentRecord) -> None:
        """Note that a segment was removed; the next publication takes it out of sealed ones."""
        model.kept -= {one for one in model.kept if record.first_id <= one <= record.last_id}
        for one in model.within(record):
            assert one not in model.live
            del model.history[one]
            model.removed.add(one)

    def restore(self) -> None:
        """What is archived or retired comes back elsewhere; live nodes may show trimmed slots."""
        key = self.key()
        entries = self.store.restore_archive(b"r", key).entries
        found = shown_by(self.store, b"r")
        assert len(found) == entries
        assert found.items() <= self.models[key].history.items()
        assert not found.keys() & self.models[key].live.keys()
        assert self.store.delete(b"r") == (entries > 0)

    def take_out_and_adopt(self) -> None:
        """Segments that were removed come back from files, where their range is free."""
        key = self.key()
        self.adopt(key, self.exported(key), dict(self.models[key].history))

    def exported(self, key: bytes) -> Path:
        folder = self.folder / next(self.names)
        folder.mkdir()
        list(self.store.export_segments(folder, key))
        return folder

    def adopt(self, key: bytes, folder: Path, before: Entries) -> None:
        """Remove segments that were exported, and adopt the files."""
        model = self.models[key]
        if dropped := self.store.drop_segments(key):
            for record in dropped:
                self.remove(model, record)
            self.compare_published()
        with suppress(CommandError):  # the newest node, from before them, still grows
            list(self.store.adopt_segments(folder))
        records = self.store.archived_segments(key)
        back = {one for one in before if any(r.first_id <= one <= r.last_id for r in records)}
        assert sum(record.entries for record in records) == len(back)
        model.history = {one: v for one, v in before.items() if one in back | model.history.keys()}
        model.removed -= back

    def publish(self, *, seal: bool | None = None, place: Path | None = None) -> None:
        """Archive under a URI, which may be another one; the one before is then not needed."""
        before, there = self.place, place or self.place
        if there is None or (place is None and self.random.random() < 0.2):
            there = self.other_place()
        seal = self.random.random() < 0.6 if seal is None else seal
        assert self.store.archive(to=there, seal=seal).published.missing == ()
        if before not in (None, there):
            shutil.rmtree(before)
        self.place = there
        self.spare = None if there == self.spare else self.spare
        paths = map(self.store.segment_path, self.store.archived_segments())
        assert not any(path.exists() for path in paths)
        self.compare_published(sealed=seal)

    def other_place(self) -> Path:
        """Return where the archive may move: where a move did not come to its end, or a new one."""
        self.spare = self.spare or self.folder / next(self.names)
        return self.spare

    def manifest(self) -> Manifest:
        remote = environment_of(self.store).remote_archive()
        newest = None if remote is None else remote.newest()
        return Manifest({}, ()) if newest is None else newest[1]

    def numbered(self) -> dict[int, Model]:
        """Return all streams, also deleted ones, by number."""
        with self.store.snapshot() as snapshot:
            numbers = {snapshot.txn.stream_number(key): one for key, one in self.models.items()}
        return {**self.gone, **numbers}

    def number_of(self, model: Model) -> int:
        return next(number for number, one in self.numbered().items() if one is model)

    def in_segments(self, number: int) -> set[Id]:
        records = self.store.archived_segments(stream_number=number)
        model = self.numbered()[number]
        return {one for record in records for one in model.within(record)}

    def compare_published(self, *, sealed: bool = False) -> None:
        """Compare what is under the URI with the streams; if it is `sealed`, it has all of them."""
        if self.place is None:
            return
        remote, manifest = environment_of(self.store).remote_archive(), self.manifest()
        assert remote is not None
        top = self.place / self.store.uuid
        files = {str(path.relative_to(top)) for path in self.place.rglob("*.seg")}
        assert files == {one.name for one in manifest.segments}
        assert not list(self.place.rglob(".*"))
        every = self.numbered()
        stored: dict[int, set[Id]] = {number: set() for number in every}
        for record, is_sealed in manifest.segments:
            entries = entries_of(remote.open(record, sealed=is_sealed))
            stored[record.stream_number].update(one[:2] for one in entries)
        deleted = {
            self.number_of(model): self.store.xinfo_stream(key)["max-deleted-entry-id"]
            for key, model in self.models.items()
        }
        for number, model in every.items():
            assert not stored[number] & (model.erased | model.removed)
            highest = parse(deleted.get(number, b"9999-0"))  # below it, trims may be deletions
            assert {one for one in model.kept if one > highest} <= stored[number]
            model.sealed = stored[number]
            model.published |= model in self.models.values()  # a deleted one keeps the key before
            found: list[tuple[Id, bytes]] = []
            for first, last, one in parts_of(manifest.by_stream().get(number, [])):
                part = _open_part(remote, one, first, last)
                entries = [] if part is None else entries_of(part)
                found += [((ms, seq), pairs[1]) for ms, seq, pairs in entries]
            assert found == sorted(dict(found).items())
            assert dict(found).items() <= model.ever.items()
            assert dict(found).keys() >= self.in_segments(number)
            if number in manifest.streams and number not in self.gone:
                complete = MAX_ID if sealed else manifest.streams[number].complete_to
                assert dict(found).keys() >= {one for one in model.history if one <= complete}

    def make_again(self) -> None:
        """What was published becomes the history of another store."""
        manifest = self.manifest()
        numbers = {one.record.stream_number for one in manifest.segments}
        names = [manifest.streams[number].key for number in numbers]
        if self.place is None or not numbers or len(set(names)) < len(names):
            return
        with open_at(self.folder / next(self.names), clock=self.clock) as again:
            list(again.adopt_segments(f"{self.place.as_uri()}/{self.store.uuid}"))
            for number in numbers:
                model = self.numbered()[number]
                found = shown_by(again, manifest.streams[number].key)
                assert found.items() <= model.ever.items()
                for one in manifest.segments:
                    if one.record.stream_number == number and not one.sealed:
                        assert found.keys() >= set(model.within(one.record))

    def lose(self) -> None:
        """Lose an object under the URI; what the store still has is published again."""
        if self.place is not None:
            self.store.archive()  # leaves out what was removed, which only the manifest knows
            top = self.place / self.store.uuid
            kind = self.random.choice(["sealed/**/*.seg", "store.json", "manifests/*"])
            for path in sorted(top.glob(kind))[-1:]:
                path.unlink()
                for model in self.numbered().values() if kind != "store.json" else ():
                    model.kept = set()
            if kind == "store.json" and self.random.random() < 0.7:
                self.erase_of_gone()
            self.store.archive(seal=True)
            self.compare_published(sealed=True)

    def hold(self) -> None:
        shown = {key: dict(model.history) for key, model in self.models.items()}
        self.held.append((self.store.snapshot(), shown))

    def look_back(self, *, release: bool | None = None) -> None:
        """Snapshots show what they have shown, or say that files are gone."""
        for snapshot, shown in self.held:
            for key, history in shown.items():
                with suppress(StaleSnapshotError):
                    assert shown_by(snapshot, key) == history
        if self.random.random() < 0.5 if release is None else release:
            for snapshot, _ in self.held:
                snapshot.close()
            self.held = []

    def reopen(self) -> None:
        self.look_back(release=True)
        self.store.close()
        self.store = self.open()

    def attempt(self, steps: int, work: Callable[[Store[bytes]], object]) -> None:
        """Do something in a process that is killed at so-many-th step; nothing without steps."""
        if steps:
            self.look_back(release=True)
            self.store.close()

            def do() -> None:
                store = self.open()
                failpoints.watch(countdown(steps))
                work(store)

            assert status_of(child_of(do)) in (0, -signal.SIGKILL)
            self.store = self.open()

    def killed(self) -> None:
        """Do something in a process that is killed at one of its steps, and then do it again."""
        key = self.key()
        model = self.models[key]
        what = self.random.choice(["archive", "seal", "move", "maintain", "drop", "adopt", "erase"])
        steps = int(10 ** self.random.uniform(0, 2.3))
        print(" ", what, steps)
        if what == "maintain" or not model.history:
            self.maintain(steps)
            return
        ids, its = self.some(model.ever), self.in_segments(self.number_of(model))
        may_go = {"drop": {one for one in its if one < ids[0]}, "adopt": its, "erase": set(ids)}
        seals, moves = what == "seal", what == "move" or (what == "seal" and self.place is None)
        place = self.other_place() if moves else self.place
        folder, before = self.exported(key), dict(model.history)

        def work(store: Store[bytes]) -> None:
            if what == "drop":
                store.drop_segments(key, before=text(ids[0]))
            elif what == "adopt":
                store.drop_segments(key)
                with suppress(CommandError):
                    list(store.adopt_segments(folder))
            elif what == "erase":
                store.erase(key, *map(text, ids))
            else:
                store.archive(to=place, seal=seals)

        self.attempt(steps, work)
        gone = before.keys() - shown_by(self.store, key)
        assert gone <= may_go.get(what, set())
        for one in gone:
            del model.history[one]
            model.live.pop(one, None)
        if what in ("adopt", "drop"):
            self.store.archive()  # publishes what the other process may have removed
            model.removed |= gone
        if what == "adopt":
            self.adopt(key, folder, before)
        elif what == "drop":
            self.drop_now(key, ids[0])
        elif what == "erase":
            self.erase_now(model, ids)
        elif moves and self.random.random() < 0.6:  # it is not repeated now
            setting = self.store.remote_archive()
            self.place = None if setting is None else folder_of(setting.uri)
        elif place is not None and (moves or self.random.random() < 0.5):
            self.publish(seal=seals, place=place)
        elif place is not None:  # it is not repeated, and what it has noted counts
            self.drop()
            self.erase_of_gone()

    def compare(self) -> None:
        for key, model in self.models.items():
            assert shown_by(self.store, key, history=False) == model.live
            assert shown_by(self.store, key) == model.history
        key = self.random.choice(KEYS)
        if key in self.models and (known := self.models[key].history):
            low, *_, high = sorted(self.random.choices(list(known), k=2))
            ids = [one for one in known if low <= one <= high]
            most = self.random.choice([None, 1, 3])
            found = self.store.xrange(key, text(low), text(high), count=most, history=True)
            assert [parse(one.id) for one in found] == ids[:most]
            found = self.store.xrevrange(key, text(high), text(low), count=most, history=True)
            assert [parse(one.id) for one in found] == ids[::-1][:most]


def countdown(steps: int) -> Callable[[str], None]:
    """Return what kills this process at the last of so many steps."""
    left = iter(range(steps - 1))

    def passed(name: str) -> None:
        if next(left, None) is None:
            die()

    return passed


OFTEN: list[Callable[[Life], None]] = [Life.trim, Life.archive, Life.publish, Life.killed]
SELDOM: list[Callable[[Life], None]] = [
    *(Life.maintain, Life.switch, Life.limit_bytes, Life.limit_for_a_group, Life.drop),
    *(
        Life.rename,
        Life.set_id,
        Life.erase_of_gone,
        Life.restore,
        Life.take_out_and_adopt,
        Life.make_again,
        Life.lose,
    ),
    *(Life.hold, Life.look_back, Life.reopen),
]
STEPS: list[Callable[[Life], None]] = [
    *[Life.append] * 6,
    *OFTEN * 3,
    *[Life.limit, Life.trim_range, Life.delete, Life.drop_segments, Life.erase] * 2,
    *SELDOM,
]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many steps where one would do."""
    monkeypatch.setattr(sealed_segments, "_TARGET_BYTES", 1000)
    monkeypatch.setattr(iterate, "_STEP_BYTES", 100)
    monkeypatch.setattr(restore, "_STEP_NODES", 3)
    monkeypatch.setattr(segments, "_DROP_AT_ONCE", 1)


@pytest.mark.parametrize("seed", slow_but([14, 15, 16, 17, 47], 14, 47))
def test_history_is_what_was_added_and_not_removed(tmp_path: Path, seed: int) -> None:
    Life(tmp_path, seed).live(80)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_history_is_what_was_added_and_not_removed_for_long(tmp_path: Path) -> None:
    start = random.SystemRandom().randrange(1 << 30)
    for seed in range(start, start + 150):
        folder = tmp_path / str(seed)
        folder.mkdir()
        Life(folder, seed).live(100)
        shutil.rmtree(folder)
