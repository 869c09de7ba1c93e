"""Rows with right checksums and wrong content: nothing but our own errors, and repair helps."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from hostile import HUGE, NOW_MS, Change, add_rare_rows, build, hold, hostile
from inside import run_write
from raw_store import Damage, RawStore, codes, put, raw_store, rows
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands import keys as of_keys
from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.crash_recovery.stored_rows import META_EPOCH, META_UUID
from streamkeep.engine.journal.reader import JOURNAL_FOLDER, NOWHERE
from streamkeep.engine.journal.slots import Slot, slot_name
from streamkeep.engine.store.meta import META_CREATED
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.tables.manifest import NEXT_SEQUENCE
from streamkeep.engine.txn.txn import NEXT_GARBAGE
from streamkeep.format.core import keys
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.rows.meta_rows import META_FOLLOWING, META_STANDBY, batch_key
from streamkeep.format.rows.nacks import NACK, NACK_SIZE
from streamkeep.format.rows.producers import decode_message, decode_producer
from streamkeep.format.rows.records import encode_key_row, encode_number
from streamkeep.format.segment.manifest import encode_erasure, erasure_key, segment_key
from streamkeep.format.segment.remote import META_REMOTE
from streamkeep.recovery.salvage.repair import repair
from tiers import daily_or_all, slow_but

CHANGES: Final = daily_or_all(1, 3)  # of each row
PARTS: Final = 8  # of all changes of a table, which are up to five thousand


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "store"
    build(path)
    with raw_store(path) as raw:
        add_rare_rows(raw)
    return path


@pytest.fixture
def path(specimen: Path, tmp_path: Path) -> Path:
    shutil.copytree(specimen, tmp_path / "store")
    return tmp_path / "store"


def changes(specimen: Path, table: int) -> list[list[Change]]:
    with raw_store(specimen) as raw:
        return [list(hostile(table, key, raw.value(table, key))) for key in raw.keys(table)]


def hold_changed(specimen: Path, work: Path, change: Change) -> None:
    for name in ("changed", "repaired"):
        shutil.rmtree(work / name, ignore_errors=True)
    shutil.copytree(specimen, work / "changed")
    with raw_store(work / "changed") as raw:
        change.apply(raw)
    try:
        hold(work / "changed", work / "repaired")
    except BaseException as error:
        error.add_note(str(change))
        raise


@pytest.mark.parametrize(
    "table",
    slow_but(keys.TABLES, *list(keys.TABLES)[::2]),
    ids=[table.name for table in keys.TABLES.values()],
)
def test_rows_of_each_kind(specimen: Path, tmp_path: Path, table: int) -> None:
    rows = changes(specimen, table)
    kinds = {len(row[0].db_key): row for row in [*rows, *rows[:2]]}  # a row of each shape of key
    for place, row in enumerate(kinds.values()):
        for change in row[place :: max(1, len(row) // CHANGES)]:
            hold_changed(specimen, tmp_path, change)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("table", keys.TABLES, ids=[table.name for table in keys.TABLES.values()])
def test_every_change_of_every_row(specimen: Path, tmp_path: Path, table: int, part: int) -> None:
    for change in list(chain(*changes(specimen, table)))[part::PARTS]:
        hold_changed(specimen, tmp_path, change)


SEALED: Final = (
    *(keys.GROUPS, keys.CONSUMERS, keys.PEL, keys.CONSUMER_PEL, keys.PEL_ORDER),
    *(keys.PRODUCERS, keys.IDEMPOTENCY, keys.IDEMPOTENCY_ORDER),
)


@pytest.mark.parametrize("table", SEALED, ids=[keys.TABLES[table].name for table in SEALED])
def test_a_flipped_bit_is_reported_once_and_nothing_because_of_it(path: Path, table: int) -> None:
    with raw_store(path) as raw:
        rows = [(one, raw.value(table, one)) for one in raw.keys(table)]
    before = {*map(str, recovery.check(path))}  # the rare rows of the specimen
    for db_key, value in rows[:: daily_or_all(max(1, len(rows) // 3), 1)]:
        with raw_store(path) as raw:
            raw.flip_bit(table, db_key)
        (found,) = (one for one in recovery.check(path) if str(one) not in before)
        assert found.code == "SK001"
        assert db_key.hex() in found.where
        with raw_store(path) as raw:
            raw.put_value(table, db_key, value)
    for db_key in (b"x", GROUP, GROUP + b"\2abc", b"\xff" * 50):  # of no use in any table
        with raw_store(path) as raw:
            raw.put(table, db_key, b"")
        new = {one.code for one in recovery.check(path) if str(one) not in before}
        assert "SK001" in new
        with raw_store(path) as raw:
            raw.delete(table, db_key)


def test_garbage_that_is_half_removed_is_nothing_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups, producers and nodes, as a crash leaves it; a few rows go at a time."""
    monkeypatch.setattr(of_keys, "GARBAGE_STEP", 5)
    monkeypatch.setattr(Store, "_collect_garbage", lambda store: None)
    with raw_store(path) as raw:  # the rare rows of the specimen that nothing belongs to
        for db_key in [*raw.keys(keys.GARBAGE), *raw.keys(keys.ERASURES)]:
            raw.delete(keys.GARBAGE if len(db_key) == 8 else keys.ERASURES, db_key)
    with Store(path, sync="none", clock=ManualClock(NOW_MS)) as store:
        store.xgroup_destroy("orders", "mail")
        store.xcfgset("orders", idmp_maxsize=7)
        store.delete("mails")
        steps = 0
        while run_write(store, of_keys.collect_garbage):
            assert codes(path) == []
            steps += 1
    assert steps > 5


# --- those that once went wrong -----------------------------------------------------------------

ORDERS: Final = keys.name_key(b"", b"orders")
GROUP: Final = keys.pack_number(1)


def hidden_erasure(raw: RawStore) -> None:
    """The row of a segment hides what was erased."""
    (db_key,) = raw.keys(keys.SEGMENTS)
    number, ms, seq = keys.unpack_node_key(db_key)
    raw.put(keys.ERASURES, erasure_key(number, ms, seq), encode_erasure(1))
    raw.move(keys.SEGMENTS, db_key, segment_key(number, ms + 5, seq))


def same_first_nack(raw: RawStore) -> None:
    """Pages begin the order with the same NACK: one row of `pel_order` names one of them only."""
    at, end = NACK.offset("order_time"), NACK.offset("delivery_time")
    pages = {db_key: raw.body(keys.PEL, db_key) for db_key in raw.keys(keys.PEL, GROUP)}
    (order,) = {b"\x80" + page[at + 1 : at + 6] + bytes(end - at - 6) for page in pages.values()}
    for db_key in raw.keys(keys.PEL_ORDER, GROUP):
        raw.delete(keys.PEL_ORDER, db_key)
    for db_key, page in pages.items():
        raw.put(keys.PEL, db_key, page[:at] + order + page[end:])
        raw.put(keys.PEL_ORDER, GROUP + order, db_key[8:])


def node_in_place_of_a_name(raw: RawStore) -> None:
    """A retired node says that it is where names are."""
    db_key = raw.keys(keys.RETIRED)[0]
    old = decode_envelope(raw.value(keys.RETIRED, db_key), "test")
    value = encode_envelope(old.number, 0, 0, 1, 1, b"", old.listpack, b"")
    raw.put_value(keys.RETIRED, db_key, value)


def in_nack(field: str, value: bytes) -> Damage:
    """Change the third NACK of a page."""

    def damage(raw: RawStore) -> None:
        db_key = raw.keys(keys.PEL, GROUP)[0]
        body = raw.body(keys.PEL, db_key)
        at = 2 * NACK_SIZE + NACK.offset(field)
        raw.put(keys.PEL, db_key, body[:at] + value + body[at + len(value) :])

    return damage


ROWS: Final[dict[str, tuple[str, Damage]]] = {
    "a key row cut off": ("SK001", put(keys.KEYS, ORDERS, b"short")),
    "the highest number of a stream": (
        "SK001",
        put(keys.KEYS, ORDERS, encode_key_row(HUGE, b"orders")),
    ),
    "a stream with the number 0": (
        "SK012",
        put(keys.KEYS, keys.name_key(b"", b"z"), encode_key_row(0, b"z")),
    ),
    "a short store UUID": ("SK002", put(keys.META, META_UUID, b"short")),
    "an epoch that fits no envelope": ("SK002", put(keys.META, META_EPOCH, encode_number(1 << 32))),
    "a short time of creation": ("SK002", put(keys.META, META_CREATED, b"1234567")),
    "a short manifest sequence": ("SK002", put(keys.META, NEXT_SEQUENCE, b"1234567")),
    "a short number of garbage": ("SK002", put(keys.META, NEXT_GARBAGE, b"1234567")),
    "no next number of garbage": ("SK002", put(keys.META, NEXT_GARBAGE, encode_number(0))),
    "the highest number of messages": (
        "SK002",
        put(keys.META, NEXT_IDEMPOTENCE, encode_number(HUGE)),
    ),
    "a standby cut off": ("SK002", put(keys.META, META_STANDBY, b"short")),
    "a standby in too many lists": ("SK002", put(keys.META, META_STANDBY, b"[" * 100_000)),
    "a server in too many lists": ("SK002", put(keys.META, META_FOLLOWING, b"[" * 100_000)),
    "an archive in too many lists": ("SK002", put(keys.META, META_REMOTE, b"[" * 100_000)),
    "a batch cut off": ("SK002", put(keys.META, batch_key(b"app"), b"short")),
    "the highest number of a consumer": (
        "SK001",
        put(keys.CONSUMERS, keys.number_key(GROUP, (1 << 32) - 1), b"bob"),
    ),
    "a key of another size": ("SK001", put(keys.ERASURES, b"short", keys.pack_number(1))),
    "a segment whose row hides what was erased": ("SK307", hidden_erasure),
    "pages that begin with the same NACK": ("SK231", same_first_nack),
    "a retired node in the place of a name": ("SK306", node_in_place_of_a_name),
    "a delivery time that no group writes": ("SK211", in_nack("delivery_time", b"\xff" * 6)),
    "an update counter that no group writes": ("SK211", in_nack("order", b"\xff" * 6)),
    "a consumer that no group has": ("SK211", in_nack("consumer", b"\xff" * 4)),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_once_stopped_a_repair(path: Path, tmp_path: Path, name: str) -> None:
    code, damage = ROWS[name]
    rows(damage)(path)
    assert code in codes(path)
    hold(path, tmp_path / "repaired")
    if name.endswith(("no group writes", "no group has")):
        with Store(tmp_path / "repaired", readonly=True) as store:
            assert store.xpending("orders", "mail")["pending"] == 53  # all of them
    again = repair(tmp_path / "repaired", tmp_path / "again")
    assert (again.findings, again.report.lines()) == ([], [])


@pytest.mark.parametrize("name", ["target", "begun", "position", "proved_ms", "missing"])
def test_a_slot_that_no_shipper_writes_stops_no_checkpoint(path: Path, name: str) -> None:
    members = Slot("x", "", "", 1, NOWHERE, 0, 0, 1)._asdict() | {name: [5]}
    (path / JOURNAL_FOLDER / slot_name("x")).write_text(json.dumps(members))
    with Store(path) as store:
        store.xadd("orders", {"x": "y"})
        assert list(store._environment.slots()) == []


def test_a_message_under_another_order_is_not_forgotten_for_ever(path: Path) -> None:
    with raw_store(path) as raw:
        for db_key in raw.keys(keys.PRODUCERS, GROUP):
            if keys.is_name_key(db_key):
                producer, name = decode_producer(raw.body(keys.PRODUCERS, db_key), "test")
                raw.put(keys.PRODUCERS, db_key, producer._replace(tracked=1 << 62).encode(name))
        for db_key in raw.keys(keys.IDEMPOTENCY_ORDER, GROUP):
            message = decode_message(raw.body(keys.IDEMPOTENCY_ORDER, db_key), "test")
            raw.put(keys.IDEMPOTENCY_ORDER, db_key, message._replace(order=128).encode())
    with (
        Store(path, clock=ManualClock(NOW_MS + 100_000)) as store,
        pytest.raises(CorruptionError, match="with order 128"),
    ):
        store.xadd("orders", {"x": "y"}, idmp=("p0", "new"))


@pytest.mark.parametrize("name", ["a short store UUID", "an epoch that fits no envelope"])
def test_open_says_what_is_wrong_with_meta(path: Path, name: str) -> None:
    rows(ROWS[name][1])(path)
    for readonly in (True, False):
        with pytest.raises(CorruptionError, match="meta: "):
            Store(path, readonly=readonly)
