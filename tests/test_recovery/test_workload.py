"""Nothing is wrong with a store that random commands on groups and producers left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from inside import run_write
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError
from tiers import slow_but

STEPS: Final = 800
CHECK_EVERY: Final = 20
FIELDS: Final = {"f": "v"}
LONG: Final = "long" * 200  # longer than an LMDB key
STREAMS: Final = ("a", "b", LONG)
GROUPS: Final = ("", "g", LONG)
CONSUMERS: Final = ("", "c", "d", LONG)
PRODUCERS: Final = ("p", "q", LONG)
POLICIES: Final = ("KEEPREF", "DELREF", "ACKED")


class Workload:
    """Random commands on few names and IDs, so that they meet often."""

    def __init__(self, seed: int, clock: ManualClock) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.target: Any = None  # a store, or a transaction on it
        self.commands: list[tuple[int, Callable[[], object]]] = [
            (12, self.append),
            (4, self.append_many),
            (10, self.append_message),
            (3, self.record_message),
            (1, self.configure),
            (12, self.create_group),
            (3, self.set_group),
            (1, self.destroy_group),
            (2, self.create_consumer),
            (3, self.delete_consumer),
            (30, self.read),
            (4, self.read_history),
            (8, self.acknowledge),
            (4, self.acknowledge_and_delete),
            (8, self.give_back),
            (8, self.claim),
            (8, self.claim_any),
            (5, self.delete_entries),
            (4, self.trim),
            (3, self.set_stream),
            (1, self.delete_stream),
            (1, self.rename_stream),
            (8, self.let_time_pass),
        ]

    def step(self) -> None:
        """Run one command; what Redis refuses changes nothing."""
        weights = [weight for weight, _ in self.commands]
        command = self.random.choices(self.commands, weights)[0][1]
        with suppress(CommandError):
            command()

    # --- arguments ------------------------------------------------------------------------------

    def pick(self, choices: tuple[Any, ...]) -> Any:
        return self.random.choice(choices)

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def stream(self) -> str:
        return self.random.choices(STREAMS, (6, 2, 1))[0]

    def group(self) -> str:
        return self.random.choices(GROUPS, (1, 6, 2))[0]

    def consumer(self) -> str:
        return self.random.choices(CONSUMERS, (1, 4, 4, 1))[0]

    def ids(self, name: str, most: int = 12) -> list[str]:
        """IDs that are in the stream or pending, and some that are nowhere."""
        known = [entry.id.decode() for entry in self.target.xrange(name)]
        for group in self.target.xinfo_groups(name) if known else ():
            pending = self.target.xpending_range(name, group["name"], "-", "+", 200)
            known += [row["message_id"].decode() for row in pending]
        known.append(f"{self.clock.ms}-{self.random.randrange(9)}")
        return [self.random.choice(known) for _ in range(self.random.randrange(1, most))]

    def trimming(self) -> dict[str, Any]:
        if self.chance(0.8):
            return {}
        return {
            "maxlen": self.random.randrange(60),
            "approximate": self.chance(0.5),
            "ref_policy": self.pick(POLICIES),
        }

    # --- streams --------------------------------------------------------------------------------

    def append(self) -> None:
        self.target.xadd(self.stream(), FIELDS, **self.trimming())

    def append_many(self) -> None:
        self.target.xadd_many(self.stream(), [FIELDS] * self.random.randrange(1, 150))

    def append_message(self) -> None:
        name, producer = self.stream(), self.pick(PRODUCERS)
        if self.chance(0.2):
            self.target.xadd(name, {"f": self.random.randrange(9)}, idmpauto=producer)
            return
        for _ in range(self.random.randrange(1, 9)):
            iid = self.pick(("", "i", LONG)) + str(self.random.randrange(40))
            self.target.xadd(name, FIELDS, idmp=(producer, iid), **self.trimming())

    def record_message(self) -> None:
        name = self.stream()
        iid = f"i{self.random.randrange(40)}"
        self.target.xidmprecord(name, self.pick(PRODUCERS), iid, self.ids(name)[0])

    def configure(self) -> None:
        size = self.random.randrange(1, 30)
        self.target.xcfgset(self.stream(), self.random.randrange(1, 4), size)

    def delete_entries(self) -> None:
        name = self.stream()
        if self.chance(0.5):
            self.target.xdel(name, *self.ids(name))
        else:
            self.target.xdelex(name, *self.ids(name), ref_policy=self.pick(POLICIES))

    def trim(self) -> None:
        name = self.stream()
        options = {"approximate": self.chance(0.3), "ref_policy": self.pick(POLICIES)}
        if self.chance(0.5):
            self.target.xtrim(name, maxlen=self.pick((0, 1, 10, 50)), **options)
        else:
            self.target.xtrim(name, minid=self.ids(name)[0], **options)

    def set_stream(self) -> None:
        """Also backwards, below what is pending, where the stream is empty."""
        name = self.stream()
        if self.chance(0.3):
            self.target.xtrim(name, maxlen=0, approximate=False)
            self.target.xsetid(name, "0-5", entries_added=self.random.randrange(9))
        else:
            last = f"{self.clock.ms + self.random.randrange(9)}-0"
            self.target.xsetid(name, last, entries_added=self.pick((None, 1, 999)))

    def delete_stream(self) -> None:
        self.target.delete(self.stream())

    def rename_stream(self) -> None:
        if self.chance(0.5):
            self.target.rename(self.stream(), self.stream())
        else:
            self.target.renamenx(self.stream(), self.stream())

    # --- groups ---------------------------------------------------------------------------------

    def create_group(self) -> None:
        self.target.xgroup_create(
            self.stream(),
            self.group(),
            self.pick(("0", "$")),
            mkstream=True,
            entries_read=self.pick((None, 0, 7)),
        )

    def set_group(self) -> None:
        name = self.stream()
        position = self.pick(("0", "$", "+", self.ids(name)[0]))
        self.target.xgroup_setid(name, self.group(), position, self.pick((None, 0, 10**9)))

    def destroy_group(self) -> None:
        self.target.xgroup_destroy(self.stream(), self.group())

    def create_consumer(self) -> None:
        self.target.xgroup_createconsumer(self.stream(), self.group(), self.consumer())

    def delete_consumer(self) -> None:
        self.target.xgroup_delconsumer(self.stream(), self.group(), self.consumer())

    def read(self) -> None:
        self.target.xreadgroup(
            self.group(),
            self.consumer(),
            {self.stream(): ">"},
            count=self.pick((None, 1, 7, 60)),
            noack=self.chance(0.1),
            claim_min_idle_time=self.pick((None, None, 0, 5)),
        )

    def read_history(self) -> None:
        name = self.stream()
        start = self.pick(("0", self.ids(name)[0]))
        self.target.xreadgroup(self.group(), self.consumer(), {name: start}, count=9)

    def acknowledge(self) -> None:
        name, group = self.stream(), self.group()
        if self.chance(0.2):  # everything: pages go, and the list comes back inline
            rows = self.target.xpending_range(name, group, "-", "+", 10_000)
            ids = [row["message_id"] for row in rows]
            self.random.shuffle(ids)
            ids = ids[: self.pick((len(ids), len(ids) // 2))]
        else:
            ids = self.ids(name)
        if ids:
            self.target.xack(name, group, *ids)

    def acknowledge_and_delete(self) -> None:
        name, policy = self.stream(), self.pick(POLICIES)
        self.target.xackdel(name, self.group(), *self.ids(name), ref_policy=policy)

    def give_back(self) -> None:
        name = self.stream()
        self.target.xnack(
            name,
            self.group(),
            self.pick(("SILENT", "FAIL", "FATAL")),
            *self.ids(name, 40),
            retrycount=self.pick((None, 3)),
            force=self.chance(0.5),
        )

    def claim(self) -> None:
        name = self.stream()
        when: dict[str, int] = self.pick(({}, {"idle": 7}, {"time": 3}, {"time": 1 << 60}))
        self.target.xclaim(
            name,
            self.group(),
            self.consumer(),
            self.pick((0, 5)),
            self.ids(name, 40),
            retrycount=self.pick((None, 5)),
            force=self.chance(0.5),
            justid=self.chance(0.5),
            last_id=self.pick((None, self.ids(name)[0])),
            **when,
        )

    def claim_any(self) -> None:
        name, start = self.stream(), self.pick(("-", "0"))
        self.target.xautoclaim(
            name, self.group(), self.consumer(), self.pick((0, 5)), start, self.pick((1, 50))
        )

    def let_time_pass(self) -> None:
        """Now and then the clock goes back."""
        self.clock.ms = max(1, self.clock.ms + self.random.choice((1, 10, 1000, -20)))


def assert_sound(store: Store, seed: int, step: int) -> None:
    findings = [str(one) for one in recovery.check(store)]
    assert findings == [], f"seed {seed}, step {step}"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


@pytest.fixture
def slow_garbage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave garbage lying, as a crash does; take a few rows of it at a time."""
    monkeypatch.setattr(keys, "GARBAGE_STEP", 25)
    monkeypatch.setattr(Store, "_collect_garbage", lambda store: None)
    yield
    monkeypatch.undo()


def run(store: Store, workload: Workload, seed: int) -> None:
    """Run commands, some of them together in one transaction, some of those undone."""
    for step in range(0, STEPS, CHECK_EVERY):
        if workload.chance(0.3):
            with store.transaction() as txn:
                workload.target = txn
                for _ in range(CHECK_EVERY):
                    workload.step()
                if workload.chance(0.2):
                    txn.abort()
        else:
            workload.target = store
            for _ in range(CHECK_EVERY):
                workload.step()
        assert_sound(store, seed, step)


@pytest.mark.parametrize("seed", slow_but(range(8), 0))
def test_random_commands_leave_nothing_wrong(
    open_store: Callable[..., Store], clock: ManualClock, seed: int
) -> None:
    limits: dict[str, int] = {} if seed % 2 else {"node_max_entries": 4}
    store = open_store(**limits)
    run(store, Workload(seed, clock), seed)
    store.close()
    run(open_store(**limits), Workload(seed + 100, clock), seed + 100)


@pytest.mark.parametrize("seed", range(4))
def test_garbage_that_is_half_removed_is_nothing_wrong(
    tmp_path: Path, clock: ManualClock, slow_garbage: None, seed: int
) -> None:
    with Store(tmp_path / "store", sync="none", clock=clock) as store:
        workload = Workload(seed, clock)
        workload.target = store
        workload.commands += [(3, workload.destroy_group), (3, workload.delete_stream)]
        workload.commands += [(3, workload.configure)]
        seen = 0
        for step in range(STEPS):
            workload.step()
            if workload.chance(0.3):
                run_write(store, keys.collect_garbage)
            if step % CHECK_EVERY == 0:
                assert_sound(store, seed, step)
                with store.snapshot() as snapshot:
                    seen += len(list(keys.iter_garbage(snapshot.txn)))
        assert seen > 0
