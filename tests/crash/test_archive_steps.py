"""The archive is killed, and loses its power, at each of its steps: each entry stays in one place.

Every task here is run once to see which failpoints it passes, and then again for each of them:
with a process that kills itself there, and with a disk that keeps any part of what was not synced.
What is left is opened, checked, and compared with what the task may have done so far; then the same
task is asked for again, and must come to its end.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import failpoint_names
from crash.losses import in_child, small_journal, watching
from crash.places import Fields, Id, assert_sound_and_in_one_place
from crash.power import another_boot, copy_store, watched
from stopped import child_of, die_at, status_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive import restore, segments
from streamkeep.engine.archive.archiver import ArchiveOptions
from streamkeep.engine.system.clock import ManualClock
from tiers import slow_but

KEY = b"s"
OTHER = b"adopted"
TARGET = b"restored"
SECRET = b"secret-of-nobody-else"
SMALL = ArchiveOptions(target_bytes=900, block_bytes=400)
ERASED = [3, 17, 18, 44, 70, 88, 110]  # in segments, retired, and live, in part trimmed
COUNT = 120
PREFIXES = ("segment:", "archive:", "erase:", "adopt:", "drop:", "restore:step", "garbage:")
ALSO = ("commit:", "journal:sync", "scrub:")  # passed on the way
State = dict[Id, Fields]


@dataclass
class Task:
    """Something that is done to the archive.

    Args:
        run: does it, or finishes what an earlier run has begun.
        check: raises unless what is left is something between before and after; the arguments are
            the states of KEY, OTHER and TARGET.
        done: the same, when it is all done.
    """

    run: Callable[[Store[bytes], Path], object]
    check: Callable[[State, State, State], None]
    done: Callable[[State, State, State], None]


def fields(number: int) -> dict[Any, Any]:
    name = SECRET.decode() if number in ERASED else "plain"
    return {"n": number, "name": f"{name} {number}", "pad": "x" * 30}


def everything() -> State:
    """Return what there is before any task."""
    return {
        (number, 0): tuple(
            part if isinstance(part, bytes) else str(part).encode()
            for pair in fields(number).items()
            for part in pair
        )
        for number in range(1, COUNT + 1)
    }


def make(path: Path) -> None:
    """Make a store with two kinds of everything, and segments of another store beside it."""
    options: dict[str, Any] = {"sync": "none", "clock": ManualClock(5000)}
    with Store(path / "store", node_max_entries=5, node_max_bytes=0, **options) as store:
        store.set_retention(KEY, archive=True, archive_max_age="12725d")
        for number in range(1, COUNT + 1):
            store.xadd(KEY, fields(number), id=f"{number}-0")
        store.xtrim(KEY, minid="41", approximate=False)
        store.archive(options=SMALL)
        assert len(store.archived_segments(KEY)) > 2
        store.xtrim(KEY, minid="83", approximate=False)
        store.trim_range(KEY, 95, 104)
        store.set_retention("gone", archive=True)
        store.xadd_many("gone", [{"n": n} for n in range(20)])
        store.xtrim("gone", maxlen=10, approximate=False)
        store.delete("gone")
    with Store(path / "elsewhere", **options) as store:
        store.set_retention(OTHER, archive=True)
        store.xadd_many(OTHER, [fields(n) for n in range(1, 61)], [f"{n}-0" for n in range(1, 61)])
        store.xtrim(OTHER, minid=31, approximate=False)
        store.archive(options=SMALL)
        store.xtrim(OTHER, maxlen=0, approximate=False)
        store.archive(options=SMALL)
        list(store.export_segments(path / "segments"))
    shutil.rmtree(path / "elsewhere")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `make` makes, to be copied."""
    path = tmp_path_factory.mktemp("made")
    make(path)
    return path


def untouched(here: State, other: State, target: State) -> None:
    assert (here, other, target) == (everything(), {}, {})


def run_archive(store: Store[bytes], folder: Path) -> None:
    store.archive(options=SMALL)


def run_trim(store: Store[bytes], folder: Path) -> None:
    store.xtrim(KEY, maxlen=7, approximate=False)
    store.trim_range(KEY, 118, 120)
    store.archive()


def run_drop(store: Store[bytes], folder: Path) -> None:
    store.drop_segments(KEY, before=31)


def check_dropped(here: State, other: State, target: State) -> None:
    before = everything()
    assert list(here) == list(before)[-len(here) :]
    assert len(here) >= COUNT - 30
    assert all(before[one] == found for one, found in here.items())


def done_dropped(here: State, other: State, target: State) -> None:
    check_dropped(here, other, target)
    assert len(here) < COUNT


def run_adopt(store: Store[bytes], folder: Path) -> None:
    list(store.adopt_segments(folder / "segments"))


def check_adopted(here: State, other: State, target: State) -> None:
    assert here == everything()
    assert list(other) == [(number, 0) for number in range(1, len(other) + 1)]
    assert target == {}


def done_adopted(here: State, other: State, target: State) -> None:
    check_adopted(here, other, target)
    assert len(other) == 60


def run_restore(store: Store[bytes], folder: Path) -> None:
    store.restore_archive(TARGET, KEY)


def check_restored(here: State, other: State, target: State) -> None:
    assert here == everything()
    archived = [one for one in here if one[0] <= 80 or 96 <= one[0] <= 100]  # by whole nodes
    assert list(target) == archived[: len(target)]
    assert all(here[one] == found for one, found in target.items())


def done_restored(here: State, other: State, target: State) -> None:
    check_restored(here, other, target)
    assert len(target) == 85


def run_erase(store: Store[bytes], folder: Path) -> None:
    store.erase(KEY, *(f"{number}-0" for number in ERASED))
    for file in store.path.rglob("*"):
        assert not file.is_file() or SECRET not in file.read_bytes(), file


def check_erased(here: State, other: State, target: State) -> None:
    before = everything()
    assert {number for number, _ in before.keys() - here.keys()} <= set(ERASED)
    assert all(before[one] == found for one, found in here.items())


def done_erased(here: State, other: State, target: State) -> None:
    check_erased(here, other, target)
    assert len(here) == COUNT - len(ERASED)


TASKS = {
    "archive": Task(run_archive, untouched, untouched),
    "trim": Task(run_trim, untouched, untouched),
    "drop": Task(run_drop, check_dropped, done_dropped),
    "adopt": Task(run_adopt, check_adopted, done_adopted),
    "restore": Task(run_restore, check_restored, done_restored),
    "erase": Task(run_erase, check_erased, done_erased),
}


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many transactions where one would do."""
    monkeypatch.setattr(restore, "_STEP_NODES", 3)
    monkeypatch.setattr(segments, "_DROP_AT_ONCE", 1)


def open_store(path: Path) -> Store[bytes]:
    return Store(path, sync="commit", clock=ManualClock(6000))


def assert_left(path: Path, name: str, check: Callable[[State, State, State], None]) -> None:
    """Open what is left of a store, check it, and compare it."""
    store = open_store(path)
    places = assert_sound_and_in_one_place(store, orphans=name in ("adopt", "erase"))
    with open_store(path) as store:
        check(*(places.named(store, key) for key in (KEY, OTHER, TARGET)))
        gone = [number for number in places.entries if len(places.entries[number]) == 10]
        assert len(gone) == 1 or name == "archive", "what a deleted stream had is lost"


def assert_finished(path: Path, folder: Path, name: str) -> None:
    """Check what is left, do the task again, and check that it is done."""
    task = TASKS[name]
    assert_left(path, name, task.check)
    with open_store(path) as store:
        task.run(store, folder)
    assert_left(path, name, task.done)


def passed(made: Path, folder: Path, name: str) -> list[str]:
    """Run a task; return the failpoints that it passes."""
    hits: list[str] = []
    path = folder / "dry"
    copy_store(made / "store", path)
    with open_store(path) as store, watching(hits.append):
        TASKS[name].run(store, made)
    shutil.rmtree(path)
    return hits


def steps_of(hits: list[str], *, every: bool) -> Iterator[tuple[str, int]]:
    """Yield (name, passage) of where to stop: the first and the last of each, or every one."""
    for name in sorted(set(hits)):
        if not name.startswith((*PREFIXES, *ALSO)):
            continue
        count = hits.count(name)
        most = count if name.startswith(PREFIXES) else min(count, 3)
        yield from ((name, at) for at in (range(1, most + 1) if every else sorted({1, most})))


def test_the_tasks_pass_every_step_of_the_archive(made: Path, tmp_path: Path) -> None:
    hits = {hit for name in TASKS for hit in passed(made, tmp_path, name)}
    assert {name for name in failpoint_names.NAMES if name.startswith(PREFIXES)} <= hits


@pytest.mark.parametrize("name", slow_but(list(TASKS), "archive"))
def test_a_kill_at_any_step_leaves_each_entry_in_one_place(
    made: Path, tmp_path: Path, name: str
) -> None:
    kill_at_steps(made, tmp_path, name, every=False)


def kill_at_steps(made: Path, folder: Path, name: str, *, every: bool) -> int:
    """Kill a task at its steps; return how many kills that were."""
    kills = 0
    for step, passage in steps_of(passed(made, folder, name), every=every):
        path = folder / f"{step}-{passage}"
        copy_store(made / "store", path)

        def work(path: Path = path, step: str = step, passage: int = passage) -> None:
            die_at(step, passage)
            with open_store(path) as store:
                TASKS[name].run(store, made)

        status = status_of(child_of(work))
        if status != -9:  # passages differ where threads are at work: it was not reached
            assert status == 0, (step, passage, status)
            assert step.startswith(ALSO), (step, passage)
        kills += 1
        try:
            assert_finished(path, made, name)
        except BaseException as error:
            raise AssertionError(f"killed at {step}, passage {passage}: {error}") from error
        shutil.rmtree(path)
    return kills


@pytest.mark.parametrize(
    "step", ["segment:begun", "erase:written", "erase:segment", "scrub:page", "garbage:synced"]
)
def test_an_erasure_that_was_cut_off_is_finished_without_its_ids(
    made: Path, path: Path, step: str
) -> None:
    copy_store(made / "store", path)

    def erase_until_killed() -> None:
        die_at(step, 1)
        with open_store(path) as store:
            run_erase(store, made)

    assert not in_child(erase_until_killed)
    with open_store(path) as store:
        store.erase(b"")
        for file in path.rglob("*"):
            assert not file.is_file() or SECRET not in file.read_bytes(), file
    assert_left(path, "archive", done_erased)


@pytest.mark.parametrize("name", slow_but(list(TASKS), "restore"))
def test_a_power_loss_at_any_step_leaves_each_entry_in_one_place(
    made: Path, tmp_path: Path, name: str
) -> None:
    lose_power_at_steps(made, tmp_path, name, seed=1, every=False)


def lose_power_at_steps(made: Path, folder: Path, name: str, *, seed: int, every: bool) -> int:
    """Lose power at the steps of a task; return how often."""
    random_ = random.Random(f"{seed}{name}")
    wanted = set(steps_of(passed(made, folder, name), every=every))
    path = folder / "watched"
    copy_store(made / "store", path)
    seen: dict[str, int] = {}
    lost: list[tuple[str, Path]] = []
    with small_journal(), watched(path, safe=True) as disk, open_store(path) as store:

        def hit(step: str) -> None:
            seen[step] = seen.get(step, 0) + 1
            if (step, seen[step]) in wanted:
                target = folder / f"lost-{len(lost)}"
                disk.lose_power(target, random_)
                lost.append((f"{step}, passage {seen[step]}", target))

        with watching(hit):
            TASKS[name].run(store, made)
    shutil.rmtree(path)
    for number, (step, target) in enumerate(lost):
        try:
            with another_boot(100 + number):
                assert_finished(target, made, name)
        except BaseException as error:
            raise AssertionError(f"power lost at {step} (seed {seed}): {error}") from error
        shutil.rmtree(target)
    return len(lost)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", TASKS)
def test_every_step_many_times(
    made: Path, tmp_path: Path, name: str, tell_figures: Callable[[str], None]
) -> None:
    kills = kill_at_steps(made, tmp_path, name, every=True)
    losses = sum(
        lose_power_at_steps(made, tmp_path, name, seed=seed, every=True) for seed in range(5)
    )
    tell_figures(f"{name}: {kills} kills, {losses} power losses at its steps; 0 failures")
