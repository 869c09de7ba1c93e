"""Older states of a store that come back and are shipped, and shippers that were killed.

The first must not take the place of a newer copy without a word, whatever is left of the journal;
and no other one may be refused.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from crash.power import another_boot
from inside import checkpoint_now, journal_of
from stopped import child_of, killed_at, status_of
from streamkeep.engine.journal.reader import journal_names, read_header
from streamkeep.engine.journal.slots import Slot, read_slots
from streamkeep.engine.remote.object_store import FolderObjects
from streamkeep.engine.system import failpoints
from streamkeep.engine.whole_store.compact import compact
from streamkeep.format.copies.head import HEAD
from streamkeep.recovery import backup, restore_copy, ship, verify_copy
from streamkeep.recovery.copies.target import Refused
from test_recovery.test_copies import add, assert_restored, newest
from tiers import daily_or_all, pairs_of, slow_but


def give_up_journal(place: Path) -> None:
    """Make so many commits that the journal no longer goes on after what was shipped."""
    with streamkeep.open(place) as store:
        before, journal = newest(store), journal_of(store)
        folder = journal.folder
        for slot in read_slots(folder):
            slot._replace(hold_bytes=1).write(folder)
        journal.file_size = 1 << 14
        store.xadd("t", {"pad": bytes(journal.first_size)})  # more than fits
        for _ in range(3):
            for _ in range(4):
                store.xadd("t", {"pad": os.urandom(3000).hex()})
            checkpoint_now(store)
        headers = [read_header(folder, name) for name in journal_names(folder)]
        assert min(one.first_commit for one in headers if one is not None) > before + 1


LOSSES: dict[str, Callable[[Path], object]] = {
    "": lambda place: None,
    "compacted": compact,
    "held no more": give_up_journal,
}


@pytest.mark.parametrize("loses", LOSSES)
@pytest.mark.parametrize("boot", slow_but([nullcontext, another_boot], nullcontext))
@pytest.mark.parametrize("how", ["beside", "begun", "put back", "put over", "backup put over"])
@pytest.mark.parametrize("more", slow_but([-1, 0, 9], 0))
def test_an_older_state_is_refused(
    tmp_path: Path,
    target: Path,
    loses: str,
    boot: Callable[[], AbstractContextManager[Any]],
    how: str,
    more: int,
) -> None:
    """Also with as many commits as were shipped, and more; and nothing counts as shipped."""
    place, older = tmp_path / "store", tmp_path / "older"
    with streamkeep.open(place) as store:
        add(store, 2)
        if how in ("beside", "put back"):  # "over": the slot that stays is a newer one
            ship(store, target)
        if "backup" in how:
            backup(store, older)
    if how == "begun":
        killed_at("ship:head", lambda: ship(place, target))
    if "backup" not in how:
        shutil.copytree(place, older)
    with streamkeep.open(place) as store:
        add(store, 5, target)
        shipped = newest(store)
    if how == "put back":
        shutil.rmtree(place)
    if "put" in how:
        shutil.copytree(older, place, dirs_exist_ok=True)
        older = place
    with boot():
        with streamkeep.open(older) as store:
            while newest(store) < shipped + more:
                store.xadd("s", {"n": "1"})
        LOSSES[loses](older)
        with streamkeep.open(older) as store:
            if "over" in how:
                with pytest.raises(streamkeep.StoreError, match="nothing ships"):
                    store.wait_shipped(0)
                [copy] = store.durability().copies
                assert (copy.behind, copy.shipped_ms) == (newest(store), 0)
            for _ in range(2):
                with pytest.raises(
                    Refused, match=rf"has commit {shipped}, of .*has commit {newest(store)}"
                ):
                    ship(store, target)
            assert verify_copy(target).last_commit == shipped
            ship(store, target, take_over=True)
            assert store.wait_shipped(0)
            assert_restored(target, tmp_path / "restored", store)


def killed_at_moment(wanted: int, work: Callable[[], object]) -> bool:
    """Run something in a child that ends before or after a write; return False if it has fewer."""

    def run() -> None:
        moments = 0

        def ending(whole: Callable[..., Any]) -> Callable[..., Any]:
            def write(*args: Any, **options: Any) -> Any:
                pass_moment()
                done = whole(*args, **options)
                pass_moment()
                return done

            return write

        def pass_moment() -> None:
            nonlocal moments
            moments += 1
            if moments == wanted:
                os._exit(9)

        Slot.write = ending(Slot.write)  # type: ignore[method-assign]
        for name in ("create", "replace", "put", "remove"):
            setattr(FolderObjects, name, ending(getattr(FolderObjects, name)))
        work()

    return status_of(child_of(run)) == 9


@pytest.mark.parametrize(
    ("kind", "loses"), pairs_of(["first", "pieces", "renewed", "restored"], LOSSES)
)
def test_no_killed_shipper_is_refused(tmp_path: Path, kind: str, loses: str) -> None:
    """Whatever it was doing, and although its journal shows nothing any more."""
    moment = 0
    while True:
        moment += daily_or_all(3, 1)
        place, target = tmp_path / f"store{moment}", tmp_path / f"target{moment}"
        with streamkeep.open(place) as store:
            add(store, 2, "" if kind == "first" else target)
            add(store, 3)
        if kind == "restored":
            restore_copy(target, tmp_path / f"new{moment}")
            place = tmp_path / f"new{moment}"

        def work(place: Path = place, target: Path = target) -> None:
            with streamkeep.open(place) as store:
                for _ in range(2):
                    ship(store, target, renew=kind == "renewed")
                    add(store, 2)

        if not killed_at_moment(moment, work):
            break
        LOSSES[loses](place)
        with streamkeep.open(place) as store:
            store.xadd("s", {"n": "x"})
            ship(store, target)
            assert store.wait_shipped(0)
            assert_restored(target, tmp_path / f"restored{moment}", store)
    assert moment > 10


@pytest.mark.parametrize("loses", LOSSES)
@pytest.mark.parametrize("begins", [False, True], ids=["piece", "base"])
def test_of_two_shippers_one_is_refused(
    tmp_path: Path, target: Path, loses: str, begins: bool
) -> None:
    """It was killed while it sent, and the other one had sent fewer commits in that moment."""
    place, twin = tmp_path / "store", tmp_path / "twin"
    with streamkeep.open(place) as store:
        add(store, 2, target)
    shutil.copytree(place, twin)
    with streamkeep.open(place) as store:
        add(store, 1)
        shipped = newest(store)
    with streamkeep.open(twin) as store:
        add(store, 5)
    if begins:
        compact(twin)
    step = "ship:base" if begins else "ship:piece"

    def overtaken() -> None:
        ship(place, target)
        if not begins:
            os._exit(9)

    def work() -> None:
        failpoints.arm(step, overtaken)
        with pytest.raises(Refused):
            ship(twin, target)
        os._exit(9)

    assert status_of(child_of(work)) == 9
    LOSSES[loses](twin)
    with pytest.raises(Refused, match=f"the copy has commit {shipped}, of"):
        ship(twin, target)
    with streamkeep.open(place) as store:
        ship(store, target)
        assert_restored(target, tmp_path / "restored", store)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("kind", ["piece", "head", "first head"])
def test_what_comes_after_its_shipper_was_killed_is_known(
    tmp_path: Path, target: Path, kind: str, compacted: bool
) -> None:
    """The next shipper is at work already, and is killed when it sends something else."""
    place, late = tmp_path / "store", tmp_path / "late"
    with streamkeep.open(place) as store:
        add(store, 2, "" if kind == "first head" else target)
        add(store, 1)

    whole = {request: getattr(FolderObjects, request) for request in ("create", "replace")}

    def write(self: FolderObjects, name: str, *args: Any, request: str) -> bool:
        if name != HEAD and (kind != "piece" or "/0/" not in name):
            return bool(whole[request](self, name, *args))
        if late.exists():
            request, name, *args = pickle.loads(late.read_bytes())
            whole[request](self, name, *args)
        else:
            late.write_bytes(pickle.dumps((request, name, *args)))
        os._exit(9)

    def work() -> None:
        for request in whole:
            setattr(FolderObjects, request, partialmethod(write, request=request))
        ship(place, target, renew=kind == "head")

    for compacts in (compacted and kind != "piece", compacted):
        if compacts:
            compact(place)
        assert status_of(child_of(work)) == 9
        with streamkeep.open(place) as store:
            add(store, 1)
    if compacted or kind == "piece":
        compact(place)
    with streamkeep.open(place) as store:
        ship(store, target)
        assert_restored(target, tmp_path / "restored", store)


def test_a_target_that_loses_what_was_shipped_before_the_first_head(
    tmp_path: Path, target: Path
) -> None:
    """Commits came while the base was written, and a kill after the head was."""
    place = tmp_path / "store"

    def work() -> None:
        with streamkeep.open(place) as store:
            add(store, 2)
            failpoints.arm("ship:base", lambda: add(store, 3))
            failpoints.arm("ship:head", lambda: os._exit(9))
            ship(store, target)

    assert status_of(child_of(work)) == 9
    for piece in target.rglob("0/*.skp"):
        piece.unlink()
    compact(place)
    with streamkeep.open(place) as store:
        ship(store, target)
        assert_restored(target, tmp_path / "restored", store)
