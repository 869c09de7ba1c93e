"""Each kind of damage to groups and pending entries: recipes for the corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from raw_store import Damage, RawStore, delete, each, move, put
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.tables.group import NEXT_GROUP
from streamkeep.engine.txn.txn import NEXT_GARBAGE, NEXT_STREAM
from streamkeep.format.core.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    GARBAGE,
    GROUPS,
    KEYS,
    META,
    PEL,
    PEL_ORDER,
    lease_key,
    name_key,
    number_key,
    owned_key,
    pack_number,
    page_key,
)
from streamkeep.format.rows.group_records import (
    Consumer,
    GroupRecord,
    decode_consumer,
    decode_group,
)
from streamkeep.format.rows.nacks import NACK, NACK_SIZE
from streamkeep.format.rows.records import GROUP_ROWS, encode_garbage, encode_number

NOW_MS: Final = 1000
ENTRIES: Final = 100
STREAM: Final = pack_number(1)
FEW, MANY, IDLE = pack_number(1), pack_number(2), pack_number(3)  # the groups
ANN, BOB = 1, 2  # the consumers of each
ROWS_OF_BOB: Final = name_key(FEW, b"bob"), number_key(FEW, BOB)


def build(path: Path) -> None:
    """A closed store: stream `s`, a group with few NACKs, one with many, one without any."""
    with Store(path, sync="none", clock=ManualClock(NOW_MS)) as store:
        store.xadd_many("s", [{"f": "v"}] * ENTRIES, ids=[f"1-{n}" for n in range(ENTRIES)])
        for group, first in (("few", 6), ("many", 50)):
            store.xgroup_create("s", group, 0)
            store.xreadgroup(group, "ann", {"s": ">"}, count=first)
            store.xreadgroup(group, "bob", {"s": ">"}, count=first)
            store.xnack("s", group, "FAIL", "1-0")
        store.xgroup_create("s", "idle", 0)


def change_group(raw: RawStore, name: bytes, change: Callable[[GroupRecord], None]) -> None:
    db_key = name_key(STREAM, name)
    record = decode_group(raw.body(GROUPS, db_key), "test")
    change(record)
    raw.put(GROUPS, db_key, record.encode())


def set_in_group(name: bytes, **values: int) -> Damage:
    def change(record: GroupRecord) -> None:
        for field, value in values.items():
            assert getattr(record, field) != value
            setattr(record, field, value)

    return lambda raw: change_group(raw, name, change)


def change_consumer(raw: RawStore, prefix: bytes, name: bytes, **values: int) -> None:
    db_key = name_key(prefix, name)
    consumer: Consumer = decode_consumer(raw.body(CONSUMERS, db_key), "test")
    for field, value in values.items():
        setattr(consumer, field, value)
    raw.put(CONSUMERS, db_key, consumer.encode())


def field_set(nacks: bytes, index: int, field: str, value: int) -> bytes:
    """Return a NACK page with one field of one NACK set."""
    size = next(one.size for one in NACK.fields if one.name == field)
    at = index * NACK_SIZE + NACK.offset(field)
    return nacks[:at] + value.to_bytes(size, "big") + nacks[at + size :]


def set_in_page(page: int, index: int, **values: int) -> Damage:
    """Set fields of one NACK of a page of the group with many."""

    def damage(raw: RawStore) -> None:
        db_key = raw.keys(PEL, MANY)[page]
        data = raw.body(PEL, db_key)
        for field, value in values.items():
            data = field_set(data, index, field, value)
        raw.put(PEL, db_key, data)

    return damage


def set_inline(index: int, **values: int) -> Damage:
    """Set fields of one NACK of the group with few."""

    def change(record: GroupRecord) -> None:
        for field, value in values.items():
            record.inline_nacks = field_set(record.inline_nacks, index, field, value)

    return lambda raw: change_group(raw, b"few", change)


def garbage(number: int, kind: int, of: int) -> Damage:
    return each(
        put(GARBAGE, pack_number(number), encode_garbage(kind, of)),
        put(META, NEXT_GARBAGE, encode_number(number + 1)),
    )


def group_of_no_stream(raw: RawStore) -> None:
    record = decode_group(raw.body(GROUPS, name_key(STREAM, b"idle")), "test")
    raw.delete(GROUPS, name_key(STREAM, b"idle"))
    raw.put(GROUPS, name_key(pack_number(77), b"idle"), record.encode())


def torn_page(raw: RawStore) -> None:
    db_key = raw.keys(PEL, MANY)[1]
    raw.put(PEL, db_key, raw.body(PEL, db_key)[:-1])


def key_inside_page_before(raw: RawStore) -> None:
    """The second page is disjoint from the first, but an ID between would be looked for in it."""
    first, second = raw.keys(PEL, MANY)[:2]
    early = page_key(2, 1, 5)
    raw.move(PEL, second, early)
    for number in (ANN, BOB):
        old = owned_key(2, number, 1, int.from_bytes(second[-8:], "big"))
        if old in raw.keys(CONSUMER_PEL):
            raw.move(CONSUMER_PEL, old, owned_key(2, number, 1, 5))
    for db_key in raw.keys(PEL_ORDER, MANY):
        if raw.body(PEL_ORDER, db_key) == second[8:]:
            raw.put(PEL_ORDER, db_key, early[8:])
    assert first < early < second


def order_of_other_page(raw: RawStore) -> None:
    raw.put(PEL_ORDER, raw.keys(PEL_ORDER, MANY)[1], raw.keys(PEL, MANY)[2][8:])


def order_after_earliest(raw: RawStore) -> None:
    db_key = raw.keys(PEL_ORDER, MANY)[1]
    later = MANY + (int.from_bytes(db_key[8:], "big") + 1).to_bytes(12, "big")
    raw.move(PEL_ORDER, db_key, later)


def index_of_no_owner(raw: RawStore) -> None:
    last = raw.keys(PEL, MANY)[-1]
    raw.put(CONSUMER_PEL, owned_key(2, ANN, 1, int.from_bytes(last[-8:], "big")), b"")


DAMAGES: Final[list[tuple[str, Damage]]] = [
    ("SK002", put(META, NEXT_GROUP, b"short")),
    ("SK010", move(KEYS, name_key(b"", b"s"), name_key(b"", b"t"))),
    ("SK014", put(META, NEXT_GROUP, encode_number(1))),
    ("SK014", put(META, NEXT_STREAM, encode_number(1))),
    ("SK014", put(GARBAGE, pack_number(8), encode_garbage(GROUP_ROWS, 999))),
    ("SK001", garbage(8, 99, 999)),
    ("SK201 SK209 SK224", delete(CONSUMERS, *ROWS_OF_BOB)),
    ("SK201 SK224", each(delete(CONSUMERS, *ROWS_OF_BOB), set_in_group(b"few", consumers=1))),
    ("SK201 SK210", set_inline(6, consumer=9)),
    ("SK202", move(GROUPS, name_key(STREAM, b"idle"), name_key(STREAM, b"x"))),
    ("SK203", group_of_no_stream),
    ("SK204 SK210 SK224", set_in_group(b"idle", number=1, consumers=2, next_consumer=3)),
    ("SK205", garbage(1, GROUP_ROWS, 2)),
    ("SK206", delete(GROUPS, name_key(STREAM, b"many"))),
    ("SK207", set_in_group(b"many", pending=99)),
    ("SK207", set_in_group(b"idle", pending=1)),
    ("SK208", set_in_group(b"many", nacked=0)),
    ("SK209", set_in_group(b"many", consumers=1)),
    ("SK210", lambda raw: change_consumer(raw, MANY, b"ann", pending=1)),
    ("SK211", torn_page),
    ("SK211", lambda raw: raw.put(PEL, raw.keys(PEL, MANY)[1], b"")),
    ("SK211", lambda raw: raw.move(PEL, raw.keys(PEL, MANY)[0], page_key(2, 1, 1))),
    ("SK211", set_in_page(1, 3, seq=0)),
    ("SK211", set_in_page(1, 3, consumer=0)),
    ("SK211", set_in_page(1, 3, delivery_count=1 << 63)),
    ("SK211", set_inline(1, seq=0)),
    ("SK212", key_inside_page_before),
    ("SK213", lambda raw: raw.put(PEL, page_key(1, 9, 0), raw.body(PEL, raw.keys(PEL, MANY)[0]))),
    ("SK214", set_in_page(0, 5, delivery_time=NOW_MS + 1)),
    ("SK214", set_in_page(0, 0, delivery_time=1)),
    ("SK214", set_inline(0, delivery_time=1)),
    ("SK215", set_in_group(b"many", next_order=50)),
    ("SK215", set_in_group(b"few", next_order=12)),
    ("SK216", set_in_group(b"idle", entries_read=-2)),
    ("SK221 SK222", move(CONSUMERS, name_key(FEW, b"bob"), name_key(FEW, b"eve"))),
    ("SK222", delete(CONSUMERS, number_key(FEW, BOB))),
    ("SK222", put(CONSUMERS, number_key(FEW, 3), b"eve")),
    ("SK222", put(CONSUMERS, number_key(FEW, BOB), b"ann")),
    ("SK223", set_in_group(b"few", next_consumer=2)),
    ("SK224", put(CONSUMERS, lease_key(FEW, 9, 1), encode_number(5))),
    ("SK224", put(CONSUMERS, lease_key(FEW, ANN, 1 << 40), encode_number(5))),
    ("SK231", lambda raw: raw.delete(PEL_ORDER, raw.keys(PEL_ORDER, MANY)[1])),
    ("SK232", order_of_other_page),
    ("SK232", put(PEL_ORDER, FEW + bytes(12), bytes(16))),
    ("SK231 SK232", order_after_earliest),
    ("SK233", lambda raw: raw.delete(CONSUMER_PEL, raw.keys(CONSUMER_PEL, MANY)[1])),
    ("SK234", index_of_no_owner),
    ("SK234", put(CONSUMER_PEL, owned_key(2, ANN, 9, 9), b"")),
    (  # damage to one group hides nothing of another
        "SK207 SK211 SK216",
        each(torn_page, set_in_group(b"few", pending=99), set_in_group(b"idle", entries_read=-2)),
    ),
]
