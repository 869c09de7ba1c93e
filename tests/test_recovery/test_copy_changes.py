"""The change feed of a copy: any commit that it has, also when its store is gone."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from conftest import assert_sound
from golden_stores import describe
from patience import beside
from replayed import Mutator, Replayed, state_of
from stores import Open
from streamkeep import Store
from streamkeep.engine.remote.object_store import FolderObjects
from streamkeep.recovery import changes, restore_copy, ship, verify_copy
from streamkeep.recovery.copies import changes as feed_of_copy
from streamkeep.recovery.copies import writer
from tiers import slow_but


@pytest.mark.parametrize("seed", slow_but(range(40), 0))
def test_a_copy_has_each_commit_of_its_store_and_the_changes(
    open_store: Open, target: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of level 1, records, and half a piece give the store as it was, at each commit.

    The changes give its state at each commit; a reader goes on at any, also of the store's feed.
    """
    monkeypatch.setattr(writer, "_SMALL", 20)
    chance = random.Random(seed)
    monkeypatch.setattr(feed_of_copy, "_MOST_ROWS", chance.choice((3, 1000)))
    store, mutator = open_store(sync="none", node_max_entries=5), Mutator(chance)
    ship(store, target)
    first, state = state_of(store)
    replayed, states, described = Replayed(state), {first: state}, {first: describe(store)}
    own = store.changes(first)
    for _ in range(120):
        mutator.change(store)
        number, state = state_of(store)
        states[number], described[number] = state, describe(store)
        if chance.random() < 0.3:
            ship(store, target)
    assert ship(store, target).pieces <= 1  # nothing is shipped twice
    last = max(states)
    proved = verify_copy(target)
    assert (proved.problems, proved.last_commit, proved.noted) == ((), last, True)
    commits = list(changes(target))
    assert commits == list(own)
    assert [one.number for one in commits] == list(range(first + 1, last + 1))
    for commit in commits:
        for effect in commit.effects:
            replayed.apply(effect)
        if commit.number in states:
            assert replayed.streams == states[commit.number]
    for at in chance.sample(range(len(commits)), 8):
        assert list(changes(target, commits[at].position)) == commits[at + 1 :]
        assert list(changes(target, commits[at].number)) == commits[at + 1 :]
    assert list(changes(target, "$")) == []
    for number in chance.sample(sorted(states), 8):
        place = tmp_path / f"restored-{number}"
        done = restore_copy(target, place, commit=number)
        assert (done.commit_number, done.behind) == (number, last - number)
        with streamkeep.open(place, readonly=True) as restored:
            assert describe(restored) == described[number]
    store.xadd("a", {"n": "one more"})
    ship(store, target)
    again = verify_copy(target)
    assert (again.problems, again.commits) == ((), state_of(store)[0] - last)


def test_a_reader_goes_from_one_generation_to_the_next(
    store: Store, target: Path, tmp_path: Path
) -> None:
    """Where the next one goes on; otherwise it says so, with both numbers."""
    store.xadd("a", {"n": "1"}, id="1-1")
    ship(store, target)
    first = state_of(store)[0]
    store.xadd("a", {"n": "2"}, id="2-1")
    ship(store, target)
    commits = changes(target, first)
    assert next(commits).effects[0].ids == (b"2-1",)
    restore_copy(target, tmp_path / "second")
    with streamkeep.open(tmp_path / "second") as second:
        ship(second, target)  # a generation whose base is the last commit of the one before
        second.xadd("a", {"n": "3"}, id="3-1")
        ship(second, target)
        assert next(commits).effects[0].ids == (b"3-1",)
    restore_copy(target, tmp_path / "third")
    with streamkeep.open(tmp_path / "third") as third:
        third.xadd("a", {"n": "4"}, id="4-1")
        ship(third, target)  # a generation whose base has more
        last = state_of(third)[0]
        third.xadd("a", {"n": "5"}, id="5-1")
        ship(third, target)
        assert list(changes(target, last))[-1].effects[0].ids == (b"5-1",)
        both = f"after commit {last - 1}.* from commit {last}"
        with pytest.raises(streamkeep.ChangesGoneError, match=both) as gone:
            list(commits)
        assert (gone.value.wanted, gone.value.oldest) == (last - 1, last)
    assert_sound(tmp_path / "third")


def test_an_erased_entry_is_in_no_feed_of_the_copy(store: Store, target: Path) -> None:
    ship(store, target)
    first = state_of(store)[0]
    store.xadd("a", {"secret": "the code word"}, id="1-1")
    ship(store, target)
    assert b"the code word" in repr(list(changes(target, first))).encode()
    store.erase("a", "1-1")
    ship(store, target)
    with pytest.raises(streamkeep.ChangesGoneError, match=f"after commit {first}") as gone:
        changes(target, first)
    assert gone.value.oldest > first
    assert b"the code word" not in repr(list(changes(target))).encode()


def test_following_a_copy(store: Store, target: Path) -> None:
    ship(store, target)
    stop, got = threading.Event(), list[Any]()

    def follow() -> None:
        for commit in changes(target, "$", follow=True, every="1ms", stop=stop.is_set):
            got.extend(effect.kind for effect in commit.effects)
            if "added" in got:
                stop.set()

    with beside(follow):
        while not stop.is_set():
            store.xadd("a", {"n": "1"})
            ship(store, target)
    assert "added" in got


def test_what_a_copy_refuses(store: Store, target: Path, tmp_path: Path) -> None:
    with pytest.raises(streamkeep.NotAStoreError, match="no copy"):
        changes(target)
    store.xadd("a", {"n": "1"})
    ship(store, target)
    oldest = state_of(store)[0]
    store.xadd("a", {"n": "2"})
    ship(store, target)
    (commit,) = changes(target)
    with pytest.raises(streamkeep.ChangesGoneError, match=f"begins with commit {oldest}"):
        changes(target, oldest - 1)
    with pytest.raises(
        streamkeep.ChangesGoneError, match=f"ends with commit {oldest + 1}, before 99"
    ):
        changes(target, 99)
    with pytest.raises(streamkeep.ChangesGoneError, match="another one"):
        changes(target, f"{commit.number}-{0:015x}1")
    with pytest.raises(streamkeep.ArgumentError, match="from_commit"):
        changes(target, "no")
    (first,) = [name for name in FolderObjects(str(target)).names("") if "/0/" in name]
    (tmp_path / "target" / first).unlink()
    ship(store, str(tmp_path / "other"))
    assert list(changes(target)) == []  # the rest is what the shipper would write next


def test_the_rows_of_a_reader_are_removed(store: Store, tmp_path: Path) -> None:
    target, scratch = str(tmp_path / "target"), tmp_path / "scratch"
    scratch.mkdir()
    ship(store, target)
    store.xadd("a", {"n": "1"})
    store.xadd("a", {"n": "2"})
    ship(store, target)
    commits = changes(target, scratch=scratch)
    next(commits)
    assert len(list(scratch.iterdir())) == 1
    commits.close()  # type: ignore[attr-defined]  # a generator
    assert not list(scratch.iterdir())
