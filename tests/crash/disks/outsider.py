"""The program that runs processes on a recorded disk, and looks at the store after each loss.

    unshare --mount python -m crash.disks.outsider JSON

The argument is a `Plan`, the output a `Report`. In its own mount namespace the program can show
processes another boot ID, and what it mounts vanishes with it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import streamkeep
from crash.disks.history import History
from crash.disks.mounts import make_image, mounted, run, settle
from crash.disks.recorder import PAGE, page_sums, read_events
from crash.disks.work import ALL, MODES, Notes, Worker, in_child, leave_out, wrong
from patience import PATIENCE_S, wait_until
from streamkeep.format.core.errors import RecoveryNeededError

SCRATCH: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Plan:
    """What to do.

    Attributes:
        kind: of the file system.
        commits: how many commits the workers make in all.
        kills: how many of them are killed before the work ends. Sometimes all are killed at once,
            and then the first one that recovers the store.
        images: how many losses of power are looked at.
        broken: the disk fails after all processes have died: "disk" wholly, and is mounted again;
            "data" for the pages of the data file, and stays mounted; "early" wholly, while the
            processes are at work. The power is not lost then.
        without: what workers leave out, see `work.leave_out`; "flushes": the disk lies.
    """

    kind: str
    seed: int
    commits: int = 300
    kills: int = 3
    workers: int = 3
    images: int = 20
    broken: str = ""
    without: str = ""


@dataclass
class Report:
    """What was seen."""

    images: int = 0
    commits: int = 0
    events: int = 0
    flushes: int = 0
    unsafe: int = 0  # sectors that were written and not flushed, over all images
    recovered: int = 0
    unreadable: bool = False  # the file system has given up the broken disk, and shows no files
    failures: list[str] = field(default_factory=list)


class Disk:
    """A recorded disk with a file system, and processes that use a store on it."""

    def __init__(self, plan: Plan, scratch: Path) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.scratch = scratch
        self.image = scratch / "image"
        self.events = scratch / "events"
        self.notes = scratch / "notes"
        self.at = scratch / "disk"
        self.store = self.at / "store"
        self.boot = scratch / "boot"
        self.recorded = scratch / "recorder" / "image"
        self.failing = scratch / "image.fail"
        self._workers = 0
        self.notes.touch()
        self.boot.write_text(_BOOT_ID.read_text())
        self.here = self.boot.read_text()
        run("mount", "--bind", self.boot, _BOOT_ID)
        make_image(self.image, plan.kind)
        shutil.copyfile(self.image, scratch / "safe")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Mount the recorded image."""
        mount = self.recorded.parent
        mount.mkdir()
        program = [sys.executable, "-m", "crash.disks.recorder"]
        arguments = [mount, self.image, self.events, self.notes]
        recorder = subprocess.Popen([*program, *map(str, arguments)])
        try:
            wait_until(lambda: self.recorded.exists() or recorder.poll() is not None)
            assert recorder.poll() is None, "the recorder has ended"
            with mounted(self.recorded, self.plan.kind, self.at):
                yield
        finally:
            subprocess.run(["fusermount3", "-u", str(mount)], check=False)
            recorder.wait(PATIENCE_S)

    def fork_worker(self) -> int:
        """Start a worker; return its process number."""
        self._workers += 1
        name, seed = f"w{self._workers}", self.random.randrange(1 << 30)
        mode = MODES[(self._workers + self.plan.seed) % len(MODES)]

        def work() -> str:
            leave_out(self.plan.without)
            Worker(self.store, self.notes, name, seed, mode).run(1 << 30)
            return ""

        child = os.fork()
        if child == 0:
            with open(self.scratch / f"{name}.err", "w") as errors:
                os.dup2(errors.fileno(), 2)
                try:
                    work()
                except BaseException as error:
                    errors.write(f"{type(error).__name__}: {error}")
            os._exit(1)
        return child

    def work(self) -> None:
        """Have workers make commits, and kill some of them; in the end all are killed."""
        plan = self.plan
        alive = [self.fork_worker() for _ in range(plan.workers)]
        kills = sorted(self.random.randrange(plan.commits) for _ in range(plan.kills))
        for goal in [*kills, plan.commits]:
            deadline = time.monotonic() + PATIENCE_S
            while self.returned() < goal:
                assert time.monotonic() < deadline, "no worker works"
                time.sleep(0.002)
                for child in alive:
                    assert os.waitpid(child, os.WNOHANG)[0] == 0, self.errors()
            if goal == plan.commits:
                break
            self.kill(alive.pop(self.random.randrange(len(alive))))
            if self.random.random() < 0.4:
                while alive:
                    self.kill(alive.pop())
                alive.append(self.fork_worker())
                time.sleep(self.random.random() * 0.1)
                self.kill(alive.pop())
            alive += [self.fork_worker() for _ in range(plan.workers - len(alive))]
        for child in alive:
            self.kill(child)

    def fail(self, sums: bytes = b"") -> None:
        """Break the disk: wholly, or for writes of pages with these checksums."""
        self.failing.write_bytes(sums)

    def wait_for_ends(self) -> str:
        """Break the disk while workers use it; return how they end, if not with our errors."""
        children = [self.fork_worker() for _ in range(self.plan.workers)]
        goal = self.returned() + 30
        wait_until(lambda: self.returned() >= goal, "no worker works")
        self.fail()
        ends = []
        for child in children:
            deadline = time.monotonic() + PATIENCE_S
            while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
                if time.monotonic() > deadline:
                    self.kill(child)
                    return "a worker hangs"
                time.sleep(0.01)
            ends.append(found[1])
        said = self.errors()
        expected = said.count("RecoveryNeededError: ") + said.count("StoreError: ")
        if set(ends) == {1 << 8} and expected == len(ends):
            return ""
        return f"workers end with {ends}: {said}"

    def kill(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def returned(self) -> int:
        """Return how many commits have returned."""
        data = self.notes.read_bytes()
        return data.count(b'["!"') + data.count(b'["."')

    def errors(self) -> str:
        return "".join(one.read_text() for one in self.scratch.glob("*.err"))[-2000:]

    def order(self) -> list[str]:
        """Return the entries of ALL as a process sees them that opens the store now."""
        said = in_child(lambda: " ".join(read_all(self.store)))
        return said.split()

    def set_boot(self, another: bool) -> None:
        """Have the system show this boot, or another one."""
        other = uuid.UUID(int=self.random.getrandbits(128))
        self.boot.write_text(f"{other}\n" if another else self.here)


def read_all(path: Path) -> list[str]:
    with streamkeep.open(path, decode_responses=True) as store:
        return [entry.fields["t"] for entry in store.xrange(ALL)]


def power_losses(disk: Disk, report: Report) -> None:
    """Record, then look at what a loss of power may leave at many moments."""
    with disk.recording():
        disk.work()
        order = disk.order()
    notes = Notes(disk.notes, order)
    report.commits = notes.commits()
    history = History(disk.scratch / "safe", disk.plan.kind, flushes=disk.plan.without != "flushes")
    events = list(read_events(disk.events))
    report.events = len(events)
    report.flushes = sum(event.data is None for event in events)
    for number in cuts(disk, [event.data is None for event in events], history, events):
        noted = events[number].noted if number < len(events) else disk.notes.stat().st_size
        look(disk, report, history, notes, noted, number)
    history.close()


def cuts(disk: Disk, flushes: list[bool], history: History, events: list[Any]) -> Iterator[int]:
    """Follow the record; yield at some places: anywhere, and where most is not flushed."""
    before_flush = [number for number, flush in enumerate(flushes) if flush]
    half = disk.plan.images // 2
    chosen = set(disk.random.sample(before_flush, min(half, len(before_flush))))
    rest = min(disk.plan.images - len(chosen), len(events))
    chosen |= set(disk.random.sample(range(1, len(events) + 1), rest))
    for number in range(len(events) + 1):
        if number in chosen:
            yield number
        if number < len(events):
            history.follow(events[number])


def look(
    disk: Disk, report: Report, history: History, notes: Notes, noted: int, number: int
) -> None:
    """Mount what the disk may hold now, open the store in this boot or another, and check it."""
    lost = disk.scratch / "lost"
    report.unsafe += history.lose_power(disk.random, lost)
    report.images += 1
    another = report.images % 2 == 0
    disk.set_boot(another)
    try:
        with mounted(lost, disk.plan.kind, disk.at):
            problem = in_child(lambda: checked(disk.store, notes, noted))
    except RuntimeError as error:
        problem = f"the file system: {error}"
    finally:
        disk.set_boot(False)
    if problem == "recovered":
        report.recovered += 1
    elif problem:
        boot = "another boot" if another else "the same boot"
        report.failures.append(f"before event {number}, {boot}: {problem}")


def checked(path: Path, notes: Notes, noted: int) -> str:
    """Return what is wrong with a store, "recovered" if that repaired it."""
    reason = ""
    if path.exists():
        try:
            with streamkeep.open(path, readonly=True):
                pass
        except RecoveryNeededError as error:
            reason = str(error)
        except streamkeep.NotAStoreError:
            pass  # its creation had not begun
    return wrong(path, notes, noted) or ("recovered" if reason else "")


def broken_disk(disk: Disk, report: Report) -> None:
    """Have the disk fail after all processes have died, and open the store when it works again."""
    data = disk.store / "data.mdb"
    with disk.recording():
        disk.work()
        if disk.plan.broken == "early":
            report.failures += filter(None, [disk.wait_for_ends()])
        copy = disk.scratch / "copy"  # of what the kernel holds
        try:
            shutil.copytree(
                disk.store, copy, ignore=shutil.ignore_patterns("waiters", "leases", "lock.mdb")
            )
        except (OSError, shutil.Error):
            report.unreadable = disk.plan.broken == "early"
            if not report.unreadable:
                raise
            return
        before = data.read_bytes()
        disk.fail(page_sums(before) if disk.plan.broken == "data" else b"")
        settle(disk.at)
        disk.failing.unlink()
        if disk.plan.broken == "data":
            evict(disk.store)
        else:
            run("umount", disk.at)
            run("mount", "-t", disk.plan.kind, "-o", "loop", disk.recorded, disk.at)
        after = data.read_bytes().ljust(len(before), b"\0")
        pages = range(0, len(before), PAGE)
        report.unsafe = sum(before[at : at + PAGE] != after[at : at + PAGE] for at in pages)
        notes = Notes(disk.notes, in_child(lambda: " ".join(read_all(copy))).split())
        report.commits = notes.commits()
        report.images = 1
        problem = in_child(lambda: checked(disk.store, notes, disk.notes.stat().st_size))
        if problem == "recovered":
            report.recovered = 1
        elif problem:
            report.failures.append(problem)


def evict(folder: Path) -> None:
    """Have the kernel forget the pages of the files in a folder that it need not write."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def main(plan: Plan) -> Report:
    """Do what is planned."""
    report = Report()
    scratch = Path(tempfile.mkdtemp(prefix="streamkeep-disk-", dir=SCRATCH))
    try:
        disk = Disk(plan, scratch)
        (broken_disk if plan.broken else power_losses)(disk, report)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return report


if __name__ == "__main__":
    print(json.dumps(asdict(main(Plan(**json.loads(sys.argv[1]))))))
