"""A store on which random commands are run, and a plain reading of all that commands show of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from stores import MODES, open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError

KEYS: Final = (b"a", b"", b"\xff\x00k", b"long" * 150, 'ö,\n"x'.encode(), b'{"type"', b"k\r\n")
NAMES: Final = (b"g", b"", b"\xfe\x00", "grüppe".encode(), b"x" * 300, b"nobody")
VALUES: Final = (
    *(b"", b" ", b"1", b"-7", b"128", b"-4096", b"007", b"+1", b"9223372036854775807", b"null"),
    *(b"-9223372036854775808", b"9223372036854775808", b"\x00", b"\xff\xfe", b"a,b", b'"', b"'"),
    *(b"\n", b"\r", b"\r\n", "☃".encode(), b"x" * 63, b"x" * 64, b"y" * 4096, b"z" * 16_378),
)


class RandomLife:
    """One store; each step is a command that was chosen with a seed, and may be refused."""

    def __init__(self, path: Path, seed: int) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        self.path = path
        self.clock = ManualClock(self.random.choice([1000, 1_718_004_800_000]))
        self.options: dict[str, Any] = {"sync": self.random.choice(MODES), "clock": self.clock}
        if self.random.random() < 0.6:
            most = self.random.choice([1, 2, 3, 10])
            self.options |= {"node_max_entries": most, "node_max_bytes": 0}
        self.store: Store[bytes] = open_at(path, **self.options)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.ms += self.random.choice([0, 0, 1, 1000, 60_000])
            with suppress(CommandError):
                self.random.choice(STEPS)(self, self.random.choice(KEYS))

    def any_id(self, key: bytes) -> bytes:
        """Return the ID of an entry, or of none."""
        found = self.store.xrange(key)
        if found and self.random.random() < 0.8:
            return self.random.choice(found).id
        return b"%d-%d" % (self.random.randrange(1, 2000), self.random.randrange(3))

    def group(self, key: bytes) -> bytes:
        groups = self.store.xinfo_groups(key)
        return self.random.choice(groups)["name"] if groups else b"g"

    def fields(self) -> list[tuple[bytes, bytes]]:
        def value() -> bytes:
            one = self.random.choice(VALUES)
            return one if len(one) < 64 or self.random.random() < 0.2 else b"v"

        if self.random.random() < 0.7:
            return [(b"f", value()), (b"g", value())]
        return [(self.random.choice([b"f", b"", value()]), value()) for _ in range(3)]

    def name(self) -> bytes:
        return self.random.choice(NAMES)

    def append(self, key: bytes) -> None:
        for _ in range(self.random.choice([1, 1, 5, 30])):
            self.store.xadd(key, self.fields())

    def append_at(self, key: bytes) -> None:
        last = self.store.xinfo_stream(key)["last-generated-id"] if self.store.exists(key) else b"0"
        ms = int(last.partition(b"-")[0]) + self.random.choice([1, 5, 100_000])
        self.store.xadd(key, self.fields(), id=f"{ms}-{self.random.choice([0, 1, 7])}")

    def append_once(self, key: bytes) -> None:
        message = self.random.choice([b"1", b"\xfd"])
        self.store.xadd(key, self.fields(), idmp=(self.random.choice([b"p", b"\xff"]), message))

    def delete(self, key: bytes) -> None:
        self.store.xdel(key, self.any_id(key), self.any_id(key))

    def trim(self, key: bytes) -> None:
        policy: Any = self.random.choice([None, "DELREF", "ACKED"])
        exact = self.random.random() < 0.5
        self.store.xtrim(key, self.random.choice([0, 3, 10]), not exact, ref_policy=policy)

    def create_group(self, key: bytes) -> None:
        start = self.random.choice([b"0", b"$", self.any_id(key)])
        read = self.random.choice([None, None, 0, 3])
        self.store.xgroup_create(key, self.name(), start, mkstream=True, entries_read=read)

    def create_consumer(self, key: bytes) -> None:
        self.store.xgroup_createconsumer(key, self.group(key), self.name())

    def deliver(self, key: bytes) -> None:
        count = self.random.choice([1, 3, 20])
        self.store.xreadgroup(self.group(key), self.name(), {key: ">"}, count=count)

    def acknowledge(self, key: bytes) -> None:
        self.store.xack(key, self.group(key), self.any_id(key), self.any_id(key))

    def give_back(self, key: bytes) -> None:
        group = self.group(key)
        pending = [one["message_id"] for one in self.store.xpending_range(key, group, "-", "+", 99)]
        some = self.random.sample(pending, min(len(pending), 3))
        if some:
            self.store.xnack(key, group, self.random.choice(["FAIL", "SILENT", "FATAL"]), *some)

    def claim(self, key: bytes) -> None:
        count = self.random.choice([None, 0, 7])
        ids, force = [self.any_id(key)], self.random.random() < 0.5
        self.store.xclaim(
            key, self.group(key), self.name(), 0, ids, retrycount=count, force=force, justid=True
        )

    def delete_consumer(self, key: bytes) -> None:
        self.store.xgroup_delconsumer(key, self.group(key), self.name())

    def destroy_group(self, key: bytes) -> None:
        self.store.xgroup_destroy(key, self.name())

    def configure(self, key: bytes) -> None:
        size = self.random.choice([1, 3])
        self.store.xcfgset(key, idmp_duration=self.random.choice([5, 86_400]), idmp_maxsize=size)

    def retain(self, key: bytes) -> None:
        archive, most = self.random.choice([None, True, False]), self.random.choice([None, 50, -1])
        approximate = self.random.choice([None, True, False])
        self.store.set_retention(
            key, maxlen=most, archive=archive, approximate=approximate, archive_deleted=archive
        )

    def set_id(self, key: bytes) -> None:
        last = self.store.xinfo_stream(key)["last-generated-id"]
        deleted = self.random.choice([None, last])
        self.store.xsetid(key, last, entries_added=1000, max_deleted_id=deleted)

    def rename(self, key: bytes) -> None:
        self.store.rename(key, self.random.choice(KEYS))

    def drop(self, key: bytes) -> None:
        self.store.delete(key)

    def put_row(self, key: bytes) -> None:
        self.store.row_put("space", key[:100] or b"-", self.random.choice(VALUES))

    def archive(self, key: bytes) -> None:
        self.store.archive()

    def reopen(self, key: bytes) -> None:
        self.store.close()
        self.store = open_at(self.path, **self.options)


STEPS: Final[list[Callable[[RandomLife, bytes], None]]] = [
    *[RandomLife.append, RandomLife.deliver, RandomLife.create_group] * 4,
    *[RandomLife.append_at, RandomLife.append_once, RandomLife.give_back, RandomLife.claim] * 2,
    *[RandomLife.delete, RandomLife.trim, RandomLife.acknowledge, RandomLife.create_consumer] * 2,
    *(RandomLife.delete_consumer, RandomLife.destroy_group, RandomLife.configure),
    *(RandomLife.retain, RandomLife.set_id, RandomLife.rename, RandomLife.drop),
    *(RandomLife.put_row, RandomLife.archive, RandomLife.reopen),
]

_PACKING: Final = ("radix-tree-keys", "radix-tree-nodes")

Shown = dict[bytes, dict[str, Any]]


def shown(store: Store[bytes], *, history: bool = False) -> Shown:
    """Return all that commands show of each stream, except how its entries are packed."""
    found: Shown = {}
    for key in store.keys():  # noqa: SIM118  # a store is no dict
        info = store.xinfo_stream(key, full=True, count=0)
        entries = [(one.id, one.pairs) for one in store.xrange(key, history=history)]
        found[key] = {**info, "entries": entries, "retention": store.retention(key)}
        for name in _PACKING:
            del found[key][name]
    return found


def unlike(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two readings differ, and what they have there."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            told
            for name in {**one, **other}
            for told in unlike(one.get(name), other.get(name), f"{path}/{name!s:.30}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [told for at, (a, b) in pairs for told in unlike(a, b, f"{path}[{at}]")]
    return [] if one == other else [f"{path}: {one!s:.100} against {other!s:.100}"]
