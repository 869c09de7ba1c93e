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
    """A defect."""

    file: str
    good: str
    bad: str
    rounds: tuple[str, ...]


CONTROLS: Final = {
    # What a commit removes is still there for the next ones, until it comes from the journal.
    "a memtable without what a commit has removed": Control(
        "engine/txn/memtable.py",
        """\
        for number, table in changes.items():
            if number in self.tables:
""",
        """\
        for number, table in changes.items():
            for db_key in [one for one, value in table.rows.items() if value is None]:
                del table.rows[db_key]
            table._keys = None
            if number in self.tables:
""",
        ("kills",),
    ),
    # A process that has not read for a while lays what it knows over an image that has more.
    "rows of an older image over a newer one": Control(
        "engine/txn/context.py",
        """\
        if position.commit_number >= known:  # never one between: all of it was applied, or nothing
            self.memtable.clear()
""",
        """\
        if position.commit_number >= known:
            if position.commit_number == known:
                self.memtable.clear()
""",
        ("kills",),
    ),
    # If LMDB then cannot take the rows, they are nowhere but in the journal.
    "a flush that clears the memtable before LMDB has committed": Control(
        "engine/txn/flush.py",
        """\
        failpoints.hit("flush:ending")
        raw.commit()
""",
        """\
        context.memtable.clear()
        failpoints.hit("flush:ending")
        raw.commit()
""",
        ("flushes_fail",),
    ),
    # Other processes look for a record that is not there, or find an old one.
    "a commit that is published before its record is written": Control(
        "engine/txn/txn.py",
        """\
            journal.append(body, self.durable, self.frees)
""",
        """\
            journal.control.publish(self.commit_number)
            failpoints.hit("commit:journaled")
            journal.append(body, self.durable, self.frees)
""",
        ("kills", "failpoints"),
    ),
    # A reader of the same process applies the record as well, and the position goes two ahead.
    "a commit that is published before its rows are taken over": Control(
        "engine/txn/txn.py",
        """\
            with context.apply_lock:  # a reader of this process would apply the record, too
                journal.control.publish(self.commit_number)
                self.committed = True
                failpoints.hit("commit:published")
                context.memtable.merge(self.changes, len(body))
                if self.group_counts is not context.group_counts:
                    context.group_counts = {}
                journal.advance()
""",
        """\
            journal.control.publish(self.commit_number)
            self.committed = True
            failpoints.hit("commit:published")
            context.memtable.merge(self.changes, len(body))
            if self.group_counts is not context.group_counts:
                context.group_counts = {}
            journal.advance()
""",
        ("kills",),
    ),
    # Another process has written its record at the same place.
    "a cut of the journal without the lock": Control(
        "engine/txn/txn.py",
        """\
            failpoints.hit("commit:failed")
            if self.committed or journal.control.newest() >= self.commit_number:
                self.committed = True  # an interrupt came just afterwards
                with context.apply_lock:
                    context.start_over()  # the next transaction finds the commit
            else:
                journal.cut()
""",
        """\
            if self.committed or journal.control.newest() >= self.commit_number:
                self.committed = True
                with context.apply_lock:
                    context.start_over()
            else:
                if context.write_lock is not None:
                    context.write_lock.release_idle()
                failpoints.hit("commit:failed")  # after the look: otherwise few cuts meet a record
                journal.cut()
""",
        ("halfway",),
    ),
    # Decoded streams and groups are as they were before another process changed them.
    "a cache that keeps what other processes have changed": Control(
        "engine/txn/context.py",
        """\
                memtable.apply(body, raw, self.tables)
            self._drop_changed()
""",
        """\
                memtable.apply(body, raw, self.tables)
""",
        ("kills",),
    ),
    # A power loss leaves the checkpoint with pages that later flushes have used again.
    "a pin that does not protect the newest checkpoint": Control(
        "engine/txn/flush.py",
        """\
    failpoints.hit("flush:ended")
""",
        """\
    if context.pin is not None:
        context.pin.abort()
        context.pin = None
        context.pin = context.raw.begin()
    failpoints.hit("flush:ended")
""",
        ("losses",),
    ),
    "a checkpoint whose pages are not synced": Control(
        "engine/checkpoint/checkpoint.py",
        "            files.sync_data(self._data)  # tells",
        "            # tells",
        ("losses",),
    ),
    "a checkpoint that is not synced itself": Control(
        "engine/checkpoint/checkpoint_file.py",
        """\
        failpoints.hit("checkpoint:slot-written")
        files.sync_data(self.handle)
""",
        """\
        failpoints.hit("checkpoint:slot-written")
""",
        ("losses",),
    ),
    "a commit that does not wait for the disk": Control(
        "engine/journal/syncs.py",
        "return control.durable() >= commit_number or self._sync_files(commit_number)",
        "return True",
        ("losses",),
    ),
    # The job stays with a worker that cannot end it any more.
    "an end of a job that is not undone with the transaction around it": Control(
        "jobs/job.py", "            if not txn.committed:", "            if False:", ("kills",)
    ),
    # A job is a dead letter though no attempt of it has failed.
    "a death of a worker that is a failed attempt": Control(
        "jobs/taking.py", "past._replace(lost=past.lost + 1)", "past", ("kills",)
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
    # Until a checkpoint is made, nothing else says what the journal must still have.
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
