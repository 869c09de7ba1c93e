"""Rows with right checksums and wrong content, as a bug, another version or an enemy writes them.

`hostile` changes a row in every way that a decoder must withstand: empty, cut off, too long, huge
numbers, random bytes, a key of another shape. What then must hold:

- a check says what it says, and opening the store and every command either work or raise our own
  errors;
- repair writes a new store, of which a check says nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from raw_store import RawStore
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core import keys as tables
from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.errors import FormatVersionError, StreamkeepError
from streamkeep.format.node.envelope import MAGIC, Envelope, decode_envelope, encode_envelope
from streamkeep.format.rows import records
from streamkeep.format.segment.manifest import encode_erasure, erasure_key
from streamkeep.recovery.salvage.repair import repair

NOW_MS: Final = 1_718_004_800_000
HUGE: Final = (1 << 64) - 1
ENVELOPES: Final = (tables.STREAMS, tables.NODES, tables.RETIRED)
_MOST_KEY: Final = 511


class Change(NamedTuple):
    """One row that is put in the place of another."""

    table: int
    db_key: bytes  # of the row that goes
    new_key: bytes
    value: bytes
    what: str

    def __str__(self) -> str:
        return f"{tables.TABLES[self.table].name} {self.db_key.hex()}: {self.what}"

    def apply(self, raw: RawStore) -> None:
        raw.delete(self.table, self.db_key)
        raw.put_value(self.table, self.new_key, self.value)


def build(path: Path) -> None:
    """Write a small store with rows of every kind."""
    clock = ManualClock(NOW_MS)
    with Store(path, sync="none", clock=clock, node_max_entries=8) as store:
        for name in ("orders", "mails"):
            ids = [f"{NOW_MS + number}-{number % 3}" for number in range(60)]
            store.xadd_many(name, [{"n": str(number)} for number in range(60)], ids=ids)
            store.xgroup_create(name, "mail", 0)  # its NACKs fill pages
            store.xgroup_create(name, "few", 0)  # its NACKs are in its row
            store.xreadgroup("mail", "ann", {name: ">"}, count=50)
            store.xreadgroup("mail", "bob", {name: ">"}, count=5)
            store.xreadgroup("few", "ann", {name: ">"}, count=5)
            store.xack(name, "mail", ids[3], ids[7])
            store.xnack(name, "mail", "SILENT", *ids[4:6])
            for number in range(6):
                store.xadd(name, {"a": "b"}, idmp=(f"p{number % 2}", f"m{number}"))
            store.xdel(name, ids[20], ids[21], ids[25])
        store.set_retention("mails", archive=True)
        store.xtrim("mails", maxlen=40, approximate=False)
        store.archive()
        store.xtrim("mails", maxlen=24, approximate=False)  # retired, and in no segment yet
        store.xadd("gone", {"a": "b"})
        store.set_retention("gone", archive=True)
        store.delete("gone")
        store.row_put("space", b"key", b"value")


def add_rare_rows(raw: RawStore) -> None:
    """Add the rows that a closed store seldom has; all of them may be there."""
    raw.put(tables.ERASURES, erasure_key(2, NOW_MS + 1, 0), encode_erasure(NOW_MS))
    for number, body in enumerate(
        (
            records.encode_garbage(records.STREAM_NODES, 77),
            records.encode_garbage(records.GROUP_ROWS, 77),
            records.encode_garbage(records.IDEMPOTENCE_ROWS, 77),
            records.encode_file_garbage("0000000000000077-gone/x.seg"),
        )
    ):
        raw.put(tables.GARBAGE, tables.pack_number(100 + number), body)


def contents(body: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield what may replace some bytes."""
    yield "empty", b""
    yield "one byte", b"\x01"
    yield "cut off", body[:-1]
    yield "half", body[: len(body) // 2]
    yield "7 bytes", body[:7]
    yield "one more", body + b"\0"
    yield "much more", body + rng.randbytes(3000)
    yield "zeros", bytes(len(body))
    yield "ones", b"\xff" * len(body)
    yield "random", rng.randbytes(len(body))
    yield "random, of any size", rng.randbytes(rng.randrange(200))
    for at in range(0, min(len(body), 96)):
        for part in (b"\xff" * 8, b"\x80" + bytes(7), bytes(8)):
            size = rng.choice((1, 2, 4, 6, 8))
            yield f"{part[:size].hex()} at {at}", _with(body, at, part[:size])
    for _ in range(10 if body else 0):
        at, size = rng.randrange(len(body)), rng.randrange(1, 9)
        yield f"random at {at}", _with(body, at, rng.randbytes(size))


def _with(body: bytes, at: int, part: bytes) -> bytes:
    return (body[:at] + part + body[at + len(part) :])[: len(body)]


def keys(db_key: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    for what, key in contents(db_key, rng):
        if 0 < len(key) <= _MOST_KEY:
            yield f"key {what}", key


def hostile(table: int, db_key: bytes, value: bytes) -> Iterator[Change]:
    """Yield changes of one row, all with right checksums; the same ones every time."""
    rng = random.Random(db_key)
    if value.startswith(MAGIC) and table in ENVELOPES:  # else the name of a stream that is gone
        envelope = decode_envelope(value, "test")
        for what, new in _envelopes(envelope, rng):
            yield Change(table, db_key, db_key, _encoded(new), what)
        for what, key in keys(db_key, rng):
            yield Change(table, db_key, key, value, what)
        return
    body = value[:-4]
    for what, other in contents(body, rng):
        yield Change(table, db_key, db_key, with_checksum(table, db_key, other), what)
    for what, key in keys(db_key, rng):
        yield Change(table, db_key, key, with_checksum(table, key, body), what)


def _encoded(one: Envelope) -> bytes:
    return encode_envelope(
        one.number,
        one.ms,
        one.seq,
        one.epoch,
        one.commit_number,
        one.record,
        one.listpack,
        one.trimmed,
    )


def _envelopes(old: Envelope, rng: random.Random) -> Iterator[tuple[str, Envelope]]:
    def changed(**values: Any) -> Envelope:
        return Envelope(**{**vars_of(old), **values})

    for name, most in (("number", 64), ("ms", 64), ("seq", 64), ("epoch", 32)):
        for value in (0, 1, (1 << most - 1) - 1, 1 << most - 1, (1 << most) - 1):
            yield f"{name} {value}", changed(**{name: value})
    yield "commit number", changed(commit_number=HUGE)
    for name in ("record", "listpack", "trimmed"):
        for what, data in contents(getattr(old, name), rng):
            yield f"{name} {what}", changed(**{name: data})


def vars_of(one: Envelope) -> dict[str, Any]:
    names = ("number", "ms", "seq", "epoch", "commit_number", "record", "listpack", "trimmed")
    return {name: getattr(one, name) for name in names}


def attempt(call: Callable[[], Any]) -> Any:
    """Call something that may raise our own errors, and no others."""
    try:
        return call()
    except StreamkeepError:
        return None


def use(path: Path) -> None:
    """Open a store and try all that users do, from reading to removing it."""
    for readonly in (True, False):
        clock = ManualClock(NOW_MS + 100_000)
        try:
            opened = Store(path, sync="none", create=False, readonly=readonly, clock=clock)
        except StreamkeepError:
            continue
        with opened as store:
            for name in ("orders", "mails", *(attempt(store.keys) or [])):
                for call in _looks(store, name) + ([] if readonly else _changes(store, name)):
                    attempt(call)
            for look in (store.archived_streams, store.verify_archive, store.archived_segments):
                attempt(partial(_exhaust, look))
            if not readonly:
                attempt(store.archive)
                attempt(store.maintain)
                attempt(store.sync)
                for name in ("orders", "mails"):
                    attempt(partial(store.delete, name))


def _exhaust(call: Callable[[], Iterable[Any]]) -> None:
    for _ in call():
        pass


def _looks(store: Any, name: Any) -> list[Callable[[], Any]]:
    return [
        lambda: store.xlen(name),
        lambda: store.xrange(name),
        lambda: store.xrevrange(name, count=5),
        lambda: store.xrange(name, history=True),
        lambda: store.xread({name: 0}, count=5),
        lambda: list(store.scan(name)),
        lambda: store.xinfo_stream(name, full=True, count=0),
        lambda: store.xinfo_stream(name),
        lambda: store.xinfo_groups(name),
        lambda: store.xinfo_consumers(name, "mail"),
        lambda: store.xpending(name, "mail"),
        lambda: store.xpending(name, "few"),
        lambda: store.xpending_range(name, "mail", "-", "+", 100),
        lambda: store.xpending_range(name, "mail", "-", "+", 100, "ann"),
        lambda: store.xpending_range(name, "few", "-", "+", 100),
        lambda: store.retention(name),
        lambda: store.dump(name),
    ]


def _changes(store: Any, name: Any) -> list[Callable[[], Any]]:
    first = f"{NOW_MS}-0"
    return [
        lambda: store.xadd(name, {"x": "y"}),
        lambda: store.xadd(name, {"x": "y"}, idmp=("p0", "m0")),
        lambda: store.xadd(name, {"x": "y"}, idmp=("p0", "new")),
        lambda: store.xadd(name, {"x": "y"}, idmp=("p9", "new")),
        lambda: store.xreadgroup("mail", "ann", {name: ">"}, count=2),
        lambda: store.xreadgroup("mail", "eve", {name: ">"}, count=2),
        lambda: store.xreadgroup("few", "ann", {name: ">"}, count=30),
        lambda: store.xreadgroup("mail", "ann", {name: 0}, count=10),
        lambda: store.xclaim(name, "mail", "bob", 0, [first, f"{NOW_MS + 1}-1"]),
        lambda: store.xautoclaim(name, "mail", "bob", 0, "0-0", 10),
        lambda: store.xautoclaim(name, "few", "bob", 0, "0-0", 10),
        lambda: store.xack(name, "mail", f"{NOW_MS + 1}-1", f"{NOW_MS + 2}-2"),
        lambda: store.xnack(name, "mail", "SILENT", f"{NOW_MS + 8}-2"),
        lambda: store.xackdel(name, "mail", f"{NOW_MS + 9}-0", ref_policy="ACKED"),
        lambda: store.xdel(name, f"{NOW_MS + 30}-0", f"{NOW_MS + 59}-2"),
        lambda: store.xtrim(name, maxlen=20, approximate=False),
        lambda: store.xgroup_createconsumer(name, "mail", "dan"),
        lambda: store.xgroup_delconsumer(name, "mail", "ann"),
        lambda: store.xgroup_setid(name, "mail", "$"),
        lambda: store.xgroup_create(name, "fresh", 0),
        lambda: store.xgroup_destroy(name, "few"),
        lambda: store.set_retention(name, maxlen=10, archive=True),
        lambda: store.xsetid(name, "99999999999999-0"),
        lambda: store.erase(name, f"{NOW_MS + 50}-2"),
        lambda: store.rename(name, b"other-" + bytes(str(name), "ascii", "replace")),
    ]


def hold(path: Path, target: Path) -> None:
    """Hold what becomes of a store against what must be; `path` is used up."""
    try:
        list(recovery.check(path))
        list(recovery.check(path, quick=True))
    except FormatVersionError:  # what a newer version wrote is left alone
        with pytest.raises(FormatVersionError):
            repair(path, target)
        use(path)
        return
    repaired = repair(path, target)
    findings = [str(one) for one in repaired.findings]
    assert findings == [], findings
    use(path)
