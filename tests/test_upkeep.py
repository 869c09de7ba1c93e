"""The upkeep thread: when it works, and that nothing ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamkeep
from conftest import assert_sound
from streamkeep.engine import upkeep
from streamkeep.engine.views import Sync

MODES = pytest.mark.parametrize("sync", ["commit", "none"])


@MODES
def test_a_transaction_wakes_the_thread_no_more_often_than_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync
) -> None:
    rings: list[None] = []
    ring = upkeep.Upkeep.notice

    def counted(self: upkeep.Upkeep) -> None:
        rings.append(None)
        ring(self)

    monkeypatch.setattr(upkeep.Upkeep, "notice", counted)
    with streamkeep.open(tmp_path / "store", sync=sync) as store:
        store.xadd("s", {"n": 0})
        for number in range(50):
            with store.transaction() as txn:
                txn.xadd("s", {"n": number})
        # Once for the first commit; again only if the store was quiet for seconds meanwhile.
        assert 1 <= len(rings) < 10
    assert_sound(tmp_path / "store")
