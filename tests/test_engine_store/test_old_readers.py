"""A snapshot that keeps pages from being used again is named in the log."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import streamkeep
from conftest import assert_sound
from patience import PATIENCE_S
from streamkeep.engine.api.views import Sync
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.store import old_readers
from tiers import slow_but

TEXT = "the file has grown by"


@pytest.mark.parametrize("sync", slow_but(["commit", "none"], "commit"))
def test_a_snapshot_that_has_the_file_grow_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sync: Sync
) -> None:
    monkeypatch.setattr(old_readers, "GROWN_BYTES", 1 << 20)
    monkeypatch.setattr(old_readers, "CHECK_EVERY_S", 0.02)
    monkeypatch.setattr(checkpointer, "CHORES_EVERY_S", 0.02)
    monkeypatch.setattr(checkpointer, "CHECKPOINT_EVERY_S", 0.1)
    with streamkeep.open(tmp_path / "store", sync=sync) as store:

        def write() -> None:
            store.xadd("s", {"n": b"x" * 50_000})
            store.xtrim("s", maxlen=1, approximate=False)

        write()
        with store.snapshot():
            deadline = time.monotonic() + PATIENCE_S
            while TEXT not in caplog.text:
                assert time.monotonic() < deadline, "it does not warn"
                write()
            for _ in range(100):
                write()
        assert caplog.text.count(TEXT) == 1
        assert f"process {os.getpid()}, this one, (thread " in caplog.text
        monkeypatch.setattr(old_readers, "WARN_EVERY_S", 0.0)
        caplog.clear()
        before = store.used_bytes
        for _ in range(200):
            write()
            time.sleep(0.002)
        assert TEXT not in caplog.text or store.used_bytes > before + (1 << 20)
    assert_sound(tmp_path / "store")
