"""The change feed: what commits have done, for readers that go on where they stopped."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from replayed import Mutator, Replayed, state_of
from streamkeep.engine.api.store import Store

Open = Callable[..., Store[Any]]


@pytest.mark.parametrize("seed", range(12))
def test_the_effects_give_the_store_at_each_commit(open_store: Open, seed: int) -> None:
    """A reader that goes on at any commit of the feed gets to the same state."""
    chance = random.Random(seed)
    store = open_store(sync="none", node_max_entries=chance.choice((3, 10, 100)))
    mutator, replayed = Mutator(chance), Replayed()
    feed = store.changes("$", block=1)
    states = {state_of(store)[0]: state_of(store)[1]}
    for _ in range(200):
        mutator.change(store)
        number, state = state_of(store)
        states[number] = state
    numbers = []
    for commit in feed:
        numbers.append(commit.number)
        for effect in commit.effects:
            replayed.apply(effect)
        if commit.number in states:
            assert replayed.streams == states[commit.number]
    assert numbers == list(range(min(states) + 1, max(states) + 1))
