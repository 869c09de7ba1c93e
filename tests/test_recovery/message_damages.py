"""Each kind of damage to what a stream remembers of its producers: recipes for the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from raw_store import Damage, RawStore, delete, move, put
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.txn.stream import decode_stream
from streamkeep.format.core import keys as tables
from streamkeep.format.rows import producers, records
from streamkeep.format.rows.extension import IDEMPOTENCE, idempotence_of, with_section
from test_recovery.group_damages import garbage

STREAM, OTHER = tables.pack_number(1), tables.pack_number(2)
MESSAGES = tables.pack_number(1)  # the number under which the first stream keeps its rows
PING, PONG = 1, 2  # its producers
NAME_OF_PONG, NUMBER_OF_PONG = tables.name_key(MESSAGES, b"pong"), tables.number_key(MESSAGES, PONG)
FIRST = producers.message_key(1, PONG, b"pong-0")  # the first of its messages


def build(path: Path) -> None:
    """A closed store: streams `s` and `t`; two producers of `s` with six messages each."""
    with Store(path, sync="none", clock=ManualClock(1000)) as store:
        for index in range(6):
            for producer in ("ping", "pong"):
                store.xadd("s", {"f": "v"}, idmp=(producer, f"{producer}-{index}"))
        store.xadd("t", {"f": "v"}, idmp=("ping", "only"))


def set_in_stream(db_key: bytes, **values: int) -> Damage:
    def damage(raw: RawStore) -> None:
        number = int.from_bytes(db_key, "big")
        stream = decode_stream(number, b"", raw.value(tables.STREAMS, db_key))
        state = idempotence_of(stream.record.extension, "test")
        for field, value in values.items():
            assert getattr(state, field) != value
            setattr(state, field, value)
        extension = with_section(stream.record.extension, IDEMPOTENCE, state.encode())
        stream.record.extension = extension
        raw.put_value(tables.STREAMS, db_key, stream.encode(stream.record.encode(), 1, 1))

    return damage


def set_in_producer(**values: int) -> Damage:
    def damage(raw: RawStore) -> None:
        producer, name = producers.decode_producer(raw.body(tables.PRODUCERS, NAME_OF_PONG), "test")
        raw.put(tables.PRODUCERS, NAME_OF_PONG, producer._replace(**values).encode(name))

    return damage


def set_in_message(**values: Any) -> Damage:
    def damage(raw: RawStore) -> None:
        message = producers.decode_message(raw.body(tables.IDEMPOTENCY, FIRST), "test")
        raw.put(tables.IDEMPOTENCY, FIRST, message._replace(**values).encode())

    return damage


def producer_without_messages(raw: RawStore) -> None:
    for table in (tables.IDEMPOTENCY, tables.IDEMPOTENCY_ORDER):
        for db_key in raw.keys(table, producers.producer_prefix(1, PONG)):
            raw.delete(table, db_key)


def two_streams_with_one_number(raw: RawStore) -> None:
    for table in (tables.PRODUCERS, tables.IDEMPOTENCY, tables.IDEMPOTENCY_ORDER):
        for db_key in raw.keys(table, OTHER):
            raw.delete(table, db_key)
    set_in_stream(OTHER, number=1, producers=2, tracked=12, next_producer=3)(raw)


def section_cut_off(raw: RawStore) -> None:
    stream = decode_stream(1, b"s", raw.value(tables.STREAMS, STREAM))
    stream.record.extension = stream.record.extension[:-1]
    raw.put_value(tables.STREAMS, STREAM, stream.encode(stream.record.encode(), 1, 1))


DAMAGES: Final[list[tuple[str, Damage]]] = [
    ("SK001", section_cut_off),
    ("SK002", put(tables.META, NEXT_IDEMPOTENCE, b"short")),
    ("SK014", put(tables.META, NEXT_IDEMPOTENCE, records.encode_number(2))),
    ("SK015", garbage(1, records.STREAM_NODES, 1)),
    ("SK251 SK252", move(tables.PRODUCERS, NAME_OF_PONG, tables.name_key(MESSAGES, b"x"))),
    ("SK252 SK261", delete(tables.PRODUCERS, NUMBER_OF_PONG)),
    ("SK252", put(tables.PRODUCERS, tables.number_key(MESSAGES, 9), b"x")),
    ("SK252", put(tables.PRODUCERS, NUMBER_OF_PONG, b"ping")),
    ("SK253", set_in_stream(STREAM, next_producer=2)),
    ("SK254", set_in_stream(STREAM, producers=3)),
    ("SK255", set_in_stream(STREAM, tracked=11)),
    ("SK256", set_in_producer(tracked=5)),
    ("SK255 SK256 SK257", producer_without_messages),
    ("SK257", set_in_stream(STREAM, maxsize=5)),
    ("SK258 SK259", move(tables.IDEMPOTENCY, FIRST, producers.message_key(1, PONG, b"x"))),
    ("SK255 SK256 SK259", delete(tables.IDEMPOTENCY_ORDER, producers.order_key(1, PONG, 0))),
    ("SK259", delete(tables.IDEMPOTENCY, FIRST)),
    ("SK259", set_in_message(seq=77)),
    ("SK259", set_in_message(order=3)),
    ("SK260", set_in_producer(next_order=5)),
    ("SK254 SK261", delete(tables.PRODUCERS, NAME_OF_PONG, NUMBER_OF_PONG)),
    ("SK262", two_streams_with_one_number),
    ("SK263", garbage(1, records.IDEMPOTENCE_ROWS, 1)),
    ("SK264", set_in_stream(OTHER, number=0, producers=0, tracked=0)),
]
