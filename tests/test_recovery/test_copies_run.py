"""Writers, shippers, standbys and restores that are killed, and targets that fail.

Whatever happens, a restore gives the store as it was at one of its commits, with all that was
promised, and the copy can be proved. What the processes have told says what must be there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import failpoint_names
import streamkeep
from conftest import assert_sound
from crash.copy_worker import KEYS
from fork_server import Server, forking
from golden_stores import describe
from streamkeep.engine.whole_store.compact import compact
from streamkeep.format.core.errors import StoreError
from streamkeep.recovery import restore_copy, ship, verify_copy
from streamkeep.recovery.copies.standby import Standby, promote
from streamkeep.recovery.copies.target import Target
from tiers import slow_but

RUNS = 400
FAULTS = ("", "", "slow", "away", "full", "unheard", "stale")
SHIP = [one for one in failpoint_names.NAMES if one.startswith("ship:")]
RESTORE = [one for one in failpoint_names.NAMES if one.startswith("ship-restore:")]
_DAY_MS = 86_400_000


@dataclass
class Plan:
    """What a process does; see `copy_worker`."""

    does: str
    path: str
    log: str
    name: str
    seed: int
    target: str = ""
    sync: str = "commit"
    most: int = 1 << 30
    faults: str = ""
    failpoint: str = ""
    clock_ms: int = 0
    keep: str = "7d"
    hold: int = 4 << 30
    once: bool = False


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with forking("crash.copy_worker") as one:
        yield one


class Run:
    """One store, its copy, and what they must be."""

    def __init__(self, server: Server, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.chance = random.Random(seed)
        self.path = folder / "store"
        self.target = str(folder / "target")
        self.states: dict[int, Any] = {}
        self.logs: list[Path] = []
        self.given_up: dict[Path, list[int]] = {}  # the log has commits after that no longer
        self.number = 0
        self.lost = 0  # the target has lost commits up to this one
        with streamkeep.open(self.path):
            pass

    def start(self, does: str, **options: Any) -> int:
        self.number += 1
        name = f"{does}{self.number}"
        log = self.folder / f"{name}.log"
        self.logs.append(log)
        options = {"path": str(self.path), **options}
        return self.server.fork(
            Plan(
                does,
                log=str(log),
                name=name,
                seed=self.chance.randrange(1 << 30),
                target=self.target,
                **options,
            )
        )

    def end(self, pid: int, *, kill: bool = True) -> int:
        """Kill a process, or wait for its end; what it must not do is in its log."""
        if kill:
            os.kill(pid, signal.SIGKILL)
        return self.server.wait(pid)

    def start_shipper(self) -> int:
        """Fork a shipper with a target that may fail, and a clock that may be wrong."""
        chance = self.chance
        return self.start(
            "ship",
            faults=chance.choice(FAULTS),
            failpoint=chance.choice(SHIP) if chance.random() < 0.3 else "",
            clock_ms=chance.choice((0, 0, 0, -_DAY_MS, _DAY_MS, 30 * _DAY_MS)),
            keep=chance.choice(("7d", "1ms")),
            hold=chance.choice((4 << 30, 4 << 30, 40_000)),
        )

    def life(self) -> None:
        """Have processes live for a moment, and kill them."""
        chance = self.chance
        sync = chance.choice(("commit", "interval", "none"))
        writers = [
            self.start("write", sync=sync, most=chance.choice((40, 1 << 30)))
            for _ in range(chance.choice((1, 2, 2, 3)))
        ]
        shippers = [self.start_shipper() for _ in range(chance.choice((1, 1, 2)))]
        others = []
        if chance.random() < 0.6:
            others.append(self.start("follow", path=str(self.folder / "standby")))
        for _ in range(chance.randrange(3)):
            time.sleep(chance.random() * 0.3)
            self.end(shippers.pop())
            shippers.append(self.start_shipper())
        if chance.random() < 0.2:
            os.kill(shippers[-1], signal.SIGSTOP)
            shippers.append(self.start_shipper())
        time.sleep(0.1 + chance.random() * 0.3)
        if chance.random() < 0.3:
            self.check_promises()
            os.kill(shippers[-1], signal.SIGCONT)
        everybody = [*writers, *shippers, *others]
        chance.shuffle(everybody)
        for pid in everybody:
            os.kill(pid, signal.SIGKILL)
        for pid in everybody:
            self.server.wait(pid)
        for log in self.logs:
            errors = Path(f"{log}.errors")
            text = errors.read_text() if errors.exists() else ""
            assert "Traceback" not in text or log.name.startswith(("follow", "restore")), text
        self.check_promises()
        with streamkeep.open(self.path) as store:
            self.note(store)

    def note(self, store: Any) -> None:
        """Note what the store is now, so that it can be compared with what is restored."""
        with store.snapshot() as snapshot:
            commit = snapshot.txn.newest_commit()
        self.states[commit] = describe(store)

    def told(self) -> list[dict[str, Any]]:
        """Return what processes have told; of commits that were given up, that they never were."""
        found = []
        for log in filter(Path.exists, self.logs):
            # A kill can end a write in the middle of a line.
            for line in log.read_text().split("\n")[:-1]:
                one = json.loads(line)
                for until in self.given_up.get(log, ()):
                    if one.get("before", -1) >= until:
                        one["before"] = 1 << 62
                    if max(one.get("commit", 0), one.get("after", 0)) > until:
                        one.pop("after", None)
                        one["commit"] = 0
                found.append(one)
        return found

    def check_promises(self) -> None:
        """What was promised can be restored when the store is gone."""
        promised = max(
            (one["commit"] for one in self.told() if one["kind"] == "promise"), default=0
        )
        if promised > self.lost:
            assert self.restore().commit_number >= promised

    def restore(self, commit: int | None = None) -> Any:
        """Restore the copy, compare it with what is known, and remove it."""
        self.number += 1
        place = self.folder / f"restored{self.number}"
        if self.chance.random() < 0.2:
            pid = self.start("restore", path=str(place), failpoint=self.chance.choice(RESTORE))
            self.end(pid, kill=False)
            shutil.rmtree(place, ignore_errors=True)
        done = restore_copy(self.target, place, commit=commit)
        assert_sound(place)
        with streamkeep.open(place, readonly=True) as restored:
            found = describe(restored)
            self.compare(done.commit_number, restored)
        if done.commit_number in self.states:
            assert found == self.states[done.commit_number], done
        shutil.rmtree(place)
        return done

    def compare(self, commit: int, restored: Any) -> None:
        """Compare a restored store with what the processes have told."""
        there: dict[str, set[str]] = {}
        for key in KEYS:
            entries = restored.xrange(key, history=key == "archived")
            there[key] = {one[1][b"t"].decode() for one in entries}
        own = [one for key in restored.keys("own.*") for one in restored.xrange(key)]
        there["own"] = {one[1][b"t"].decode() for one in own}
        everything = set().union(*there.values())
        gone: set[str] = set()
        sure: dict[str, str] = {}
        for one in self.told():
            if one["kind"] == "delete" and one["before"] < commit:
                gone.add(one["what"])
            if one["kind"] == "add":
                for key, token in one["what"]:
                    if one.get("after", 1 << 62) <= commit:
                        sure[token] = key
                    elif one["before"] >= commit:
                        assert token not in everything, (token, commit)
                if len(one["what"]) > 1:
                    found = {token in there[key] for key, token in one["what"]}
                    assert len(found) == 1, (one, commit)
        for token, key in sure.items():
            if token not in gone:
                assert token in there[key], (token, key, commit, sorted(there[key]))
        for one in self.told():
            if one["kind"] == "delete" and one.get("after", 1 << 62) <= commit:
                assert one["what"] not in there["deleted"], (one, commit)

    def happen(self) -> None:
        """Do to the store and its copy what people and disks do."""
        happens = (self.nothing, self.compact, self.erase, self.twin, self.lose)
        self.chance.choice((*happens, self.go_back, self.promote))()

    def nothing(self) -> None:
        """Go on."""

    def compact(self) -> None:
        """The journal does not go on."""
        compact(self.path)
        with streamkeep.open(self.path) as store:
            self.note(store)

    def erase(self) -> None:
        """The copy must not have it afterwards."""
        with streamkeep.open(self.path) as store:
            token = f"erased{self.number}"
            entry = store.xadd("more", {"t": token * 5})
            ship(store, self.target)
            store.erase("more", entry)
            ship(store, self.target)
            self.note(store)
        source = Target(self.target)
        for folder in source.objects.folders():
            for name in (*source.names(folder, 0), *source.names(folder, 1)):
                assert (token * 5).encode() not in source.piece(name)[1], name

    def twin(self) -> None:
        """A copy of the folder is used, too: only one of both may go on."""
        with streamkeep.open(self.path) as store:
            ship(store, self.target)
        twin = self.folder / f"twin{self.number}"
        shutil.copytree(self.path, twin)
        with streamkeep.open(self.path) as store:
            for _ in range(self.chance.randrange(1, 5)):
                store.xadd("more", {"of": "the first"})
            ship(store, self.target)
            self.note(store)
        with streamkeep.open(twin) as second:
            for _ in range(self.chance.randrange(8)):
                second.xadd("more", {"of": "the second"})
        if self.chance.random() < 0.5:  # nothing else shows then that it is another one
            compact(twin)
        with pytest.raises(StoreError):
            ship(twin, self.target)
        shutil.rmtree(twin)
        self.restore()

    def lose(self) -> None:
        found = [one for one in Path(self.target).rglob("*.skp") if one.parent.name == "0"]
        if found:
            max(found, key=lambda one: one.stat().st_mtime_ns).unlink()
            self.lost = max(self.states)

    def go_back(self) -> None:
        """A restore, often of an earlier commit, takes the place of the store."""
        with streamkeep.open(self.path) as store:
            ship(store, self.target)
            self.note(store)
        new = self.folder / f"back{self.number}"
        report = verify_copy(self.target)
        first, last = report.first_commit, report.last_commit
        commit = self.chance.choice((last, self.chance.randint(first, last)))
        restore_copy(self.target, new, commit=commit)
        self.take_place(new, commit)

    def promote(self) -> None:
        """A standby takes the place of the store, which may make commits after that."""
        with streamkeep.open(self.path) as store:
            ship(store, self.target)
        self.number += 1
        new = self.folder / f"promoted{self.number}"
        Standby(self.target, new).close()
        with streamkeep.open(self.path) as store:
            store.xadd("more", {"of": "the first"})
            ship(store, self.target)
        promoted = promote(new)
        assert promoted is not None
        self.take_place(new, promoted.commit_number)

    def take_place(self, new: Path, commit: int) -> None:
        """Go on with another store: whatever the one before does, the copy follows that one."""
        self.states = {one: state for one, state in self.states.items() if one <= commit}
        for log in self.logs:
            self.given_up.setdefault(log, []).append(commit)
        self.lost = min(self.lost, commit)
        with streamkeep.open(new) as store, streamkeep.open(self.path) as before:
            for _ in range(self.chance.choice((0, 3, 50))):
                store.xadd("more", {"of": "the second"})
            if self.chance.random() < 0.5:
                before.xadd("more", {"of": "the first"})
                ship(before, self.target)
            ship(store, self.target)
            self.note(store)
            before.xadd("more", {"of": "the first"})
            with pytest.raises(StoreError):
                ship(before, self.target)
        self.path = new

    def ends(self) -> None:
        """The copy is what the store is, and any commit of it can be restored."""
        with streamkeep.open(self.path) as store:
            store.xadd("more", {"t": "last"})
            ship(store, self.target)
            self.note(store)
        report = verify_copy(self.target, everything=True)
        assert not report.problems, report
        assert not verify_copy(self.target).problems
        assert self.restore().commit_number == max(self.states)
        assert report.last_commit == max(self.states)
        standby = self.folder / "standby"
        if standby.exists():
            following = Standby(self.target, standby)
            following.run(once=True)
            following.close()
            assert_sound(standby)
            with streamkeep.open(standby, readonly=True) as found:
                assert describe(found) == self.states[max(self.states)]
        first, last = report.first_commit, report.last_commit
        if self.given_up:  # generations before the newest may have other commits of these numbers
            first = Target(self.target).known_head().generations[-1].base_commit
        known = [one for one in self.states if first <= one <= last]
        for commit in (self.chance.choice(known), self.chance.randint(first, last)):
            assert self.restore(commit).commit_number == commit


@pytest.mark.parametrize("seed", slow_but(range(RUNS), *range(4)))
def test_run(server: Server, tmp_path: Path, seed: int) -> None:
    """Kills, failing targets, and what people do: nothing that was promised is lost."""
    run = Run(server, tmp_path, seed)
    for _ in range(run.chance.choice((1, 1, 2))):
        run.life()
        run.happen()
    run.life()
    run.ends()
