"""Shippers under bad conditions: rivals, lost disks, wrong moments. No promise is false."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from erased import SECRET, entry
from patience import wait_until
from stopped import ended, killed_at, stopped_with
from stores import Open
from streamkeep.engine.api import store as store_module
from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.remote import object_store
from streamkeep.engine.remote.object_store import FolderObjects, open_objects, put_bytes
from streamkeep.engine.system import files
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.copies.head import HEAD
from streamkeep.format.core.errors import (
    ArgumentError,
    ChangesGoneError,
    NotShippedError,
    StoreError,
    StoreLockedError,
    UnreachableError,
)
from streamkeep.recovery import changes, restore_copy, ship, verify_copy
from streamkeep.recovery.copies import generations, shipper, verify, writer
from streamkeep.recovery.copies.generations import Generations
from streamkeep.recovery.copies.history import History
from streamkeep.recovery.copies.shipper import Shipper
from streamkeep.recovery.copies.shipping import forget
from streamkeep.recovery.copies.standby import Standby, promote
from streamkeep.recovery.copies.target import Refused, Target
from streamkeep.recovery.copies.writer import Again, Writer
from test_engine_store.test_sharing import impatient
from test_recovery.test_copies import add, archive_some, assert_restored, copied, newest, shipping
from tiers import slow_but


def bucket_like(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no head read again, as in a bucket for some minutes."""
    init = Generations.__init__

    def trusting(self: Generations, *args: Any) -> None:
        init(self, *args)
        self.trusted_s = 600

    monkeypatch.setattr(Generations, "__init__", trusting)


def test_a_rival_that_is_stopped_while_it_writes_the_head_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "LongWait", impatient)
    objects = open_objects(str(tmp_path))
    put_bytes(objects, HEAD, b"old")
    child = stopped_with(tmp_path)
    with ended(child), pytest.raises(StoreLockedError, match=f"process {child}, which is stopped"):
        objects.replace(HEAD, b"new", objects.get_tagged(HEAD)[1])


def test_a_removed_generation_still_refuses_the_store_before(
    open_store: Open, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end stays: else the store before would ship into nothing, and promise."""
    bucket_like(monkeypatch)
    store = open_store()
    store.xadd("s", {"n": "1"})
    running = Shipper(store, target)
    running.run(once=True)
    restore_copy(target, tmp_path / "second")
    with streamkeep.open(tmp_path / "second") as second:
        ship(second, target)
        second.erase("s", second.xadd("s", {"n": "2"}))
        ship(second, target)
        for _ in range(3):  # also when the folder has been looked through again
            ship(second, target)
    (named,) = Target(target).known_head().generations
    assert not named.name.startswith("00000001")
    store.xadd("s", {"only": "here"})
    with pytest.raises(Again):
        running._step()
    assert not store.wait_shipped(0)
    with pytest.raises(Refused):
        running.run()


@pytest.mark.parametrize("dies", [False, True], ids=["", "killed at its base"])
@pytest.mark.parametrize("more", [0, 40])
@pytest.mark.parametrize("how", ["restore", "promote"])
def test_what_took_the_place_of_a_store_may_make_other_commits(
    open_store: Open, tmp_path: Path, how: str, more: int, dies: bool
) -> None:
    """The copy has later commits, and gets more: the store that was restored last goes on."""
    store, target, place = open_store(), str(tmp_path / "target"), tmp_path / "second"
    add(store, 1, target)
    before = newest(store)
    if how == "promote":
        Standby(target, place).close()
    for _ in range(20):
        store.xadd("s", {"of": "the first"})
    ship(store, target)
    if how == "promote":
        promote(place)
    else:
        restore_copy(target, place, commit=before)
    with streamkeep.open(place) as second:
        for _ in range(more):
            second.xadd("s", {"of": "the second"})
    if dies:
        killed_at("ship:base", lambda: ship(place, target))
        store.xadd("s", {"of": "the first"})
        ship(store, target)
    with streamkeep.open(place) as second:
        ship(second, target)
        assert_restored(target, tmp_path / "restored", second)
    with pytest.raises(Refused, match="does not know it"):
        ship(store, target)


@pytest.mark.parametrize("how", ["copied", "forgotten"])
def test_a_store_without_a_slot_goes_on_with_no_copy(
    tmp_path: Path, target: Path, how: str
) -> None:
    """Its journal does, but so does that of each copy of its folder."""
    path = other = tmp_path / "store"
    with streamkeep.open(path) as store:
        add(store, 2)
    if how == "copied":
        other = shutil.copytree(path, tmp_path / "other")
    ship(path, target)
    if how == "forgotten":
        forget(path, target)
    with pytest.raises(Refused, match="does not know it"):
        ship(other, target)
    if how == "copied":
        ship(path, target)
    assert ship(other, target, take_over=True).base_bytes


def test_calls_that_ship_once_begin_a_generation_when_the_copy_has_grown(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins without a memory of the rows that the others have written."""
    monkeypatch.setattr(shipper, "_LEAST_BASE", 2000)
    for n in range(40):
        store.xadd_many(f"s{n}", [{"n": os.urandom(20).hex()} for _ in range(20)])
        if not ship(store, target).generation.startswith("00000001"):
            break
    else:
        raise AssertionError(ship(store, target))


@pytest.mark.parametrize(
    ("place", "name"), [(Shipper, "_newest"), (shipper, "History")], ids=["piece", "base"]
)
def test_a_restore_to_a_time_has_nothing_that_was_committed_later(
    open_store: Open,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
) -> None:
    """Also if the shipper is stopped while it looks for what is to be shipped."""
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    store.xadd("s", {"ms": str(clock.ms)})
    ship(store, target)
    clock.ms += 2 * 3_600_000  # a new base is due
    begun, whole = clock.ms, getattr(place, name)

    def stopped(*args: Any) -> Any:
        clock.ms += 60_000
        store.xadd("s", {"ms": str(clock.ms)})
        return whole(*args)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, stopped)
        ship(store, target, keep="1h")
    for wanted in range(begun, clock.ms + 1, 30_000):
        restore_copy(target, tmp_path / str(wanted), at_ms=wanted)
        with streamkeep.open(tmp_path / str(wanted), readonly=True) as restored:
            assert all(int(fields[b"ms"]) <= wanted for _, fields in restored.xrange("s"))


def test_a_restore_to_a_time_has_what_was_shipped_while_a_base_was_written(
    open_store: Open, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The generation of that base has these commits, too, and had them all at its end."""
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    begun, whole = clock.ms, Writer.send_base
    ship(store, target)
    clock.ms += 2 * 3_600_000  # a new base is due
    monkeypatch.setattr(writer, "_MOST_AT_ONCE", 2)

    def slow(*args: Any) -> None:
        for _ in range(3):
            clock.ms += 60_000
            store.using("shipped").xadd("s", {"ms": str(clock.ms)})
        clock.ms += 60_000
        whole(*args)

    monkeypatch.setattr(Writer, "send_base", slow)
    ship(store, target, keep="1h")
    written = [int(fields[b"ms"]) for _, fields in store.xrange("s")]
    for wanted in (begun, *(ms + more for ms in written for more in (-1, 0))):
        restore_copy(target, tmp_path / str(wanted), at_ms=wanted)
        with streamkeep.open(tmp_path / str(wanted), readonly=True) as restored:
            found = [int(fields[b"ms"]) for _, fields in restored.xrange("s")]
        assert found == [ms for ms in written if ms <= wanted]


def test_ends_are_removed_in_the_end(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    monkeypatch.setattr(generations, "_ENDS", 2)
    store = open_store()
    for _ in range(6):
        ship(store, target, renew=True)
    left = {path.parts[-3][:8] for path in target.rglob("*.skp")}
    assert left == {"00000004", "00000005", "00000006"}
    assert not verify_copy(target).problems


@pytest.mark.parametrize("once", [True, False])
def test_no_copy_is_in_its_store(store: Store, monkeypatch: pytest.MonkeyPatch, once: bool) -> None:
    for place in (store.path, store.path / "archive" / "copy"):
        running = Shipper(store, place)
        monkeypatch.setattr(running.stop, "wait", lambda _: pytest.fail("it tries again"))
        with pytest.raises(StoreError, match="it is in the store, and would be lost with it"):
            running.run(once=once)
    assert not (store.path / "head.json").exists()
    assert not (store.path / "archive").exists()


def test_a_disk_that_is_unmounted_while_the_store_is_shipped(
    open_store: Open, tmp_path: Path, target: Path
) -> None:
    """Nothing is written to its mount point or acknowledged; and an older copy may come back."""
    store = open_store()
    ship(store, target)
    shutil.copytree(target, tmp_path / "older")
    with shipping(store, target, every="10ms") as running:
        store.xadd("s", {"n": "0"})
        assert store.wait_shipped("5m")  # it has begun: without a target it would not
        target.rename(tmp_path / "unmounted")
        target.mkdir()
        store.xadd("s", {"n": "1"})
        wait_until(lambda: "the copy that was there is gone" in running.failure)
        assert not store.wait_shipped(0)
        target.rmdir()  # so it is empty
        (tmp_path / "older").rename(target)
        assert store.wait_shipped("5m")
    assert not verify_copy(target).problems
    assert verify_copy(target).last_commit == newest(store)


def test_a_disk_that_is_unmounted_before_or_after_any_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a first base was written to the mount point; and no other error comes."""
    monkeypatch.setattr(shipper, "_PAUSE_S", 0.01)
    moments = wanted = 0

    def pass_moment() -> None:
        nonlocal moments
        moments += 1
        if moments == wanted:
            target.rename(tmp_path / f"unmounted{wanted}")

    def passing(whole: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any) -> Any:
            pass_moment()
            done = whole(*args)
            pass_moment()
            return done

        return write

    for name in ("create", "set_head"):
        monkeypatch.setattr(Target, name, passing(getattr(Target, name)))
    while moments >= wanted:
        moments, wanted = 0, wanted + 1
        target = tmp_path / f"target{wanted}"
        with suppress(UnreachableError):
            ship(store, target)
            ship(store, target, keep="1h")
        assert target.exists() == (moments < wanted)
    assert wanted > 8


def test_a_disk_that_is_unmounted_between_the_look_for_it_and_the_first_head(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount point got a head without a base, and commits counted as shipped."""
    target, create = tmp_path / "target", FolderObjects.create

    def unmounting(objects: FolderObjects, name: str, data: bytes) -> bool:
        if name == HEAD:
            target.rename(tmp_path / "unmounted")
            target.mkdir()
            monkeypatch.undo()
        return create(objects, name, data)

    monkeypatch.setattr(FolderObjects, "create", unmounting)
    with pytest.raises(UnreachableError, match="is gone"):
        ship(store, target)
    assert not store.wait_shipped(0)
    store.xadd("s", {"n": "1"})
    ship(store, target)  # another process takes it for a copy, and finds that it has no base
    assert store.wait_shipped(0)
    assert_restored(target, tmp_path / "restored", store)


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """`Path.rglob` leaves it out, on Python 3.13 whatever the error is."""
    objects = open_objects(str(tmp_path / "target"))
    objects.create("a/b/c", b"")
    scandir = os.scandir

    def failing(path: Any = ".") -> Any:
        if Path(path).name == "b":
            raise OSError(error, os.strerror(error), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(UnreachableError, match=os.strerror(error)):
        objects.names("a")
    objects.sweep()  # `lost+found` in the root of a disk
    with pytest.raises(StoreError, match=f"a/b: cannot be listed: {os.strerror(error)}"):
        next(store.adopt_segments(tmp_path / "target"))


def test_a_folder_that_goes_while_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as on a disk that is unmounted: it had ended the thread of the shipper."""
    objects = open_objects(str(tmp_path / "target"))
    scandir = os.scandir

    def unmounted(path: Any = ".") -> Any:
        if Path(path) == tmp_path / "target/a":
            monkeypatch.undo()
            (tmp_path / "target").rename(tmp_path / "unmounted")
        return scandir(path)

    objects.create("a/b/c", b"")
    monkeypatch.setattr(os, "scandir", unmounted)
    assert not objects.names("")
    assert not (tmp_path / "target").exists()


def test_a_folder_that_goes_while_an_object_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had ended the shipper with a FileNotFoundError."""
    objects, sync = open_objects(str(tmp_path / "target")), files.sync_data

    def unmounting(handle: int) -> None:
        sync(handle)
        shutil.rmtree(tmp_path / "target")

    monkeypatch.setattr(files, "sync_data", unmounting)
    with pytest.raises(UnreachableError, match="No such file"):
        objects.create("a/b", b"")
    with pytest.raises(UnreachableError, match="No such file"):
        put_bytes(objects, "a/b", b"")
    with pytest.raises(UnreachableError, match="No such file"):
        objects.replace("a/b", b"", "0")


def test_a_copy_that_goes_away_is_not_damaged(store: Store, target: Path, tmp_path: Path) -> None:
    """A reader of its changes, between a look for a piece and its read, had told of damage."""
    add(store, 2, target)
    source = Target(target)
    (generation,) = source.known_head().generations
    (name,) = source.names(generation.name, 0)
    target.rename(tmp_path / "unmounted")
    for read in (source.piece, source.header):
        with pytest.raises(UnreachableError, match="is gone"):
            read(name)


def test_an_error_between_records_loses_none(
    store: Store, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a descriptor: what was read before it is read again."""
    ship(store, target)
    failures = iter([False, False, True, False, True])
    read = History._read

    def failing(self: History, last: int) -> Iterator[tuple[bytes, bytes]]:
        for one in read(self, last):
            if next(failures, False):
                raise StoreError("too many open files")
            yield one

    monkeypatch.setattr(History, "_read", failing)
    monkeypatch.setattr(shipper, "_PAUSE_S", 0.01)
    with store.transaction() as txn:
        txn.xadd("s", {"n": "0"})
    add(store, 9)
    with shipping(store, target, every="10ms"):
        assert store.wait_shipped("5m")
    assert next(failures, None) is None
    assert not verify_copy(target).problems
    assert_restored(target, tmp_path / "restored", store)


def test_a_damaged_segment_stops_no_commit(store: Store, target: Path) -> None:
    """The copy lacks that segment, as the store does."""
    ship(store, target)
    archive_some(store, 900, 10)
    (segment,) = store.archived_segments("s")
    path = store.segment_path(segment)
    data = path.read_bytes()
    os.truncate(path, len(data) - 5)
    report = ship(store, target)
    assert (report.commit_number, report.missing_segments) == (newest(store), 1)
    path.write_bytes(data)


def test_what_a_killed_shipper_has_left_of_an_erasure(open_store: Open, target: Path) -> None:
    """Segments that no generation needs are removed by the next one, too."""
    store = open_store()
    store.set_retention("s", archive=True)
    ids = [store.xadd("s", entry(n)) for n in range(600)]
    store.xtrim("s", maxlen=9, approximate=False)
    store.archive()
    ship(store, target)
    store.erase("s", *ids)
    store.close()
    killed_at("ship:dropped", lambda: ship(store.path, target))
    assert SECRET in copied(target)
    ship(store.path, target)
    assert SECRET not in copied(target)


def test_an_erasure_reaches_what_killed_shippers_have_left(store: Store, target: Path) -> None:
    """Of two generations of one number, either name may be the later one."""
    one = store.xadd("s", entry(1))
    store.xadd("s", {"n": "2"})
    name = ship(store, target).generation
    for left in ("00000002-00000000", "00000002-ffffffff"):
        shutil.copytree(target / name, target / left)  # a base that the head does not name
    store.erase("s", one)
    assert SECRET in copied(target)
    ship(store, target)
    assert SECRET not in copied(target)


@pytest.mark.parametrize("killed", [False, True])
def test_a_target_that_is_away_before_the_old_generation_is_ended(
    open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool, target: Path
) -> None:
    """The shipper that took over ends it when the target is back; at its next start if killed."""
    bucket_like(monkeypatch)
    store = open_store()
    running = Shipper(store, target)
    running.run(once=True)
    restore_copy(target, tmp_path / "second")
    end_before, failures = Generations.end_before, iter([True])

    def failing(self: Generations, successor: Any) -> None:
        if next(failures, False):
            raise UnreachableError("away")
        end_before(self, successor)

    if killed:
        killed_at("ship:head", lambda: ship(tmp_path / "second", target))
    else:
        monkeypatch.setattr(Generations, "end_before", failing)
    ship(tmp_path / "second", target)
    assert killed or next(failures, None) is None
    store.xadd("s", {"n": "1"})
    with pytest.raises(Again):
        running._step()
    assert not store.wait_shipped(0)


def test_a_take_over_is_done_once(store: Store, target: Path, tmp_path: Path) -> None:
    """Two shippers with --take-over would begin generations in turns for ever."""
    ship(store, target)
    restore_copy(target, tmp_path / "second")
    running = Shipper(store, target, take_over=True)
    running.run(once=True)
    assert_restored(target, tmp_path / "third", store)
    with streamkeep.open(tmp_path / "second") as second:
        ship(second, target, take_over=True)
    store.xadd("s", {"n": "1"})
    with pytest.raises(Refused):
        running.run()


def test_calls_that_survive_the_machine(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    """They return when the target has their commit; without a shipper, nothing is done."""
    store = open_store(sync="none")
    with pytest.raises(StoreError, match="nothing ships"):
        store.using("shipped").xadd("s", {"n": "0"})
    with pytest.raises(StoreError, match="nothing ships"), store.transaction(sync="shipped") as txn:
        txn.xadd("s", {"n": "0"})
    assert not store.exists("s")
    with shipping(store, target, every="50ms") as running:
        wait_until(lambda: running.report().commit_number > 0)
        store.using("shipped").xadd("s", {"n": "1"})
        assert running.report().commit_number == newest(store)
        with store.transaction(sync="shipped") as txn:
            txn.xadd("s", {"n": "2"})
        assert running.report().commit_number == newest(store)
        store.xadd("s", {"n": "3"})
        assert store.using("shipped").xlen("s") == 3  # reads do not wait
    monkeypatch.setattr(store_module, "MOST_SHIPPING_S", 0.0)
    with pytest.raises(NotShippedError, match="on disk here, but no copy has it"):
        store.using("shipped").xadd("s", {"n": "4"})
    assert store.xlen("s") == 4
    with pytest.raises(ArgumentError, match="sync must be one of"):
        open_store(sync="shipped")


def test_calls_of_tasks_that_survive_the_machine(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, target: Path
) -> None:
    """All that wait go on with the piece that has their commits, and hold up no other task."""
    store = open_store(sync="none")
    tasks = AsyncStore(store)

    async def run() -> None:
        with pytest.raises(StoreError, match="nothing ships"):
            await tasks.using("shipped").xadd("s", {"n": "0"})
        with pytest.raises(StoreError, match="nothing ships"):
            await tasks.run(lambda txn: txn.xadd("s", {"n": "0"}), "shipped")
        assert not store.exists("s")
        ship(store, target)
        waiting = [
            asyncio.create_task(tasks.using("shipped").xadd("s", {"n": "1"})) for _ in range(50)
        ]
        waiting.append(
            asyncio.create_task(tasks.run(lambda txn: txn.xadd("s", {"n": "2"}), "shipped"))
        )
        while store.xlen("s") < 51:
            await asyncio.sleep(0.01)
        assert await tasks.using("shipped").xlen("s") == 51  # reads do not wait
        assert await tasks.xadd("s", {"n": "3"})
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(ship, store, target)
        assert len(set(await asyncio.gather(*waiting))) == 51
        monkeypatch.setattr(store_module, "MOST_SHIPPING_S", 0.0)
        with pytest.raises(NotShippedError, match="on disk here, but no copy has it"):
            await tasks.using("shipped").xadd("s", {"n": "4"})
        assert store.xlen("s") == 53
        late = [tasks.using("shipped").xadd("s", {"n": "5"}) for _ in range(3)]
        found = await asyncio.gather(*late, return_exceptions=True)
        assert [type(one) for one in found] == [NotShippedError] * 3

    async def go_on() -> None:
        waiting = [asyncio.create_task(tasks.using("shipped").xadd("s", {"n": "6"}))] * 2
        while store.xlen("s") < 57:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(ship, store, target)
        await asyncio.gather(*waiting)

    asyncio.run(run())
    monkeypatch.undo()
    asyncio.run(go_on())  # in another event loop


def test_what_a_killed_process_has_left_in_a_folder(open_store: Open, target: Path) -> None:
    """Half an object: in a container, the next process has the same number, and must not stop."""
    store = open_store()
    archive_some(store, 900, 10)
    ship(store, target)
    segment = next(one for one in (target / "segments").rglob("*.seg.*"))
    mine = f"{os.getpid()}-{threading.get_native_id()}"
    parts = [segment.with_name(f".{segment.name}.{mine}.part"), target / ".head.json.1-1.part"]
    for part in parts:
        part.write_bytes(SECRET)
    objects = Target(target).objects
    put_bytes(objects, f"segments/{segment.relative_to(target / 'segments')}", b"")
    assert [part.exists() for part in parts] == [False, True]
    ship(store, target)
    assert parts[1].exists()  # a process may still write it
    os.utime(parts[1], (0, 0))
    ship(store, target, renew=True)
    assert not parts[1].exists()
    assert not verify_copy(target, everything=True).problems


def test_a_base_that_does_not_fit_leaves_nothing(
    open_store: Open, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that is full stayed so: each try left the pieces that did fit."""
    store = open_store()
    archive_some(store, 900, 10)

    def full(*_: object) -> None:
        raise UnreachableError("no space is left")

    monkeypatch.setattr(FolderObjects, "put", full)
    with pytest.raises(UnreachableError, match="no space"):
        ship(store, target)
    assert [one.name for one in target.rglob("*") if one.is_file()] == ["probe"]
    monkeypatch.undo()
    ship(store, target)


def test_a_shipper_that_is_stopped_ships_the_rest(
    store: Store, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a machine is shut down: what was committed before is not lost without a word."""
    unmounted = tmp_path / "unmounted"
    with shipping(store, target, every="1h") as running:
        wait_until(lambda: running.report().commit_number > 0)
        store.xadd("s", {"n": "1"})
    assert store.wait_shipped(0)
    store.xadd("s", {"n": "2"})
    target.rename(unmounted)
    running = Shipper(store, target)
    monkeypatch.setattr(running.stop, "wait", lambda _: running.stop.set())
    with pytest.raises(UnreachableError, match="is gone"):
        running.run()
    running = Shipper(store, target)

    def end_with_the_disk_back(_: object) -> None:
        unmounted.rename(target)
        running.stop.set()

    monkeypatch.setattr(running.stop, "wait", end_with_the_disk_back)
    running.run()
    assert store.wait_shipped(0)


@pytest.mark.parametrize("what", ["rows", "generation"])
def test_what_a_shipper_removes_during_a_verification_is_no_damage(
    store: Store, target: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Rows that were merged, and generations that nobody needs any more."""
    monkeypatch.setattr(writer, "_PIECES_PER_ROWS", 1)
    add(store, 3, target)
    check_rows = verify._Check._check_changes
    begun: list[Any] = []

    def interrupted(self: Any, rows: Any) -> None:
        if not begun and (rows.first or what == "generation"):
            begun.append(rows)
            store.xadd("s", {"n": "more"})
            ship(store, target, renew=what == "generation")
            ship(store, target)
        check_rows(self, rows)

    monkeypatch.setattr(verify._Check, "_check_changes", interrupted)
    assert not verify_copy(target).problems
    assert begun
    assert verify_copy(target).last_commit == newest(store)


@pytest.mark.parametrize("requests", slow_but(range(1, 10), 3, 6, 8))
def test_a_restore_and_a_reader_go_on_with_what_replaces_a_generation(
    store: Store, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    """An erasure, for example, removes what they are reading: that is no damage."""
    add(store, 20)
    store.xtrim("s", maxlen=10, approximate=False)
    ship(store, target)
    add(store, 1, target)
    left = 0

    def replacing(whole: Callable[..., Any]) -> Callable[..., Any]:
        def request(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                store.erase("s", store.xrange("s", history=True)[0][0])
                ship(store, target)
            return whole(*args)

        return request

    for name in ("get", "names", "read", "size"):
        monkeypatch.setattr(FolderObjects, name, replacing(getattr(FolderObjects, name)))
    left = requests
    report = restore_copy(target, tmp_path / "restored")
    assert not report.archive_findings
    assert report.commit_number == newest(store)
    left = requests
    with suppress(ChangesGoneError):
        list(changes(target))
