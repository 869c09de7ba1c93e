"""Processes killed at any moment lose nothing that was acknowledged, in any mode."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import failpoint_names
import streamkeep
from crash.kill_worker import die_at
from crash.kills import Run
from crash.losses import in_child, small_journal, state_of
from crash.power import another_boot, copy_store
from fork_server import Server, forking
from inside import journal_of
from tiers import slow_but

LONG_KILLS = 1500
ARCHIVE_KILLS = 500
# What this workload passes; the tests of blocking reads, of archives and of Spark have the others.
PLACES = ("create", "commit", "flush", "journal", "checkpoint", "scrub", "recover")
DAILY = (  # one of each kind
    "create:written",
    "commit:journaled",
    "commit:made",
    "flush:ended",
    "journal:new-file",
    "journal:sync",
    "checkpoint:slot-written",
    "scrub:free",
    "recover:meta-written",
    "recover:batch",
)
PASSED = [name for name in failpoint_names.NAMES if name.startswith(PLACES)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """What forks the processes to be killed."""
    with forking("crash.kill_worker") as one:
        yield one


def test_every_failpoint_has_a_name() -> None:
    package = Path(streamkeep.__file__).parent
    folders = ("*", "*/*", "*/*/*")  # a pattern of any depth follows no links
    text = "".join(path.read_text() for one in folders for path in package.glob(f"{one}/*.py"))
    assert set(re.findall(r'failpoints\.hit\("([^"]+)"\)', text)) == set(failpoint_names.NAMES)


def test_nothing_acknowledged_is_lost_when_processes_are_killed(
    server: Server, tmp_path: Path
) -> None:
    run = Run(server, tmp_path, 1)
    run.random_kills(12)
    while run.commands <= 100:
        run.random_kills(12)


def test_nothing_trimmed_is_lost_when_archivers_are_killed(server: Server, tmp_path: Path) -> None:
    run = Run(server, tmp_path, 2, archives=True)
    run.random_kills(12)
    while not run.archived:
        run.random_kills(12)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(3000)
def test_many_kills_of_archivers(
    server: Server, tmp_path: Path, tell_figures: Callable[[str], None]
) -> None:
    runs: list[Run] = []
    while sum(run.kills for run in runs) < ARCHIVE_KILLS:
        runs.append(Run(server, tmp_path, 5000 + len(runs), archives=True))
        runs[-1].random_kills(25)
        runs[-1].random_kills(15)
    tell_figures(
        f"kills with an archive: {sum(run.kills for run in runs)} at random, among writers that "
        f"trim, archive, erase and read history; {sum(run.copies for run in runs)} power losses "
        f"after them; {sum(run.archived for run in runs)} entries archived; 0 failures"
    )


@pytest.mark.parametrize("name", slow_but(PASSED, *DAILY))
def test_a_process_killed_at_a_failpoint_loses_nothing(
    server: Server, tmp_path: Path, name: str
) -> None:
    kill_at(server, tmp_path, name, 1).verify()


def kill_at(server: Server, folder: Path, name: str, seed: int) -> Run:
    """Kill a process at a failpoint; return the run, checked."""
    run = Run(server, folder, seed)
    if not name.startswith("create"):
        run.kill_at("commit:journaled")
    run.kill_at(name, beside=0 if name.startswith(("create", "recover")) else 2)
    if name.startswith("recover"):
        run.kill_at("commit:made")
    return run


def test_a_record_without_a_commit_at_the_end_of_a_file_hides_nothing(tmp_path: Path) -> None:
    """The next record does not fit after the same position, and so begins the next file."""
    path = tmp_path / "store"

    def write_until_killed() -> None:
        store = streamkeep.open(path, sync="none")
        journal = journal_of(store)
        store.xadd("s", {"pad": ""})
        while journal._room - journal.log.offset > 1000:
            store.xadd("s", {"pad": "x" * 50})
        die_at("commit:journaled", 1)
        store.xadd("s", {"killed": "here"})

    with small_journal(), streamkeep.open(path) as store:
        assert not in_child(write_until_killed)
        before = store.xlen("s")
        store.xadd("s", {"big": "x" * 7000})
        store.xadd("s", {"after": "it"})
        expected = state_of(store)
        assert store.xlen("s") == before + 2
        assert len(list((path / "journal").glob("*.skj"))) == 2
        copy_store(path, tmp_path / "copy")
    with another_boot(), streamkeep.open(tmp_path / "copy") as store:
        assert state_of(store) == expected


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(3000)
def test_many_kills(server: Server, tmp_path: Path, tell_figures: Callable[[str], None]) -> None:
    kills = copies = commands = seed = 0
    places: Counter[str] = Counter()
    while kills < LONG_KILLS:
        seed += 1
        run = Run(server, tmp_path, 1000 + seed)
        run.random_kills(25)
        run.random_kills(15)
        runs = [run]
        names = PASSED
        for name in (names[(2 * seed) % len(names)], names[(2 * seed + 1) % len(names)]):
            runs.append(kill_at(server, tmp_path, name, 2000 * seed + names.index(name)))
            places[name] += 1
        kills += sum(one.kills for one in runs)
        copies += sum(one.copies for one in runs)
        commands += sum(one.commands for one in runs)
    assert set(places) == set(PASSED)
    tell_figures(
        f"kills: {kills}, at random and at each of {len(places)} named places "
        f"{min(places.values())} times or more; {copies} power losses after them; "
        f"{commands} commands acknowledged; 0 failures"
    )
