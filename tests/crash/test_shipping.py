"""A power loss of the store that is shipped: the copy has nothing that the store has lost."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from conftest import assert_sound
from crash.losses import small_journal
from crash.power import another_boot, watched
from golden_stores import describe
from inside import checkpoint_now
from streamkeep.recovery import restore_copy, ship, verify_copy
from test_recovery.test_copies import change, newest
from tiers import slow_but


@pytest.mark.parametrize("seed", slow_but(range(200), *range(3)))
def test_a_power_loss_takes_back_nothing_that_was_shipped(tmp_path: Path, seed: int) -> None:
    """The copy goes on, or begins anew, and never needs a take-over."""
    chance = random.Random(seed)
    path, target = tmp_path / "store", str(tmp_path / "target")
    shipped: dict[int, Any] = {}
    boots = (nullcontext, another_boot, nullcontext)
    with small_journal():
        for number in range(2):
            lost = tmp_path / f"lost-{number}"
            with (
                boots[number](),
                watched(path) as disk,
                streamkeep.open(path, sync="none") as store,
            ):
                if number:
                    disk.all_synced()
                for _ in range(chance.randrange(5, 60)):
                    change(store, chance)
                    if chance.random() < 0.2:
                        ship(store, target)
                        shipped[newest(store)] = describe(store)
                    if chance.random() < 0.1:
                        checkpoint_now(store)
                disk.lose_power(lost, chance)
            path = lost
            with boots[number + 1](), streamkeep.open(path) as store:
                assert newest(store) >= max(shipped, default=0)
                ship(store, target)
                assert not verify_copy(target, everything=True).problems
                shipped[newest(store)] = describe(store)
            for commit in {max(shipped), chance.choice(sorted(shipped))}:
                restored = tmp_path / f"restored-{number}-{commit}"
                restore_copy(target, restored, commit=commit)
                with streamkeep.open(restored, readonly=True) as found:
                    assert describe(found) == shipped[commit]
            assert_sound(path)
