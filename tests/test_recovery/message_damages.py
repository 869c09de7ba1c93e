"""Each kind of damage to what a stream remembers of its producers: recipes for the corpus."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from raw_store import RawStore
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.system.clock import ManualClock
from streamkeep.engine.txn.stream import decode_stream
from streamkeep.engine.txn.txn import NEXT_GARBAGE
from streamkeep.format.core import keys as tables
from streamkeep.format.rows import producers, records
from streamkeep.format.rows.extension import IDEMPOTENCE, idempotence_of, with_section

STREAM, OTHER = tables.pack_number(1), tables.pack_number(2)
MESSAGES = tables.pack_number(1)  # the number under which the first stream keeps its rows
PING, PONG = 1, 2  # its producers

Damage = Callable[[RawStore], None]


def build(path: Path) -> None:
    """A closed store: streams `s` and `t`; two producers of `s` with six messages each."""
    with Store(path, sync="none", clock=ManualClock(1000)) as store:
        for index in range(6):
            for producer in ("ping", "pong"):
                store.xadd("s", {"f": "v"}, idmp=(producer, f"{producer}-{index}"))
        store.xadd("t", {"f": "v"}, idmp=("ping", "only"))


# --- how rows are changed -----------------------------------------------------------------------


def change_stream(raw: RawStore, db_key: bytes, **values: int) -> None:
    """Set fields of a stream's idempotence section."""
    number = int.from_bytes(db_key, "big")
    stream = decode_stream(number, b"", raw.value(tables.STREAMS, db_key))
    state = idempotence_of(stream.record.extension, "test")
    for field, value in values.items():
        assert getattr(state, field) != value
        setattr(state, field, value)
    extension = with_section(stream.record.extension, IDEMPOTENCE, state.encode())
    stream.record.extension = extension
    raw.put_value(tables.STREAMS, db_key, stream.encode(stream.record.encode(), 1, 1))


def set_in_stream(**values: int) -> Damage:
    return lambda raw: change_stream(raw, STREAM, **values)


def set_in_producer(**values: int) -> Damage:
    """Set fields of the producer `pong` of the first stream."""

    def damage(raw: RawStore) -> None:
        db_key = tables.name_key(MESSAGES, b"pong")
        producer, name = producers.decode_producer(raw.body(tables.PRODUCERS, db_key), "test")
        raw.put(tables.PRODUCERS, db_key, producer._replace(**values).encode(name))

    return damage


def first_message(raw: RawStore) -> tuple[bytes, producers.Message]:
    """Return the key of the first message of `pong`, and the message."""
    db_key = raw.keys(tables.IDEMPOTENCY, producers.producer_prefix(1, PONG))[0]
    return db_key, producers.decode_message(raw.body(tables.IDEMPOTENCY, db_key), "test")


# --- each damage --------------------------------------------------------------------------------


def producer_under_other_name(raw: RawStore) -> None:
    raw.move(tables.PRODUCERS, tables.name_key(MESSAGES, b"pong"), tables.name_key(MESSAGES, b"x"))


def producer_without_number_row(raw: RawStore) -> None:
    """Its messages are of a producer whom nothing names, then."""
    raw.delete(tables.PRODUCERS, tables.number_key(MESSAGES, PONG))


def number_of_nobody(raw: RawStore) -> None:
    raw.put(tables.PRODUCERS, tables.number_key(MESSAGES, 9), b"x")


def number_of_other_producer(raw: RawStore) -> None:
    raw.put(tables.PRODUCERS, tables.number_key(MESSAGES, PONG), b"ping")


def producer_without_rows(raw: RawStore) -> None:
    raw.delete(tables.PRODUCERS, tables.name_key(MESSAGES, b"pong"))
    raw.delete(tables.PRODUCERS, tables.number_key(MESSAGES, PONG))


def producer_without_messages(raw: RawStore) -> None:
    for table in (tables.IDEMPOTENCY, tables.IDEMPOTENCY_ORDER):
        for db_key in raw.keys(table, producers.producer_prefix(1, PONG)):
            raw.delete(table, db_key)


def message_under_other_name(raw: RawStore) -> None:
    db_key, _ = first_message(raw)
    raw.move(tables.IDEMPOTENCY, db_key, producers.message_key(1, PONG, b"x"))


def message_without_order(raw: RawStore) -> None:
    _, message = first_message(raw)
    raw.delete(tables.IDEMPOTENCY_ORDER, producers.order_key(1, PONG, message.order))


def order_without_message(raw: RawStore) -> None:
    raw.delete(tables.IDEMPOTENCY, first_message(raw)[0])


def message_of_other_entry(raw: RawStore) -> None:
    db_key, message = first_message(raw)
    raw.put(tables.IDEMPOTENCY, db_key, message._replace(seq=77).encode())


def message_of_other_order(raw: RawStore) -> None:
    db_key, message = first_message(raw)
    raw.put(tables.IDEMPOTENCY, db_key, message._replace(order=3).encode())


def two_streams_with_one_number(raw: RawStore) -> None:
    for table in (tables.PRODUCERS, tables.IDEMPOTENCY, tables.IDEMPOTENCY_ORDER):
        for db_key in raw.keys(table, OTHER):
            raw.delete(table, db_key)
    change_stream(raw, OTHER, number=1, producers=2, tracked=12, next_producer=3)


def messages_are_garbage(raw: RawStore) -> None:
    raw.put(
        tables.GARBAGE, tables.pack_number(1), records.encode_garbage(records.IDEMPOTENCE_ROWS, 1)
    )
    raw.put(tables.META, NEXT_GARBAGE, records.encode_number(2))


def stream_forgot_its_messages(raw: RawStore) -> None:
    change_stream(raw, OTHER, number=0, producers=0, tracked=0)


def nodes_are_garbage(raw: RawStore) -> None:
    raw.put(tables.GARBAGE, tables.pack_number(1), records.encode_garbage(records.STREAM_NODES, 1))
    raw.put(tables.META, NEXT_GARBAGE, records.encode_number(2))


def section_cut_off(raw: RawStore) -> None:
    stream = decode_stream(1, b"s", raw.value(tables.STREAMS, STREAM))
    stream.record.extension = stream.record.extension[:-1]
    raw.put_value(tables.STREAMS, STREAM, stream.encode(stream.record.encode(), 1, 1))


DAMAGES: Final[list[tuple[str, Damage]]] = [
    ("SK001", section_cut_off),
    ("SK002", lambda raw: raw.put(tables.META, NEXT_IDEMPOTENCE, b"short")),
    ("SK014", lambda raw: raw.put(tables.META, NEXT_IDEMPOTENCE, records.encode_number(2))),
    ("SK015", nodes_are_garbage),
    ("SK251 SK252", producer_under_other_name),
    ("SK252 SK261", producer_without_number_row),
    ("SK252", number_of_nobody),
    ("SK252", number_of_other_producer),
    ("SK253", set_in_stream(next_producer=2)),
    ("SK254", set_in_stream(producers=3)),
    ("SK255", set_in_stream(tracked=11)),
    ("SK256", set_in_producer(tracked=5)),
    ("SK255 SK256 SK257", producer_without_messages),
    ("SK257", set_in_stream(maxsize=5)),
    ("SK258 SK259", message_under_other_name),
    ("SK255 SK256 SK259", message_without_order),
    ("SK259", order_without_message),
    ("SK259", message_of_other_entry),
    ("SK259", message_of_other_order),
    ("SK260", set_in_producer(next_order=5)),
    ("SK254 SK261", producer_without_rows),
    ("SK262", two_streams_with_one_number),
    ("SK263", messages_are_garbage),
    ("SK264", stream_forgot_its_messages),
]
