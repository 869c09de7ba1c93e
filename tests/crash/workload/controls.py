"""Defects that the harness must find: each once got into the store, and is brought back here.

A control replaces a text in a copy of the sources. The text must be there exactly once: whoever
changes this place decides what the defect would look like now.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[3]


class Control(NamedTuple):
    """A defect.

    Attributes:
        file: below the package.
        good, bad: the text, and what takes its place.
        rounds: the kinds of rounds that must find it.
    """

    file: str
    good: str
    bad: str
    rounds: tuple[str, ...]


CONTROLS: Final = {
    # A look at another stream puts the changes of a transaction into LMDB, and marks them as
    # journaled. They have no record yet, and get none.
    "appends that never get into the journal": Control(
        "engine/txn/txn.py",
        """\
            elif table == STREAMS:
                row = unsaved.streams.get(db_key)
""",
        """\
            elif table == STREAMS:
                for one in self.streams.values():
                    if unsaved.streams.pop(one.db_key, None) is not None:
                        value = one.encode(self.context.epoch, self.commit_number)
                        self.raw.put(one.db_key, value, True, True, False, self.tables[STREAMS])
                        one.written(value)
                row = unsaved.streams.get(db_key)
""",
        ("kills",),
    ),
    # LMDB's lock is free when a commit has failed: another process may have written its record.
    "a cut of the journal without the lock": Control(
        "engine/txn/txn.py",
        "            locked = deferral.raw is not None if self.deferred else self.raw_open\n",
        "            locked = self.deferred or self.raw_open\n",
        ("lmdb_fails",),
    ),
    # Recovery goes back to the checkpoint and replays what it can read, whatever it loses.
    "a recovery that throws data away": Control(
        "engine/crash_recovery/state.py",
        """\
    way = state.best()
    loss = state.loss(way)
    if loss:
        raise RecoveryNeededError(f"{store.path}: {loss}")
    return way
""",
        "    return state._replace(data=None).best()\n",
        ("damages",),
    ),
}


def with_defect(name: str, target: Path) -> Path:
    """Copy the sources, with a defect; return the folder to import them from."""
    control = CONTROLS[name]
    shutil.copytree(ROOT / "src", target, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    path = target / "streamkeep" / control.file
    text = path.read_text()
    assert text.count(control.good) == 1, f"{control.file} has changed: see {__file__}"
    path.write_text(text.replace(control.good, control.bad))
    return target
