"""Notes of tasks about lost entries: a query that was killed leaves none for long."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.source import losses
from streamkeep.pipeline.source.slices import Slice


def test_notes_of_processes_that_died_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    part = Slice(b"s", 1, StreamId(1, 0), StreamId(9, 0), 100)
    mine = losses.new_notes()
    losses.note_loss(mine, part, 5)
    with subprocess.Popen(["true"]) as died:
        pass
    dead = mine.replace(f"-{os.getpid()}-", f"-{died.pid}-")
    losses.note_loss(dead, part, 7)
    others = ["streamkeep-losses-of-another-program", f"streamkeep-losses-{10**20}-x"]
    for name in others:
        (tmp_path / name).mkdir()
    other = losses.new_notes()
    assert other != mine
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([Path(mine).name, *others])
    assert losses.noted_losses(mine) == {b"s": 5}
    losses.remove_notes(mine)
    assert losses.noted_losses(mine) == {}
