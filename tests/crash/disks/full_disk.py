"""The program that fills a file system while processes use a store on it.

    unshare --mount python -m crash.disks.full_disk JSON

The argument is a `Plan`, the output a `Report`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import streamkeep
from crash.disks.mounts import MIB, make_image, mounted, settle
from crash.disks.outsider import SCRATCH
from patience import PATIENCE_S
from streamkeep import recovery

KEY: Final = "s"
ROLES: Final = ("append", "append too", "consume", "idle")


@dataclass
class Plan:
    """What to do."""

    kind: str


@dataclass
class Report:
    """What was seen."""

    full: dict[str, int] = field(default_factory=dict)  # by role: how often the disk was full
    trimmed: int = 0  # how often a process could trim the stream of a full disk
    died: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    problem: str = ""


class Filling:
    """Processes at work on a small disk."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.path = scratch / "disk" / "store"
        self.phase = scratch / "phase"
        self.children: dict[int, str] = {}

    def start(self, role: str) -> None:
        child = os.fork()
        if child == 0:
            with open(self.scratch / f"{role}.err", "w") as errors:
                os.dup2(errors.fileno(), 2)
            faulthandler.enable()
            try:
                self.work(role)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode())
                os._exit(1)
            os._exit(0)
        self.children[child] = role

    def work(self, role: str) -> None:
        """Use the store until the phase is "end"; count what fails, by its phase."""
        self.counted: tuple[str, dict[str, int]] = ("", {})
        while self.counted[0] != "end":
            try:
                with streamkeep.open(self.path, decode_responses=True) as store:
                    while self.counted[0] != "end":
                        self.turn(store, role)
            except streamkeep.StoreFullError:
                self.count(role, "full")  # of an opening, or the last checkpoint

    def turn(self, store: Any, role: str) -> None:
        """Do what the phase asks for."""
        phase = self.counted[0]
        try:
            if phase != "pause":
                self.step(store, role)
            self.count(role, "ok")
        except streamkeep.StoreFullError:
            assert store.xlen("jobs") >= 0  # reading works
            if self.count(role, "full") % 5 == 0 and role == "append":
                self.count(role, "trimmed", trimmed(store))
        if role == "idle" or phase in ("pause", "full"):
            time.sleep(0.002)

    def count(self, role: str, what: str, more: int = 1) -> int:
        """Count something in the present phase, and tell the program; return the number."""
        phase = self.phase.read_text()
        if self.counted[0] != phase:
            self.counted = (phase, {})
        counts = self.counted[1]
        counts[what] = counts.get(what, 0) + more
        beside = self.scratch / f"{role}.new"
        beside.write_text(json.dumps(self.counted))
        beside.rename(self.scratch / f"{role}.json")
        return counts[what]

    def step(self, store: Any, role: str) -> None:
        if role.startswith("append"):
            store.xadd(KEY, {"n": 0, "pad": "x" * 300})
            store.xadd("jobs", {"n": 0})
        elif role == "consume":
            for _, entries in store.xreadgroup("g", "c", {"jobs": ">"}, count=5, block=10) or []:
                store.xack("jobs", "g", *(entry.id for entry in entries))

    def counts(self, role: str, phase: str) -> dict[str, int]:
        """Return what a process has counted in a phase."""
        try:
            found, counts = json.loads((self.scratch / f"{role}.json").read_text())
        except FileNotFoundError:
            return {}
        return counts if found == phase else {}

    def pass_phase(self, phase: str, done: Callable[[], bool]) -> list[str]:
        """Begin a phase; return, when it is done, how processes died in it."""
        self.phase.write_text(phase)
        died: list[str] = []
        deadline = time.monotonic() + PATIENCE_S
        while not done() and not died and time.monotonic() < deadline:
            time.sleep(0.01)
            settle(self.path.parent)  # written pages are clean; to change one may need a new block
            died += self.reap()
        return died

    def kill(self, role: str) -> None:
        for child in [one for one, found in self.children.items() if found == role]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            del self.children[child]

    def reap(self) -> list[str]:
        died = []
        for child, role in list(self.children.items()):
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                del self.children[child]
                if status:
                    said = (self.scratch / f"{role}.err").read_text()[:2000]
                    died.append(f"{role}: status {status} {said}")
        return died


def trimmed(store: Any) -> int:
    """Return whether a process can make room."""
    try:
        store.xtrim(KEY, maxlen=max(0, store.xlen(KEY) - 10), approximate=False)
    except streamkeep.StoreFullError:
        return 0
    return 1


def fill(folder: Path) -> None:
    """Leave no room on a file system."""
    size = MIB
    with open(folder / "filler", "wb", buffering=0) as file:
        while size >= 512:
            try:
                file.write(b"z" * size)
            except OSError:
                size //= 2
    settle(folder)


def main(plan: Plan) -> Report:
    """Do what is planned."""
    report = Report()
    scratch = Path(tempfile.mkdtemp(prefix="streamkeep-full-", dir=SCRATCH))
    filling = Filling(scratch)
    make_image(scratch / "image", plan.kind)
    try:
        with mounted(scratch / "image", plan.kind, scratch / "disk") as folder:
            follow(filling, folder, report)
            for role in ROLES:
                filling.kill(role)
            findings = [str(one) for one in recovery.check(filling.path)]
            report.problem = report.problem or "".join(findings[:3])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return report


def follow(filling: Filling, folder: Path, report: Report) -> None:
    """Have the disk become full, and free again."""
    filling.phase.write_text("work")
    with streamkeep.open(filling.path) as store:
        store.xgroup_create("jobs", "g", id="0", mkstream=True)
    busy = [role for role in ROLES if role != "idle"]
    for role in ROLES:
        filling.start(role)

    def all_of(what: str, phase: str, least: int, roles: list[str]) -> Callable[[], bool]:
        return lambda: all(filling.counts(role, phase).get(what, 0) >= least for role in roles)

    report.died += filling.pass_phase("work", all_of("ok", "work", 30, busy))
    report.died += filling.pass_phase("pause", all_of("ok", "pause", 3, [*ROLES]))
    fill(folder)
    report.died += filling.pass_phase("full", all_of("full", "full", 10, busy[:2]))
    report.full = {role: filling.counts(role, "full").get("full", 0) for role in ROLES}
    report.trimmed = filling.counts("append", "full").get("trimmed", 0)
    filling.kill("append too")  # maybe with a lock
    (folder / "filler").unlink()
    settle(folder)
    report.died += filling.pass_phase(
        "free", all_of("ok", "free", 30, [*filling.children.values()])
    )
    report.died += filling.pass_phase("end", lambda: not filling.children)
    report.hung = [*filling.children.values()]


if __name__ == "__main__":
    print(json.dumps(asdict(main(Plan(**json.loads(sys.argv[1]))))))
