"""Deliveries under leases, in one process: which lease an entry belongs to, and what is claimed."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from conftest import NOW_MS
from inside import context_of
from stores import Open
from streamkeep.engine.api.store import Store
from streamkeep.engine.liveness import lease_file, leases
from streamkeep.engine.liveness.lease_file import Lease, State, holder_of, new_number, remove_dead
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables import lease_rows
from streamkeep.engine.tables.group import DEAD_FOR_MS
from streamkeep.engine.tables.scan import rows_with
from streamkeep.format.core.errors import ArgumentError, StoreError
from streamkeep.format.core.keys import CONSUMERS, is_lease_key

NEW = {"s": ">"}


@pytest.fixture
def store(open_store: Open) -> Store[Any]:
    store = open_store()
    store.xgroup_create("s", "g", id="0", mkstream=True)
    return store


class Owners:
    """Leases that a test gives and ends, in place of processes."""

    def __init__(self, store: Store[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self._dead = context_of(store).leases._dead  # type: ignore[union-attr]
        monkeypatch.setattr(store, "_lease", lambda: self.now)
        self._alive: set[int] = set()
        state = leases.Leases.state

        def fake(known: leases.Leases, number: int) -> State:
            return State.ALIVE if number in self._alive else state(known, number)

        monkeypatch.setattr(leases.Leases, "state", fake)

    def become(self, number: int) -> None:
        """Deliver under this lease from now on, which is alive."""
        self.now = number
        self._alive.add(number)

    def end(self, number: int) -> None:
        self._alive.discard(number)


@pytest.fixture
def owners(store: Store[Any], monkeypatch: pytest.MonkeyPatch) -> Owners:
    return Owners(store, monkeypatch)


def claimed(store: Store[Any], consumer: str = "claimer") -> list[Any]:
    """Claim from dead leases; return the IDs."""
    return list(store.xautoclaim("s", "g", consumer, 0, count=1000, justid=True, dead=True))


def lease_rows_of(store: Store[Any]) -> int:
    with store.snapshot() as snapshot:
        return sum(is_lease_key(key) for key, _ in rows_with(snapshot.txn, CONSUMERS, b""))


def is_locked(path: Path) -> bool:
    inode = path.stat().st_ino
    places = re.findall(r"\d+: POSIX .* \w+:\w+:(\d+) ", Path("/proc/locks").read_text())
    return str(inode) in places


def test_a_store_that_consumes_nothing_has_no_lease(store: Store[Any]) -> None:
    store.xadd("s", {"a": "b"})
    store.xread({"s": 0})
    assert not (store.path / "leases").exists()


def test_the_first_delivery_makes_a_locked_file_which_closing_removes(store: Store[Any]) -> None:
    store.xreadgroup("g", "ann", NEW)
    (path,) = (store.path / "leases").iterdir()
    assert is_locked(path)
    store.close()
    assert list((store.path / "leases").iterdir()) == []


def test_a_lock_that_the_process_has_lost_is_taken_again(
    store: Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.xreadgroup("g", "ann", NEW)
    (path,) = (store.path / "leases").iterdir()
    path.read_bytes()  # closing any descriptor of the file releases a POSIX lock
    assert not is_locked(path)
    monkeypatch.setattr(leases, "_HOLD_AGAIN_S", 0.0)
    store.xreadgroup("g", "ann", NEW)
    assert is_locked(path)


def test_states_of_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / lease_file.lease_name(5)).touch()  # it is not locked
    (tmp_path / lease_file.lease_name(6)).symlink_to("elsewhere")
    assert holder_of(folder, 4).state is State.DEAD
    assert holder_of(folder, 5).state is State.DEAD
    assert holder_of(folder, 6).state is State.UNKNOWN


def test_files_of_the_dead_are_removed_and_those_that_begin_are_not(tmp_path: Path) -> None:
    tmp_path /= "leases"
    tmp_path.mkdir()
    folder = Folder(tmp_path)
    own = Lease(folder, new_number())
    (tmp_path / lease_file.lease_name(5)).touch()
    (tmp_path / f"{lease_file.lease_name(7)}.new").touch()
    old = tmp_path / f"{lease_file.lease_name(8)}.new"
    old.touch()
    os.utime(old, (0, 0))
    (tmp_path / "README").touch()
    remove_dead(folder, own.number)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {lease_file.lease_name(own.number), f"{lease_file.lease_name(7)}.new", "README"}
    own.close()


def test_no_lease_no_delivery(store: Store[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store.xadd("s", {"a": "b"})
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "__init__", Mock(side_effect=OSError(28, "No space left on device")))
        patch.setattr(Lease, "close", lambda self: None)
        with pytest.raises(StoreError, match="the disk is full"):
            store.xreadgroup("g", "ann", NEW)
    assert store.xpending("s", "g")["pending"] == 0
    assert len(store.xreadgroup("g", "ann", NEW)) == 1


def test_what_was_delivered_without_a_lease_is_claimed_by_time_only(
    store: Store[Any], open_store: Open
) -> None:
    plain = open_store(lease=False)
    store.xadd("s", {"a": "b"})
    plain.xreadgroup("g", "ann", NEW)
    assert not (store.path / "leases").exists()
    assert claimed(store) == []
    (ann, _) = store.xinfo_consumers("s", "g", leases=True)
    assert ann["lease"] == "unknown"
    assert len(store.xautoclaim("s", "g", "bob", 0)[1]) == 1


def test_claims_need_a_dead_lease_and_the_idle_time(
    store: Store[Any], owners: Owners, clock: ManualClock
) -> None:
    ids = store.xadd_many("s", [{"n": "1"}, {"n": "2"}])
    owners.become(1)
    store.xreadgroup("g", "ann", NEW, count=1)
    clock.ms += 50
    store.xreadgroup("g", "ann", NEW, count=1)
    owners.become(2)
    assert claimed(store) == []
    owners.end(1)
    found = store.xautoclaim("s", "g", "bob", 50, justid=True, dead=True)
    assert found == ids[:1]
    assert claimed(store) == ids[1:]


def test_a_read_takes_what_was_returned_then_of_the_dead_then_new_entries(
    store: Store[Any], owners: Owners
) -> None:
    ids = store.xadd_many("s", [{"n": str(number)} for number in range(7)])
    owners.become(1)
    store.xreadgroup("g", "ann", NEW, count=2)
    store.xreadgroup("g", "bob", NEW, count=2)
    owners.become(2)
    store.xreadgroup("g", "carl", NEW, count=1)
    store.xnack("s", "g", "FAIL", ids[3])
    store.xdel("s", ids[1])  # it stays pending, and is not delivered
    owners.end(1)
    [[_, entries]] = store.xreadgroup("g", "dora", NEW, claim_dead=True)
    assert [one[0] for one in entries] == [ids[3], ids[0], ids[2], ids[5], ids[6]]
    assert [one[3] for one in entries] == [1, 1, 1, 0, 0]
    assert store.xreadgroup("g", "dora", NEW, claim_dead=True) == []


def test_both_kinds_of_claims_exclude_each_other(store: Store[Any]) -> None:
    with pytest.raises(ArgumentError, match="not both"):
        store.xreadgroup("g", "ann", NEW, claim_dead=True, claim_min_idle_time=5)
    with pytest.raises(ArgumentError, match="must be 'dead' or None, not 'all'"):
        store.consume("s", "g", "ann", claim="all")  # type: ignore[arg-type]


def test_consumers_of_dead_leases_go_after_a_day(
    store: Store[Any], owners: Owners, clock: ManualClock
) -> None:
    store.xadd_many("s", [{"n": "1"}, {"n": "2"}])
    for number, name in enumerate(("ann", "busy", "alive"), 1):
        owners.become(number)
        store.xreadgroup("g", name, NEW, count=1)
    store.xgroup_createconsumer("s", "g", "made")
    store.xadd("s", {"n": "3"})
    owners.become(3)
    store.xreadgroup("g", "alive", NEW, count=1)
    first = store.xpending_range("s", "g", "-", "+", 1)[0]["message_id"]
    store.xack("s", "g", first, *(one["message_id"] for one in _pending(store, "alive")))
    owners.end(1)
    owners.end(2)
    clock.ms = NOW_MS + DEAD_FOR_MS
    store.xadd("s", {"n": "4"})
    owners.become(4)
    store.xreadgroup("g", "new", NEW)
    assert _names(store) == [b"alive", b"ann", b"busy", b"made", b"new"]
    clock.ms += 1
    store.xadd("s", {"n": "5"})
    owners.become(5)
    store.xreadgroup("g", "newer", NEW)
    assert _names(store) == [b"alive", b"busy", b"made", b"new", b"newer"]


def _names(store: Store[Any]) -> list[Any]:
    return [one["name"] for one in store.xinfo_consumers("s", "g")]


def _pending(store: Store[Any], consumer: str) -> Any:
    return store.xpending_range("s", "g", "-", "+", 100, consumer)


def test_rows_of_leases_do_not_pile_up(store: Store[Any], owners: Owners) -> None:
    kept = store.xadd_many("s", [{"n": str(number)} for number in range(3)])
    owners.become(1)
    store.xreadgroup("g", "ann", NEW)
    for number in range(2, 40):
        owners.become(number)
        (own,) = store.xadd_many("s", [{"n": "0"}])
        store.xreadgroup("g", "ann", NEW)
        store.xack("s", "g", own)
        assert lease_rows_of(store) <= lease_rows._MANY + 1
    owners.end(1)
    assert claimed(store, "bob") == kept
    store.xgroup_delconsumer("s", "g", "ann")
    assert lease_rows_of(store) == 1  # of bob


@pytest.mark.parametrize("seed", range(3))
def test_any_history_of_leases_is_remembered(
    store: Store[Any], owners: Owners, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random commands beside a dict of what was delivered under which lease."""
    monkeypatch.setattr(lease_rows, "_MANY", 3)
    rng = random.Random(seed)
    held: dict[Any, tuple[str, int]] = {}
    dead: set[int] = set()
    lease = 0
    for _ in range(120):
        if lease == 0 or rng.random() < 0.3:
            lease = rng.randrange(1, 30)
            if lease in dead:
                lease = 0
                continue
            owners.become(lease)
        consumer = rng.choice("abc")
        step = rng.randrange(6)
        if step < 2:
            count = rng.choice((1, 3, 30))
            store.xadd_many("s", [{"n": "0"}] * count)
            for _, entries in store.xreadgroup("g", consumer, NEW, count=count):
                held |= {entry.id: (consumer, lease) for entry in entries}
        elif step == 2 and held:
            ids = rng.sample(sorted(held), min(len(held), rng.choice((1, 20))))
            store.xack("s", "g", *ids)
            for one in ids:
                del held[one]
        elif step == 3 and held:
            ids = rng.sample(sorted(held), min(len(held), 5))
            store.xclaim("s", "g", consumer, 0, ids)
            held |= dict.fromkeys(ids, (consumer, lease))
        elif step == 4:
            for _, entries in store.xreadgroup("g", consumer, {"s": 0}, count=4):
                held |= {entry.id: (consumer, lease) for entry in entries}
        elif step == 5:
            ended = rng.randrange(1, 30)
            if ended != lease:
                dead.add(ended)
                owners.end(ended)
            expected = sorted(one for one, (_, under) in held.items() if under in dead)
            if rng.random() < 0.5:
                assert sorted(claimed(store, consumer)) == expected
            else:
                found = store.xreadgroup("g", consumer, NEW, count=1000, claim_dead=True)
                ids = [one[0] for _, entries in found for one in entries]
                assert sorted(ids) == expected
            held |= dict.fromkeys(expected, (consumer, lease))


def test_a_consumer_that_waits_for_the_dead_is_seen(store: Store[Any]) -> None:
    assert store.xreadgroup("g", "ann", NEW, block=150, claim_dead=True) == []
    assert _names(store) == [b"ann"]


@pytest.fixture(autouse=True)
def _no_thread_left(store: Store[Any]) -> Iterator[None]:
    """Closing a store ends its watch."""
    yield
    known = context_of(store).leases
    store.close()
    assert known is not None
    assert known._watch is None
