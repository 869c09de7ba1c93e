"""Opening, creating, sharing and closing stores, and what is refused."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import lmdb
import pytest

import streamkeep
from inside import environment_of, journal_of
from patience import PATIENCE_S, wait_until
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.failures import Failures

pytestmark = pytest.mark.both_modes(daily=True)


def fingerprint(folder: Path) -> dict[str, str]:
    """Return name and digest of every file in a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def run(code: str, *args: object) -> str:
    """Run Python code in another process and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_store_is_copied_by_copying_its_directory(open_store: Open, tmp_path: Path) -> None:
    with open_store() as store:
        store.xadd_many("s", [{"n": number} for number in range(100)])
    target = tmp_path / "copy"
    target.mkdir()
    (target / "data.mdb").write_bytes((tmp_path / "store" / "data.mdb").read_bytes())
    assert open_store("copy").xlen("s") == 100


def test_stores_with_different_sync_modes_share_files(open_store: Open) -> None:
    relaxed, durable = open_store(sync="none"), open_store(sync="commit")
    journal = journal_of(durable)
    relaxed.xadd("s", {"f": "v"})
    behind = journal.control.durable()
    durable.xadd("s", {"f": "v"})
    assert journal.control.durable() >= behind + 2
    assert relaxed.xlen("s") == 2


def test_a_sync_of_another_process_serves_those_who_wait(open_store: Open) -> None:
    store = open_store(sync="none")
    store.xadd("s", {"f": "v"})
    store.sync()
    store.xadd("s", {"f": "v"})
    journal = journal_of(store)
    commit_number = store.durability().last_commit
    assert journal.control.durable() < commit_number
    other = ControlFile(journal.folder)  # as another process has it
    other.set_durable(*other.durable_place(), commit_number)
    with failpoints_disarmed():
        failpoints.arm("journal:sync", Mock(side_effect=OSError("a sync that was not needed")))
        assert journal.syncs.wait_for(commit_number)
    other.close()


@contextmanager
def failpoints_disarmed() -> Iterator[None]:
    try:
        yield
    finally:
        failpoints.disarm()


def test_readonly_reads_and_changes_no_file(open_store: Open, tmp_path: Path) -> None:
    with open_store() as store:
        store.xadd("s", {"f": "v"})
    before = fingerprint(tmp_path / "store")
    with open_store(readonly=True) as reader:
        assert reader.xlen("s") == 1
        with pytest.raises(streamkeep.StoreError, match="readonly=True"):
            open_store()
    assert fingerprint(tmp_path / "store")["data.mdb"] == before["data.mdb"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_without_write_permission_is_read(open_store: Open, tmp_path: Path) -> None:
    with open_store() as store:
        store.xadd("s", {"f": "v"})
    for path in ((tmp_path / "store").iterdir(), [tmp_path / "store"]):
        for one in path:
            one.chmod(0o500)
    with pytest.raises(streamkeep.StoreError, match="readonly=True"):
        Store(tmp_path / "store")
    assert open_store(readonly=True).xlen("s") == 1


def test_a_full_disk_is_named_where_the_folder_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=full))
    with pytest.raises(streamkeep.StoreFullError, match="the disk is full"):
        Store(tmp_path / "store")


def test_what_is_missing_is_not_created_by_reading(tmp_path: Path) -> None:
    for options in ({"readonly": True}, {"create": False}):
        with pytest.raises(streamkeep.NotAStoreError, match="no such store"):
            Store(tmp_path / "nothing", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("locked", [False, True])
def test_an_empty_data_file_becomes_a_store(tmp_path: Path, locked: bool) -> None:
    """A creation leaves it if a power loss took all its writes except for the names."""
    for name in ("data.mdb", "lock.mdb")[: 1 + locked]:
        (tmp_path / name).touch()
    with streamkeep.open(tmp_path) as store:
        store.xadd("s", {"f": "v"})
    with streamkeep.open(tmp_path, readonly=True) as store:
        assert store.xlen("s") == 1


def test_other_things_are_refused_and_untouched(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"hello")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "letter.txt").write_bytes(b"dear")
    garbage = tmp_path / "garbage"
    garbage.mkdir()
    (garbage / "data.mdb").write_bytes(b"not LMDB at all" * 1000)
    foreign = tmp_path / "foreign"
    with lmdb.open(str(foreign), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"k", b"v", db=env.open_db(b"theirs", txn))
    (foreign / "lock.mdb").unlink()
    for path in (file, folder, garbage, foreign):
        before = fingerprint(path) if path.is_dir() else {"": path.read_bytes().hex()}
        with pytest.raises(streamkeep.NotAStoreError) as caught:
            Store(path)
        assert str(path) in str(caught.value)
        after = fingerprint(path) if path.is_dir() else {"": path.read_bytes().hex()}
        assert after == before


def test_a_damaged_meta_row_is_reported(path: Path) -> None:
    Store(path).close()
    pages = bytearray((path / "data.mdb").read_bytes())
    for found in re.finditer(b"epoch", bytes(pages)):
        pages[found.end()] ^= 1  # the first byte of the value
    (path / "data.mdb").write_bytes(pages)
    with pytest.raises(streamkeep.ChecksumError):
        Store(path)


def test_a_closed_store_takes_no_calls(store: Store) -> None:
    store.xadd("s", {"f": "v"})
    snapshot = store.snapshot()
    scan = store.scan("s")
    snapshot.close()
    store.close()
    store.close()  # closing twice does no harm
    calls: list[Callable[[], object]] = [
        lambda: store.xadd("s", {"f": "v"}),
        lambda: store.xlen("s"),
        lambda: store.xdel("s", "1-0"),
        lambda: store.keys(),
        lambda: store.snapshot(),
        lambda: store.pipeline(),
        lambda: store.sync(),
        lambda: store.transaction().__enter__(),
        lambda: next(store.scan("s")),
        lambda: next(scan),
        lambda: snapshot.xlen("s"),
        lambda: store.map_size_bytes,
        lambda: store.used_bytes,
    ]
    for call in calls:
        with pytest.raises(streamkeep.StoreClosedError):
            call()
    assert repr(store).endswith("closed>")


@pytest.mark.parametrize("interval_s", [0.1, 0.7, 1.0, 1.4])
def test_the_disk_follows_every_interval(
    monkeypatch: pytest.MonkeyPatch, interval_s: float
) -> None:
    now = [0.0]
    synced = []
    journal = SimpleNamespace(
        syncs=SimpleNamespace(wait_for=lambda commit: synced.append(now[0])),
        control=SimpleNamespace(erasures=lambda: 0),
    )
    context: Any = SimpleNamespace(
        journal_or_raise=lambda: journal,
        erasures=0,
        last_commit=1,
        bytes_since_checkpoint=0,
        watched=True,
        closed="",
    )
    checkpoints: Any = SimpleNamespace(unpin_if_idle=lambda: False, context=context)
    one = checkpointer.Checkpointer(context, checkpoints, lambda: None, Failures())
    notifications: list[None] = []
    monkeypatch.setattr(one, "_wakeup", SimpleNamespace(notify=lambda: notifications.append(None)))
    one.add_interval(interval_s)
    assert len(notifications) == 1

    def wait(seconds: float) -> None:
        now[0] += seconds + 0.001  # no clock stands still
        one._stopping = now[0] > 3

    monkeypatch.setattr(checkpointer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(one, "_wakeup", SimpleNamespace(wait=wait))
    one._stay_awake()
    gaps = [after - before for before, after in pairwise([0.0, *synced])]
    assert gaps == pytest.approx([interval_s] * len(gaps), abs=0.02)
    assert gaps


def test_the_package_says_which_names_it_has() -> None:
    assert set(streamkeep.__all__) <= set(dir(streamkeep))
    for name in streamkeep.__all__:
        assert getattr(streamkeep, name) is not None
    with pytest.raises(AttributeError):
        streamkeep.nothing  # noqa: B018


def test_the_format_loads_without_lmdb() -> None:
    code = """
import sys
sys.modules["lmdb"] = None
import streamkeep.format.node.node, streamkeep.arrow.columns, streamkeep.format.node.envelope
print("loaded")
"""
    assert run(code) == "loaded\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's malloc")
def test_large_entries_take_memory_that_the_process_has() -> None:
    """Else each of the copies that an entry takes is of new pages, which the kernel clears."""
    code = """
import resource, streamkeep, tempfile

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        store.xadd("s", {"f": b"v" * 1_000_000}, maxlen=5)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with tempfile.TemporaryDirectory() as folder:
    with streamkeep.open(folder + "/s", sync="none") as store:
        faults()
        print(faults())
"""
    assert int(run(code)) < 5_000  # otherwise 38,000


def interrupted(step: Callable[[], None], times: int, *, after: bool) -> Callable[[], None]:
    """Return a step of closing that is interrupted some times, before or after its work."""
    left = [times]

    def run() -> None:
        if after:
            step()
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        if not after:
            step()

    return run


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_a_close_that_is_interrupted_leaves_nothing_open(
    open_store: Open, path: Path, monkeypatch: pytest.MonkeyPatch, times: int, *, after: bool
) -> None:
    open_store().close()
    count = number = 0
    while number == 0 or number < count:
        store = streamkeep.open(path)
        store.xadd("s", {"n": number})
        assert store.xread({"s": "0"}) != []
        environment = environment_of(store)
        parts = environment._parts()
        count = len(parts)
        parts[number] = interrupted(parts[number], times, after=after)
        monkeypatch.setattr(environment, "_parts", lambda parts=parts: parts)
        descriptors = len(os.listdir("/proc/self/fd"))
        with pytest.raises(KeyboardInterrupt):
            store.close()
        if times == 2:
            store.close()
        store.close()
        with streamkeep.open(path) as again:
            assert again.xlen("s") == number + 1
            assert len(os.listdir("/proc/self/fd")) <= descriptors
        number += 1
    assert count >= 10


@pytest.mark.usefixtures("no_collections", "plain_locks")  # before the store is opened
@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_close_waits_for_another_thread_leaves_nothing_open(
    store: Store, tmp_path: Path, times: int
) -> None:
    """One interrupt ends the wait for a checkpoint, two more that for the locks."""
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with (
            suppress(streamkeep.StoreClosedError),
            store.transaction() as txn,
        ):  # it is closed before the sync
            txn.xadd("s", {"a": "b"})
            begun.set()
            assert go_on.wait(PATIENCE_S)

    def interrupt() -> None:
        wait_until(lambda: store._closed)
        for _ in range(times):
            time.sleep(0.2)  # the wait has probably begun; if not, nothing is tested
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.2)
        go_on.set()

    main = threading.get_ident()
    threads = [threading.Thread(target=work), threading.Thread(target=interrupt)]
    threads[0].start()
    assert begun.wait(PATIENCE_S)
    threads[1].start()
    with pytest.raises(KeyboardInterrupt):
        store.close()
    for thread in threads:
        thread.join()
    store.close()
    with streamkeep.open(tmp_path / "store") as again:
        assert again.xlen("s") == 1
