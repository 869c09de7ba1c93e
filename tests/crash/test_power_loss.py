"""After a power loss at any moment a store opens whole, with everything that was promised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from crash.power import another_boot, watched
from streamkeep import recovery
from streamkeep.engine import journal as journals
from streamkeep.engine.api import Store
from streamkeep.engine.clock import ManualClock

KEYS = [b"a", b"b"]


def entries(store: Store) -> dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]]:
    """Return everything in the streams of the workload."""
    return {key: [tuple(entry) for entry in store.xrange(key)] for key in KEYS}


class Workload:
    """Random commands; remembers the store's contents after each commit."""

    def __init__(self, store: Store, random_: random.Random) -> None:
        self.store = store
        self.random = random_
        self.states = [entries(store)]

    def step(self) -> None:
        random_, store = self.random, self.store
        key = random_.choice(KEYS)
        choice = random_.random()
        if choice < 0.55:
            store.xadd(key, {"n": random_.randrange(1 << 30), "pad": "x" * random_.randrange(300)})
        elif choice < 0.7:
            store.xadd_many(key, [{"n": str(n)} for n in range(random_.randrange(1, 200))])
        elif choice < 0.75:
            store.xadd(key, {"big": "y" * random_.randrange(3000, 30000)})
        elif choice < 0.85:
            ids = [entry.id for entry in store.xrange(key)]
            if ids:
                store.xdel(key, *random_.sample(ids, min(len(ids), random_.randrange(1, 20))))
        elif choice < 0.95:
            store.xtrim(key, maxlen=random_.randrange(200), approximate=False)
        else:
            store.delete(key)
        self.states.append(entries(store))


@pytest.mark.parametrize("sync", ["commit", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_a_store_opens_whole_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, seed: int
) -> None:
    run_losses(tmp_path, monkeypatch, sync, seed, steps=60, every=4)


def run_losses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sync: str,
    seed: int,
    *,
    steps: int,
    every: int,
) -> int:
    """Lose power after every few steps of a workload; return how often."""
    random_ = random.Random(seed)
    folder = tmp_path / "store"
    monkeypatch.setattr(journals, "FILE_SIZE", 64 << 10)
    monkeypatch.setattr(journals, "_FIRST_SIZE", 16 << 10)
    count = 0
    with watched(folder, pytest.MonkeyPatch()) as disk:
        with Store(folder, sync=sync, clock=ManualClock(1000)) as store:  # type: ignore[arg-type]
            workload = Workload(store, random_)
            points = [0]
            for step in range(steps):
                workload.step()
                if random_.random() < 0.1:
                    store._environment.make_point()
                    points.append(len(workload.states) - 1)
                if step % every == 0:
                    count += 1
                    lost = tmp_path / f"lost-{step}"
                    disk.lose_power(lost, random_)
                    least = len(workload.states) - 1 if sync == "commit" else points[-1]
                    check(lost, workload.states, least)
    return count


def check(path: Path, states: list[object], least: int) -> None:
    """Open what is left after a power loss; at least the state number `least` must be there."""
    with another_boot(pytest.MonkeyPatch()), Store(path, clock=ManualClock(1000)) as store:
        found = entries(store)
        number = max(n for n, state in enumerate(states) if state == found)
        assert number >= least
        store.xadd(b"a", {"after": "recovery"}, id="99999999999999-0")
    assert [str(finding) for finding in recovery.check(path)] == []
