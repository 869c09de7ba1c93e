"""Processes killed at each named place lose nothing that was acknowledged, in any mode.

Those that are killed at any moment are in `test_workload.py`, creations in `test_creation.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import failpoint_names
import streamkeep
from crash.losses import in_child, small_journal, state_of
from crash.power import another_boot, copy_store
from crash.workload.run import Figures, Run
from inside import journal_of
from stopped import die_at
from tiers import slow_but

# What this workload passes; the tests of blocking reads, of archives and of Spark have the others.
PLACES = ("commit", "flush", "journal", "checkpoint", "scrub", "recover")
DAILY = (  # one of each kind
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


def test_every_failpoint_has_a_name() -> None:
    package = Path(streamkeep.__file__).parent
    folders = ("*", "*/*", "*/*/*")  # a pattern of any depth follows no links
    text = "".join(path.read_text() for one in folders for path in package.glob(f"{one}/*.py"))
    assert set(re.findall(r'failpoints\.hit\("([^"]+)"\)', text)) == set(failpoint_names.NAMES)


@pytest.mark.crash
@pytest.mark.parametrize("name", slow_but(PASSED, *DAILY))
def test_a_process_killed_at_a_failpoint_loses_nothing(tmp_path: Path, name: str) -> None:
    Run(tmp_path, 1, Figures(), []).kill_at(name)


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
