"""Runs: rounds of work on one store, each ended by a fault, a comparison, and the next round."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import streamkeep
from crash.disks.mounts import make_image, mounted, settle
from crash.losses import small_journal
from crash.power import after_a_loss, another_boot, copy_store, watched
from crash.workload import oracle
from crash.workload.actors import Actor, Style
from crash.workload.faults import Faults
from crash.workload.worker import Work, fork, run
from failpoint_names import NAMES
from patience import PATIENCE_S
from stopped import die_at
from streamkeep import recovery
from streamkeep.engine.api.views import Sync
from streamkeep.engine.crash_recovery.state import WAYS
from streamkeep.engine.system import failpoints as at_failpoints
from streamkeep.engine.txn import begin
from streamkeep.recovery.fsck.findings import Severity

MODES: Final[tuple[Sync, ...]] = ("commit", "interval", "none")
_ONLY_ROOM: Final = ("SK311", "SK312")


class Failure(Exception):
    """A store is not as it must be, or a process has failed."""


class Refused(Failure):
    """A store was not opened: a recovery would lose what it holds."""


@dataclass
class Child:
    """A process of a round."""

    pid: int
    work: Work
    status: int | None = None


@dataclass
class Figures:
    """What was done."""

    rounds: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    losses: int = 0
    transactions: int = 0
    of_jobs: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.rounds.items()))
        counts = (
            f"{self.transactions:,} transactions, {self.of_jobs:,} of them on queues, "
            f"{self.kills} kills, {self.losses} power losses"
        )
        return f"{counts}; rounds: {kinds}"


class Run:
    """One store, and rounds of work on it.

    Args:
        folder: for the store and the notes; what a failure leaves stays there.
        only: kinds of rounds; all by default.
        disk: the kind of the file system that is full in some rounds.
    """

    def __init__(
        self, folder: Path, seed: int, figures: Figures, only: list[str], disk: str = "tmpfs"
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.random = random.Random(seed)
        self.figures = figures
        self.only = only or list(ROUNDS)
        self.disk = disk
        # The archive of some stores is published. A state from before would be another copy of it.
        publishes = [one for one in self.only if one in GO_ON]
        self.fleet: Path | None = None
        if publishes and self.random.random() < 0.4:
            self.fleet, self.only = folder / "fleet", publishes
        self.path = folder / "store"
        self.oracle = oracle.Oracle()
        self.round = 0
        slots = self.random.choice([1, 2, 4, 8, 16, 24])
        streams = self.random.choice([1, 16, 64, 64, 200, 500])
        self.actors = [f"a{number}" for number in range(slots)]
        self.styles = {name: self._style(max(1, streams // slots)) for name in self.actors}
        commons = self.random.choice([1, 2, 8])
        self.common = [f"{oracle.COMMON}:{n}" for n in range(commons)] + [
            f"{oracle.ARCHIVED}:{n}" for n in (0, 1)
        ]
        self.children: list[Child] = []
        self._make_store()

    def _style(self, streams: int) -> Style:
        choose = self.random.choice
        return Style(
            streams=streams,
            several=choose([0.0, 0.3, 0.6, 0.9]),
            most=choose([2, 4, 12, 30]),
            big=choose([0.0, 0.0, 0.01, 0.05]),
            fails=choose([0.0, 0.0, 0.1]),
            rest_s=choose([0.0, 0.0, 0.002, 0.02]),
            archived=choose([False, False, True]),
            erases=choose([False, False, False, True]),
        )

    def _make_store(self) -> None:
        def make() -> str:
            with streamkeep.open(self.path, decode_responses=True) as store:
                for key in self.common:
                    store.xgroup_create(key, "g", id="0", mkstream=True)
                    if key.startswith(oracle.ARCHIVED):
                        store.set_retention(key, maxlen=50, archive=True)
                if self.fleet is not None:
                    store.archive(to=self.fleet)
            return ""

        said = in_child(make, self.folder / "make.err")
        if said:
            raise Failure(said)
        found = self._look(self.path)
        self.oracle.settle(found, {})

    def play(self) -> None:
        self.round += 1
        kind = self.random.choice(self.only)
        self.figures.rounds[kind] += 1
        try:
            ROUNDS[kind](self)
        finally:
            self.stop_all()
        self.figures.transactions += self.oracle.transactions
        self.figures.of_jobs += self.oracle.of_jobs
        self.oracle.transactions = self.oracle.of_jobs = 0

    def works(
        self, *, alone: bool = False, least: int = 1, big: float = 0.0, **faults: Any
    ) -> list[Work]:
        """Choose processes, and share the actors among them.

        Args:
            alone: one process.
            least: at least so many processes, if there are as many actors.
            big: how often an entry is big, at least.
            faults: of the first process, which the others only see the consequences of; but a
                full disk is full for all.
        """
        names = list(self.actors)
        self.random.shuffle(names)
        shares = 1 if alone else max(least, self.random.choice([1, 1, 1, 2, 3, 4]))
        shares = min(len(names), shares)
        works: list[Work] = []
        for number in range(shares):
            mine = names[number::shares]
            kinds = ["threads", "threads", "tasks", *([] if alone else ["clients"])]
            kind = self.random.choice(kinds)
            sync = self.random.choice(MODES)
            path = self.path
            if kind == "clients":
                path = self.folder / f"{self.round}-{number}.sock"
                server = self._work("server", self.path, sync, [])
                server.socket = path
                works.append(server)
            works.append(self._work(kind, path, sync, mine, big))
        if not alone and self.random.random() < 0.3:
            works.append(self._work("visits", self.path, self.random.choice(MODES), []))
        if not alone and self.random.random() < 0.4:
            works.append(self._watcher())
        seed = self.random.randrange(1 << 30)
        common = {
            "small": alone or self.random.random() < 0.3,
            "waits": self.random.choice([0.0, 0.02]),
            "full": bool(faults.pop("full", False)),
        }
        fails = any(faults.get(name) for name in ("writes_fail", "syncs_fail", "file_limit"))
        for number, work in enumerate(works):
            its = faults if number == 0 else {"others_fail": fails}
            work.flushes = self.random.choice([1, 3, 30, 1000])
            work.faults = Faults(seed + number, **{**common, **its})
        for server, clients in pairwise(works):
            if server.kind == "server":
                clients.faults.served = not server.faults.quiet()
        return works

    def _work(self, kind: str, path: Path, sync: Sync, names: list[str], big: float = 0.0) -> Work:
        actors = []
        hows = self.random.choice([("pipeline",), ("pipeline",), ("transaction", "pipeline")])
        for name in names:
            style = replace(self.styles[name])
            style.big = max(style.big, big)
            style.served = kind == "clients"
            style.publishes = self.fleet is not None
            style.hows = hows
            jobs = self.random.choice([0.0, 0.0, 0.1, 0.7])
            style.jobs = jobs if kind == "threads" else 0.0
            style.syncs = (
                (sync, *MODES) if kind != "clients" and self.random.random() < 0.3 else (sync,)
            )
            notes = self._notes(name)
            notes.unlink(missing_ok=True)
            actors.append(
                Actor(
                    name,
                    self.oracle.numbers.get(name, 0),
                    self.oracle.state_of(name),
                    style,
                    self.common,
                    notes,
                    self.random.randrange(1 << 30),
                )
            )
        errors = self.folder / f"{self.round}-{kind}-{'-'.join(names[:3])}.err"
        return Work(kind, path, sync, actors, errors)

    def _watcher(self) -> Work:
        """Return a process that compares snapshots while others go on."""
        work = self._work("watches", self.path, "none", [])
        work.readonly = self.random.random() < 0.5
        work.oracle = self.oracle
        work.notes = [self._notes(name) for name in self.actors]
        return work

    def _notes(self, name: str) -> Path:
        return self.folder / f"{name}.notes"

    def start(self, works: list[Work]) -> None:
        for name in self.actors:
            if not any(name == one.name for work in works for one in work.actors):
                self._notes(name).unlink(missing_ok=True)
        for work in works:
            self.children.append(Child(fork(partial(run, work), work.errors), work))
            for one in work.actors:
                one.close()

    def noted(self) -> int:
        """Return how much the actors have noted in this round."""
        notes = [self._notes(name) for name in self.actors]
        return sum(path.stat().st_size for path in notes if path.exists())

    def let_work(self, least: int = 80_000, most_s: float = 1.0, *, surely: bool = True) -> None:
        """Wait until the actors have done something; a process may end before.

        Args:
            surely: they cannot be kept from doing something for long.
        """
        before = self.noted()
        wanted = self.random.randrange(least // 4, least * 2)
        began = time.monotonic()
        while self.noted() - before < wanted:
            self.reap()
            if not self.busy():
                return
            if time.monotonic() - began > most_s and (self.noted() > before or not surely):
                return
            if time.monotonic() - began > PATIENCE_S:
                raise Failure(f"nothing was done in {PATIENCE_S:.0f} s: {self.errors()}")
            time.sleep(0.002)

    def reap(self) -> None:
        for child in self.children:
            if child.status is None:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    self._ended(child, status)

    def _ended(self, child: Child, status: int) -> None:
        child.status = os.waitstatus_to_exitcode(status)
        if child.status not in (0, -signal.SIGKILL):
            raise Failure(f"a process ended with {child.status}: {self.errors()}")

    def kill(self, child: Child) -> None:
        if child.status is None:
            os.kill(child.pid, signal.SIGKILL)
            self._ended(child, os.waitpid(child.pid, 0)[1])
            self.figures.kills += 1

    def stop_all(self) -> None:
        for child in self.children:
            if child.status is None:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
        self.children = []

    def alive(self) -> list[Child]:
        self.reap()
        return [one for one in self.children if one.status is None]

    def busy(self) -> list[Child]:
        """Return the processes whose actors can go on: they live, and so does their server."""
        gone = {one.work.socket for one in self.children if one.status is not None}
        return [one for one in self.alive() if one.work.actors and one.work.path not in gone]

    def errors(self) -> str:
        texts = [child.work.errors for child in self.children]
        return "".join(path.read_text() for path in texts if path.exists())[-3000:]

    def end_by_kills(self) -> None:
        self.random.shuffle(self.children)
        for child in self.children:
            self.kill(child)
            if self.random.random() < 0.3:
                time.sleep(self.random.choice([0.005, 0.05, 0.2]))  # the others go on

    def kill_at(self, name: str) -> None:
        """Have a process kill itself at a failpoint while another one works, and compare.

        What a recovery has to do was left by one that was killed before.
        """
        if name.startswith("recover"):
            self._die_at_work("commit:journaled", 60)
            while not self.dies_in_recovery(name, self.path, another_boot(77)):
                self.verify()  # there was nothing to recover
                self._die_at_work("commit:journaled", 60)
        else:
            self._die_at_work(name, 60 if name.startswith(("commit", "journal:sync")) else 3)
        self.verify()

    def _die_at_work(self, name: str, passages: int) -> None:
        for style in self.styles.values():
            style.rest_s = 0.0
            style.erases = name != "commit:failed"  # an actor ends with an erasure that failed
        works = []
        for names in filter(None, (self.actors[::2], self.actors[1::2])):
            works.append(self._work("threads", self.path, self.random.choice(MODES), names))
            works[-1].flushes = self.random.choice([1, 20, 1000])
        works[0].faults = Faults(
            at=name,
            passages=self.random.randrange(1, passages),
            raises=0.05 if name == "commit:failed" else 0.0,
        )
        self.round += 1
        self.start(works)
        died, began = self.children[0], time.monotonic()
        while died.status is None:
            if time.monotonic() - began > PATIENCE_S:
                raise Failure(f"no process came to {name} in {PATIENCE_S:.0f} s: {self.errors()}")
            time.sleep(0.002)
            self.reap()
        if died.status != -signal.SIGKILL:
            raise Failure(f"a process did not come to {name}: {self.errors()}")
        self.end_by_kills()
        self.children = []

    def dies_in_recovery(self, name: str, path: Path, boot: AbstractContextManager[None]) -> bool:
        """Open a store in a process that kills itself at a failpoint; return whether it did."""

        def recover() -> None:
            die_at(name, 1)
            with small_journal(), boot:
                streamkeep.open(path).close()

        errors = self.folder / "recover.err"
        status = os.waitstatus_to_exitcode(os.waitpid(fork(recover, errors), 0)[1])
        if status not in (0, -signal.SIGKILL):
            raise Failure(f"a recovery failed: {errors.read_text()[-3000:]}")
        return status != 0

    def lose_power_in_recovery(self, image: Path) -> Path:
        """Recover what a loss has left, and lose the power again on the way; return what is left.

        A recovery may be over before: then its store is left.
        """
        target = image.with_name(f"{image.name}-again")
        left = self.random.randrange(1, 14)

        def recover() -> None:
            with small_journal(), another_boot(66), watched(image, safe=True) as disk:

                def passed(name: str) -> None:
                    nonlocal left
                    left -= 1
                    if not left:
                        disk.lose_power(target, self.random)
                        os.kill(os.getpid(), signal.SIGKILL)

                at_failpoints.watch(passed)
                streamkeep.open(image).close()

        errors = self.folder / "recover.err"
        status = os.waitstatus_to_exitcode(os.waitpid(fork(recover, errors), 0)[1])
        if status not in (0, -signal.SIGKILL):
            raise Failure(f"a recovery failed: {errors.read_text()[-3000:]}")
        self.figures.losses += status != 0
        return target if status else image

    def notes(self) -> dict[str, dict[int, oracle.Transaction]]:
        return {name: oracle.read_notes(self._notes(name)) for name in self.actors}

    def compare(
        self, path: Path, promise: oracle.Promise | None = None, boot: int = 0, **options: Any
    ) -> oracle.Dump:
        """Check and open a store, and compare it with the notes; return what was found."""
        found = self._look(path, boot, **options)
        wrong = self.oracle.problems(found, self.notes(), promise or oracle.Promise())
        if wrong:
            raise Failure(f"{path}: " + "\n  ".join(wrong[:8]))
        return found

    def verify(self) -> None:
        """Compare the store, or also what a power loss after all writes leaves; go on with one."""
        copy, keeps = self.folder / f"store-{self.round}", self.random.random() < 0.5
        if self.random.random() < 0.3 and self.fleet is None:
            copy_store(self.path, copy)
        found = self.compare(self.path)
        if copy.exists():
            other = self.compare(copy, boot=1000 + self.round, works_off=not keeps)
            if keeps:
                self.path, copy, found = copy, self.path, other
            shutil.rmtree(copy)
        self.oracle.settle(found, self.notes())

    def _look(self, path: Path, boot: int = 0, **options: Any) -> oracle.Dump:
        """Check a store, open it, read all of it, close it, check it; in a process of its own.

        Args:
            boot: it is opened after a loss of what was not on disk, with the boot or the mount.
            options: of the opening; such a store is damaged. With `works_off`, all of its jobs are
                done then, and it is of no use any more.
        """
        works_off = options.pop("works_off", False)
        damaged = options.pop("damaged", False) or bool(options)
        answer = self.folder / "found"
        closely = self.random.random() < 0.3 or self.fleet is not None

        def look() -> str:
            if boot:
                with after_a_loss(boot), small_journal():
                    return look_here()
            with small_journal():
                return look_here()

        def look_here() -> str:
            findings = findings_of(path) if (path / "steady").exists() else []
            if findings and not boot and not damaged:
                return f"before it is opened: {findings[:3]}"
            with streamkeep.open(path, decode_responses=True, **options) as store:
                found = oracle.dump(store)
                if closely:
                    store.archive(seal=self.fleet is not None)
                    after = oracle.dump(store)
                    if self.fleet is not None:
                        after.problems += oracle.unpublished(store, self.fleet, after)
                    if (after.streams, after.problems) != (found.streams, found.problems):
                        return f"the archiver has changed what the store shows {after.problems}"
                wrong = oracle.work_off(store) if works_off else []
                if wrong:
                    return f"not all jobs can be done: {wrong[:3]}"
            findings = findings_of(path) if closely else []
            if findings:
                return f"after it was closed: {findings[:3]}"
            answer.write_bytes(pickle.dumps(found))
            return ""

        said = in_child(look, self.folder / "look.err")
        if "RecoveryNeededError" in said and damaged:
            raise Refused(said)
        if said:
            raise Failure(f"{path}: {said}")
        return pickle.loads(answer.read_bytes())  # type: ignore[no-any-return]


def findings_of(path: Path) -> list[str]:
    """Return what is wrong with a store; files that a killed archiver has left only take room."""
    return [
        str(one)
        for one in recovery.check(path)
        if one.severity > Severity.NOTE and one.code not in _ONLY_ROOM
    ]


def in_child(work: Callable[[], str], errors: Path) -> str:
    """Run something in a process of its own; return its text, or how it ended."""
    reading, writing = os.pipe()

    def answer() -> None:
        os.write(writing, work().encode())

    errors.unlink(missing_ok=True)
    child = fork(answer, errors)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said if status == 0 else f"{said}\nended with {status}: {errors.read_text()[-3000:]}"


def kills(run: Run, **faults: Any) -> None:
    """Processes are killed at any moment; sometimes others go on for a while."""
    run.start(run.works(**faults))
    run.let_work()
    run.end_by_kills()
    run.verify()


def failpoints(run: Run) -> None:
    """A process kills itself at a failpoint, while others go on."""
    places = ("", "commit", "flush", "journal", "checkpoint", "archive", "publish", "segment")
    at = run.random.choice((*places, "erase", "scrub", "garbage"))
    kills(run, dies=run.random.choice([0.003, 0.03]), at=at)


def stops(run: Run) -> None:
    """Processes are stopped for a moment, wherever they are, before they are killed."""
    run.start(run.works())
    for _ in range(run.random.randrange(2, 12)):
        run.let_work(10_000, 0.2)
        for child in run.alive():
            if run.random.random() < 0.5:
                os.kill(child.pid, signal.SIGSTOP)
                time.sleep(run.random.choice([0.001, 0.01, 0.1]))
                os.kill(child.pid, signal.SIGCONT)
    run.end_by_kills()
    run.verify()


def halfway(run: Run) -> None:
    """Commands of one process fail after their record was written."""
    kills(run, raises=run.random.choice([0.01, 0.1]))


def flushes_fail(run: Run) -> None:
    """LMDB cannot take what one process has in memory; others go on."""
    fails = run.random.choice([0.05, 0.2, 1.0])
    kills(run, flush_fails=fails, waits=0.05, big=0.2, least=2)


def writes_fail(run: Run) -> None:
    kills(run, writes_fail=run.random.choice([0.001, 0.02]))


def syncs_fail(run: Run) -> None:
    """A sync fails in one process: all of them need a recovery."""
    kills(run, syncs_fail=0.01)


def no_growth(run: Run) -> None:
    """The files of one process cannot grow for a while, so that LMDB's own writes fail."""
    kills(run, file_limit=True)


def interrupts(run: Run) -> None:
    """Ctrl-C ends calls of main threads; other threads and processes go on."""
    run.start(run.works())
    for _ in range(run.random.randrange(1, 6)):
        run.let_work(10_000, 0.2, surely=False)
        for child in run.alive():
            if child.work.kind == "threads":
                os.kill(child.pid, signal.SIGINT)
    run.let_work(10_000, 0.2, surely=False)
    run.end_by_kills()
    run.verify()


def full_disk(run: Run) -> None:
    """The disk of all processes is full, and has room again, several times."""
    with small_disk(run) as mount:
        copy_store(run.path, mount / "store")
        shutil.rmtree(run.path)
        run.path = mount / "store"
        run.start(run.works(full=True))
        for _ in range(run.random.randrange(1, 4)):
            run.let_work(20_000, 0.5, surely=False)
            with open(mount / "ballast", "wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
            settle(mount)  # written pages are clean; to change one may need a new block
            time.sleep(run.random.choice([0.01, 0.1, 0.5]))
            (mount / "ballast").unlink()
        run.end_by_kills()
        if run.disk == "tmpfs":
            more = ["mount", "-o", "remount,size=1g", str(mount)]
            subprocess.run(more, check=True)  # a recovery needs room
        run.verify()
        kept = run.folder / f"store-{run.round}"
        if run.path != kept:
            copy_store(run.path, kept)
            run.path = kept


@contextmanager
def small_disk(run: Run) -> Iterator[Path]:
    """Mount a file system with little room for a store."""
    mount = run.folder / "disk"
    if run.disk == "tmpfs":
        used = sum(path.stat().st_size for path in run.path.rglob("*"))
        size = used + run.random.choice([2, 8, 32]) * (1 << 20)
        mount.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(mount)]
        subprocess.run(command, check=True)
        try:
            yield mount
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True)
    else:
        image = run.folder / "image"
        make_image(image, run.disk)
        with mounted(image, run.disk, mount):
            try:
                yield mount
            finally:
                run.stop_all()
        image.unlink()
    mount.rmdir()


def losses(run: Run) -> None:
    """The power is lost at moments while one process works; each is compared."""
    folder = run.folder / "losses"
    folder.mkdir()
    work = run.works(alone=True, losses=folder, store=run.path)
    run.start(work)
    run.let_work(40_000)
    run.end_by_kills()
    shutil.rmtree(folder / "unfinished", ignore_errors=True)
    images = sorted(folder.iterdir(), key=lambda path: float(path.name))
    for number, image in enumerate(run.random.sample(images, min(3, len(images)))):
        promise = oracle.Promise(float(image.name))
        for _ in range(run.random.choice([0, 0, 1, 2])):
            image = run.lose_power_in_recovery(image)
        boot, keeps = 10_000 * (number + 1) + run.round, run.random.random() < 0.3
        found = run.compare(image, promise, boot, works_off=not keeps)
        run.figures.losses += 1
        if keeps:
            kept = run.folder / f"store-{run.round}"
            image.rename(kept)
            shutil.rmtree(run.path)
            run.path = kept
            run.oracle.settle(found, run.notes(), promise)
            break
    else:
        run.verify()
    shutil.rmtree(folder)


def damages(run: Run) -> None:
    """A part of the journal is damaged after a kill: no opening loses anything without a word."""
    run.start(run.works())
    run.let_work()
    run.end_by_kills()
    copy = run.folder / "damaged"
    for _ in range(3):
        shutil.copytree(run.path, copy)
        if run.random.random() < 0.5:
            run.dies_in_recovery(run.random.choice(_OF_A_RECOVERY), copy, nullcontext())
        damage(copy / "journal", run.random)
        try:
            run.compare(copy, damaged=True)
        except Refused as refused:
            # What is left then is what was there at some moment.
            offered = [way for way in WAYS if f'force_recovery="{way}"' in str(refused)]
            forced = run.random.choice(offered)
            run.compare(copy, oracle.Promise(float("-inf")), force_recovery=forced)
        shutil.rmtree(copy)
    run.verify()


# The failpoints that it passes, before and after all is in `data.mdb` again.
_OF_A_RECOVERY: Final = tuple(
    name for name in NAMES if name.startswith(("recover:", "checkpoint:"))
)


def damage(journal: Path, random_: random.Random) -> None:
    """Damage a file of a journal where something was written."""
    files = [path for path in sorted(journal.glob("*.skj")) if path.read_bytes().strip(b"\0")]
    if not files:
        return
    path = random_.choice(files)
    data = bytearray(path.read_bytes())
    at = random_.randrange(len(data.rstrip(b"\0")))
    if random_.random() < 0.5:
        start = at // 512 * 512
        data[start : start + 512] = bytes(len(data[start : start + 512]))
    else:
        data[at] ^= 1 << random_.randrange(8)
    path.write_bytes(data)


GO_ON: Final = ("kills", "failpoints", "stops", "halfway", "syncs_fail", "interrupts")

ROUNDS: Final[dict[str, Callable[[Run], None]]] = {
    one.__name__: one
    for one in (
        kills,
        failpoints,
        stops,
        halfway,
        flushes_fail,
        writes_fail,
        syncs_fail,
        no_growth,
        losses,
        damages,
        *([full_disk] if os.geteuid() == 0 else []),
        # Between two steps of interpreted code an interrupt may take a lock away.
        *([] if isinstance(begin.run_write, FunctionType) else [interrupts]),
    )
}
