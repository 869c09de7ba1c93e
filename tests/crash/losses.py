"""A workload that loses its power again and again, and what must be left each time.

Everything runs in one process and one thread, so that it is known at each moment what was
promised: the checkpoint, the syncs of `interval` and the loss itself are steps of the workload,
and a loss may also come at any failpoint in the middle of a step. Several processes are the concern
of `kills.py`.
"""

from __future__ import annotations

import faulthandler
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal

import pytest

import streamkeep
from crash.power import Disk, after_a_loss, watched
from inside import environment_of
from patience import PATIENCE_S
from stopped import child_of, status_of
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.store import environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CommandError

Mode = Literal["commit", "interval", "none"]
State = dict[bytes, dict[str, Any]]

KEYS: Final = (b"a", b"b")
GROUPS: Final = (b"g", b"h")
CONSUMERS: Final = (b"c", b"d", b"e")
MODES: Final[tuple[Mode, ...]] = ("commit", "interval", "none")
INTERVAL_S: Final = 1.0


class Killed(BaseException):
    """The process ends here."""


def state_of(store: Store[bytes]) -> State:
    """Return all there is: entries, groups, consumers, what is pending, what was archived."""
    with store.snapshot() as snapshot:
        state = {}
        for name in sorted(snapshot.keys()):
            state[name] = snapshot.xinfo_stream(name, full=True, count=0)
            if snapshot.retention(name).archive:
                ids = [entry.id for entry in snapshot.xrange(name, history=True)]
                state[name]["history"] = ids
        return state


class Workload:
    """Random commands; remembers the store's contents after each, and what was promised.

    Args:
        modes: the sync mode of each command is one of these.
    """

    def __init__(self, path: Path, random_: random.Random, modes: tuple[Mode, ...]) -> None:
        self.random = random_
        self.clock = ManualClock(1000)
        self.stores = [
            Store(path, sync=mode, interval=INTERVAL_S, clock=self.clock) for mode in modes
        ]
        self.environment = environment_of(self.stores[0])
        self.states = [state_of(self.stores[0])]
        self.least = 0  # the number of the oldest state that may be left after a power loss

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def step(self) -> None:
        """Run one command, or what a thread would do now and then."""
        random_ = self.random
        choice = random_.random()
        newest = len(self.states) - 1
        if choice < 0.06:
            self.environment.make_checkpoint()
            self.least = newest
        elif choice < 0.12:
            if any(store.sync_mode == "interval" for store in self.stores):
                self.pass_interval()
                self.least = newest
        elif choice < 0.15:
            random_.choice(self.stores).sync()
            self.least = newest
        else:
            self.clock.ms += random_.randrange(3)
            store = random_.choice(self.stores)
            try:
                self.command(store)
            except CommandError:
                return  # nothing was changed, and nothing waited for
            self.states.append(state_of(store))
            if store.sync_mode == "commit" and self.states[-1] != self.states[-2]:
                self.least = newest + 1

    def pass_interval(self) -> None:
        """Have the checkpointer thread's work done here, as if its interval had just passed."""
        one = self.environment.checkpointer
        assert one is not None
        now = [0.0]
        waits = 0

        def wait(seconds: float) -> None:
            nonlocal waits
            waits += 1
            now[0] += INTERVAL_S
            one._stopping = waits == 2

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpointer, "time", SimpleNamespace(monotonic=lambda: now[0]))
            patch.setattr(one, "_wakeup", SimpleNamespace(wait=wait))
            one._stay_awake()
        one._stopping = False

    def command(self, store: Store[bytes]) -> None:
        random_ = self.random
        key, group = random_.choice(KEYS), random_.choice(GROUPS)
        consumer = random_.choice(CONSUMERS)
        commands: list[tuple[int, Callable[[], object]]] = [
            (20, lambda: store.xadd(key, {"n": random_.randrange(1 << 30), "pad": "x" * 40})),
            (
                8,
                lambda: store.xadd_many(key, [{"n": n} for n in range(random_.randrange(1, 90))]),
            ),
            (2, lambda: store.xadd(key, {"big": "y" * random_.randrange(3000, 30000)})),
            (8, lambda: store.xdel(key, *self.some_ids(store, key))),
            (5, lambda: store.xtrim(key, maxlen=random_.randrange(150), approximate=False)),
            (2, lambda: store.set_retention(key, archive=random_.random() < 0.8)),
            (2, store.archive),
            (1, lambda: store.delete(key)),
            (4, lambda: store.xgroup_create(key, group, id="0", mkstream=True)),
            (1, lambda: store.xgroup_destroy(key, group)),
            (1, lambda: store.xgroup_delconsumer(key, group, consumer)),
            (14, lambda: store.xreadgroup(group, consumer, {key: ">"}, count=9)),
            (10, lambda: store.xack(key, group, *self.pending_ids(store, key, group))),
            (
                6,
                lambda: store.xclaim(key, group, consumer, 0, self.pending_ids(store, key, group)),
            ),
            (5, lambda: self.transaction(store)),
        ]
        random_.choices(commands, [weight for weight, _ in commands])[0][1]()

    def transaction(self, store: Store[bytes]) -> None:
        with store.transaction() as txn:
            for key in KEYS:
                txn.xadd(key, {"both": self.random.randrange(1 << 30)})
            for row in txn.xread({KEYS[0]: "0"}, count=2):
                txn.xdel(KEYS[0], *(entry.id for entry in row[1]))

    def some_ids(self, store: Store[bytes], key: bytes) -> list[bytes]:
        ids = [entry.id for entry in store.xrange(key)] or [b"0-1"]
        return self.random.sample(ids, min(len(ids), self.random.randrange(1, 20)))

    def pending_ids(self, store: Store[bytes], key: bytes, group: bytes) -> list[bytes]:
        rows = store.xpending_range(key, group, "-", "+", self.random.randrange(1, 15))
        return [row["message_id"] for row in rows] or [b"0-1"]


@contextmanager
def small_journal(*, threads: bool = False) -> Iterator[None]:
    """Have journal files so small that many are filled, and no thread that acts on its own."""

    def small(folder: Folder, control: ControlFile, store_uuid: bytes, epoch: int) -> Journal:
        journal = Journal(folder, control, store_uuid, epoch)
        journal.file_size = 32 << 10
        journal.first_size = 8 << 10
        return journal

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "Journal", small)
        if not threads:
            patch.setattr(checkpointer.Checkpointer, "notice", lambda self: None)
        yield


class Losses:
    """Folders left by power losses, each checked; `count` says how many.

    Args:
        folder: where to put them; those that passed are removed.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.seed = seed
        self.count = 0
        self.replayed = 0
        self.killed_recoveries = 0
        self._taken: list[tuple[Path, int]] = []
        self._checked = 0

    def take(self, disk: Disk, least: int) -> None:
        """Lose power now; `least` is the oldest state that may be left."""
        path = self.folder / f"lost-{self.seed}-{self.count}"
        disk.lose_power(path, self.random)
        self._taken.append((path, least))
        self.count += 1

    def check_all(self, states: list[State], *, kill_recovery: bool) -> None:
        """Open every folder taken so far, and compare it with the states that may be left."""
        for path, least in self._taken:
            left = self.kill_recoveries(path) if kill_recovery else path
            try:
                self.check(left, states, least)
            except BaseException as error:
                raise AssertionError(f"{path} (seed {self.seed}): {error!r}") from error
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(left, ignore_errors=True)
        self._taken = []

    def check(self, path: Path, states: list[State], least: int) -> None:
        """Open what is left: one of the states from `least` on; it works on, and is sound."""
        with after_a_loss(self.count + self._checked), streamkeep.open(path) as store:
            found = state_of(store)
            assert found in states[least:], describe(found, states, least)
            last = store.durability().last_recovery
            self.replayed += 0 if last is None else last.replayed
            store.xadd(b"a", {"after": "recovery"})
            store.xgroup_create(b"a", b"after", id="0")
            store.xreadgroup(b"after", b"c", {b"a": ">"})
            after = state_of(store)
        assert [str(finding) for finding in recovery.check(path)] == []
        with after_a_loss(self.count + self._checked + 1), streamkeep.open(path) as store:
            assert state_of(store) == after
        self._checked += 1

    def kill_recoveries(self, path: Path) -> Path:
        """Begin to recover, stop somewhere, lose power again; a few times."""
        for turn in range(self.random.randrange(1, 4)):
            steps = self.random.randrange(1, 14)
            target = path.with_name(f"{path.name}-{turn}")
            with after_a_loss(100 + turn + self._checked), watched(path, safe=True) as disk:
                if not killed_after(steps, partial(open_once, path)):
                    return path
                self.killed_recoveries += 1
                disk.lose_power(target, self.random)
            shutil.rmtree(path)
            path = target
        return path


def open_once(path: Path) -> None:
    """Open a store, and close it."""
    streamkeep.open(path).close()


def killed_after(steps: int, action: Callable[[], object]) -> bool:
    """Run `action`, and stop it at the failpoint that is the given number of steps ahead."""
    left = steps

    def hit(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed(name)

    with watching(hit):
        try:
            action()
        except Killed:
            return True
    return False


@contextmanager
def watching(hit: Callable[[str], None]) -> Iterator[None]:
    """Call `hit` at every failpoint that the block passes."""
    failpoints.watch(hit)
    try:
        yield
    finally:
        failpoints.unwatch(hit)


def describe(found: State, states: list[State], least: int) -> str:
    """Say how far from what was promised a state is."""
    older = [number for number, state in enumerate(states[:least]) if state == found]
    if older:
        return f"state {older[-1]} of {len(states)} is left, {least} was promised"
    return f"what is left was never there: {str(found)[:300]}"


def run_losses(
    folder: Path,
    seed: int,
    modes: tuple[Mode, ...],
    *,
    steps: int,
    every: int,
    at_failpoints: float = 0.02,
    kill_recovery: bool = False,
    blind_to: str = "nothing",
    pinned: bool = True,
    flushes: bool = True,
) -> Losses:
    """Run a workload with power losses; return what they were.

    Args:
        every: lose power after this many steps,
        at_failpoints: and at this many of the failpoints that are passed.
        blind_to: files whose syncs are left out.
        pinned: False disables the pin that protects the newest checkpoint.
        flushes: LMDB is written to between checkpoints, too, and uses pages again.
    """
    losses = Losses(folder, seed)
    path = folder / f"store-{seed}"
    with ExitStack() as stack:
        stack.enter_context(small_journal())
        disk = stack.enter_context(watched(path, blind_to=blind_to))
        workload = Workload(path, random.Random(seed), modes)
        stack.callback(workload.close)
        if flushes:
            memtable = workload.environment.context.memtable
            memtable.most_commits = workload.random.choice((1, 3, 20))

        def hit(name: str) -> None:
            if losses.random.random() < at_failpoints:
                losses.take(disk, workload.least)

        stack.enter_context(watching(hit))
        for step in range(steps):
            workload.step()
            if not pinned:
                repin(workload.environment)
            if step % every == 0:
                losses.take(disk, workload.least)
    losses.check_all(workload.states, kill_recovery=kill_recovery)
    shutil.rmtree(path)
    return losses


def repin(one: environment.Environment) -> None:
    """Disable the pin: let it follow the newest commit, so that it protects nothing older."""
    context = one.context
    if context.pin is not None:
        context.pin.abort()
        context.pin = None
        context.pin = context.raw.begin()


def in_child(action: Callable[[], object]) -> bool:
    """Run something that may crash the interpreter; say whether it came to its end."""

    def act() -> None:
        faulthandler.disable()
        faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
        action()

    return status_of(child_of(act)) == 0
