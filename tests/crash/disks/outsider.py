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
from functools import partial
from pathlib import Path
from typing import Final

import streamkeep
from crash.disks.history import History
from crash.disks.mounts import make_image, mounted, run, settle
from crash.disks.recorder import PAGE, SUM, page_sums, pieces, read_events
from crash.workload import oracle
from crash.workload.actors import Actor, Style
from crash.workload.faults import Faults
from crash.workload.run import MODES, findings_of, in_child
from crash.workload.worker import Work, fork
from crash.workload.worker import run as work_on
from patience import PATIENCE_S, wait_until
from streamkeep.engine.system import files
from streamkeep.format.core.errors import RecoveryNeededError

RECOVERED: Final = "recovered"
COMMON: Final = (f"{oracle.COMMON}:0", f"{oracle.ARCHIVED}:0")
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
        without: what workers leave out, see `leave_out`; "flushes": the disk lies.
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

    def add(self, problem: str, where: str = "") -> None:
        if problem == RECOVERED:
            self.recovered += 1
        elif problem:
            self.failures.append(where + problem)


class Disk:
    """A recorded disk with a file system, and processes that use a store on it."""

    def __init__(self, plan: Plan, scratch: Path) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.scratch = scratch
        self.image = scratch / "image"
        self.events = scratch / "events"
        self.at = scratch / "disk"
        self.store = self.at / "store"
        self.boot = scratch / "boot"
        self.recorded = scratch / "recorder" / "image"
        self.failing = scratch / "image.fail"
        self.actors: list[str] = []
        self.oracle = oracle.Oracle()
        self.oracle.base = oracle.Dump({key: oracle.Found() for key in COMMON})
        self.boot.write_text(_BOOT_ID.read_text())
        self.here = self.boot.read_text()
        run("mount", "--bind", self.boot, _BOOT_ID)
        make_image(self.image, plan.kind)
        shutil.copyfile(self.image, scratch / "safe")

    @contextmanager
    def recording(self) -> Iterator[None]:
        mount = self.recorded.parent
        mount.mkdir()
        program = [sys.executable, "-m", "crash.disks.recorder"]
        arguments = [mount, self.image, self.events]
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
        """Start a worker with an actor of its own; return its process number."""
        name, seed = f"w{len(self.actors)}", self.random.randrange(1 << 30)
        mode = MODES[(len(self.actors) + self.plan.seed) % len(MODES)]
        style = Style(streams=3, syncs=(mode, "commit"), several=0.5, big=0.02, archived=True)
        notes = self.scratch / f"{name}.notes"
        actor = Actor(name, 0, {}, style, [*COMMON], notes, seed)
        work = Work("threads", self.store, mode, [actor], self.scratch / f"{name}.err")
        work.faults = Faults(small=seed % 4 == 0)
        work.flushes = self.random.choice([1, 3, 30, 1000])
        self.actors.append(name)

        def be_worker() -> None:
            leave_out(self.plan.without)
            work_on(work)

        return fork(be_worker, work.errors)

    def set_up(self) -> None:
        """Create the store, in a process that is killed when it has."""

        def create() -> None:
            leave_out(self.plan.without)
            store = streamkeep.open(self.store)
            for key in COMMON:
                store.xgroup_create(key, oracle.GROUP, id="0", mkstream=True)
            store.set_retention(COMMON[1], archive=True)
            os.kill(os.getpid(), signal.SIGKILL)

        assert os.waitpid(fork(create, self.scratch / "create.err"), 0)[1] == signal.SIGKILL

    def work(self) -> None:
        """Have workers make commits, and kill some of them; in the end all are killed."""
        plan = self.plan
        self.set_up()
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
        new = self.scratch / "image.fail.new"
        new.write_bytes(sums)
        new.rename(self.failing)  # while it was empty, all of the disk would be broken

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
        texts = [path.read_text() for path in self.scratch.glob("w*.err")]
        ours = [text for text in texts if "RecoveryNeededError: " in text or "StoreError: " in text]
        if set(ends) == {1 << 8} and len(ours) == len(ends):
            return ""
        return f"workers end with {ends}: {self.errors()}"

    def kill(self, child: int) -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def returned(self) -> int:
        return sum(path.read_bytes().count(b'["!"') for path in self.scratch.glob("*.notes"))

    def errors(self) -> str:
        return "".join(one.read_text() for one in self.scratch.glob("*.err"))[-2000:]

    def checked(self, at: float) -> str:
        """Open the store after a loss at a time; return what is wrong, or how it was recovered."""
        return in_child(partial(self._look, at), self.scratch / "look.err")

    def _look(self, at: float) -> str:
        recovered = ""
        if self.store.exists():
            try:
                with streamkeep.open(self.store, readonly=True):
                    pass
            except RecoveryNeededError:
                recovered = RECOVERED
            except streamkeep.NotAStoreError:
                pass  # its creation had not begun
        notes = {one: oracle.read_notes(self.scratch / f"{one}.notes") for one in self.actors}
        with streamkeep.open(self.store, decode_responses=True) as store:
            problems = self.oracle.problems(oracle.dump(store), notes, oracle.Promise(at))
            store.xadd("after", {"f": "v"})
        return "; ".join([*problems, *findings_of(self.store)]) or recovered

    def read_files(self) -> None:
        """Read the store as the kernel holds it; a broken disk may show no files any more."""
        for path in self.store.rglob("*"):
            if path.is_file():
                path.read_bytes()

    def set_boot(self, another: bool) -> None:
        """Have the system show this boot, or another one."""
        other = uuid.UUID(int=self.random.getrandbits(128))
        self.boot.write_text(f"{other}\n" if another else self.here)


def leave_out(what: str) -> None:
    """Have this process leave out something that the harness must miss."""
    if what == "every sync":
        files.sync_data = lambda handle: None
    if what == "the sync of checkpoints":
        sync_data = files.sync_data

        def sync_others(handle: int) -> None:
            if not os.readlink(f"/proc/self/fd/{handle}").endswith("/data.mdb"):
                sync_data(handle)

        files.sync_data = sync_others


def power_losses(disk: Disk, report: Report) -> None:
    """Record, then look at what a loss of power may leave at many moments."""
    with disk.recording():
        disk.work()
    report.commits = disk.returned()
    history = History(disk.scratch / "safe", disk.plan.kind, flushes=disk.plan.without != "flushes")
    events = list(read_events(disk.events))
    report.events = len(events)
    flushes = [number for number, event in enumerate(events) if event.data is None]
    report.flushes = len(flushes)
    # Anywhere, and where most is not flushed.
    chosen = set(disk.random.sample(flushes, min(disk.plan.images // 2, len(flushes))))
    rest = min(disk.plan.images - len(chosen), len(events))
    chosen |= set(disk.random.sample(range(1, len(events) + 1), rest))
    for number in range(len(events) + 1):
        if number in chosen:
            at = events[number].at if number < len(events) else float("inf")
            look(disk, report, history, at, number)
        if number < len(events):
            history.follow(events[number])
    history.close()


def look(disk: Disk, report: Report, history: History, at: float, number: int) -> None:
    """Mount what the disk may hold now, open the store in this boot or another, and check it."""
    lost = disk.scratch / "lost"
    report.unsafe += history.lose_power(disk.random, lost)
    report.images += 1
    another = report.images % 2 == 0
    disk.set_boot(another)
    try:
        with mounted(lost, disk.plan.kind, disk.at):
            problem = disk.checked(at)
    except RuntimeError as error:
        problem = f"the file system: {error}"
    finally:
        disk.set_boot(False)
    boot = "another boot" if another else "the same boot"
    report.add(problem, f"before event {number}, {boot}: ")


def broken_disk(disk: Disk, report: Report) -> None:
    """Have the disk fail after all processes have died, and open the store when it works again."""
    data = disk.store / "data.mdb"
    with disk.recording():
        disk.work()
        if disk.plan.broken == "early":
            report.failures += filter(None, [disk.wait_for_ends()])
            try:
                disk.read_files()
            except OSError:
                report.unreadable = True
                return
        before = data.read_bytes()
        disk.fail(only_in(before, disk.store / "journal") if disk.plan.broken == "data" else b"")
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
        report.commits = disk.returned()
        report.images = 1
        report.add(disk.checked(float("inf")))


def only_in(data: bytes, others: Path) -> bytes:
    """Return the checksums of the pages that no file of a folder has: a big value is in two."""
    theirs = {one for path in others.iterdir() for one in pieces(page_sums(path.read_bytes()), SUM)}
    return b"".join(one for one in pieces(page_sums(data), SUM) if one not in theirs)


def evict(folder: Path) -> None:
    """Have the kernel forget the pages of the files in a folder that it need not write."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def main(plan: Plan) -> Report:
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
