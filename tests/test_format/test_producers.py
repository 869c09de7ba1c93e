"""Rows of producers and of their messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_MEMBER, LAST_NUMBER
from streamkeep.format.rows import producers
from streamkeep.format.rows.producers import Message, Producer

u64 = st.integers(0, (1 << 64) - 1)
names = st.binary(max_size=20)


@given(st.integers(0, LAST_MEMBER), st.integers(0, LAST_NUMBER), st.integers(0, LAST_NUMBER), names)
def test_producers_come_back(number: int, tracked: int, next_order: int, name: bytes) -> None:
    producer = Producer(number, tracked, next_order)
    assert producers.decode_producer(producer.encode(name), "here") == (producer, name)


@given(u64, u64, st.integers(0, LAST_NUMBER), names)
def test_messages_come_back_from_both_tables(ms: int, seq: int, order: int, iid: bytes) -> None:
    message = Message(ms, seq, order, iid)
    assert producers.decode_message(message.encode(), "here") == message
    key = producers.order_key(5, 6, order)
    assert producers.unpack_order_key(key) == (5, 6, order)
    assert producers.decode_ordered(key, message.encode(), "here") == message
    with pytest.raises(CorruptionError, match=f"message with order {order}, expected"):
        producers.decode_ordered(producers.order_key(5, 6, order ^ 1), message.encode(), "here")


def test_a_count_below_zero_is_not_written() -> None:
    with pytest.raises(CorruptionError, match="-1 tracked messages; run `streamkeep repair`"):
        Producer(1, -1, 0).encode(b"p")


@given(st.binary(max_size=19))
def test_rows_that_are_too_short_are_reported(body: bytes) -> None:
    with pytest.raises(CorruptionError, match=f"message row of {len(body)} bytes"):
        producers.decode_message(body, "here")
    with pytest.raises(CorruptionError, match=r"LMDB key: \d+ bytes, expected 20"):
        producers.unpack_order_key(body)


@given(st.lists(st.tuples(names, names), max_size=5))
def test_the_id_made_of_a_content_does_not_depend_on_the_order_of_its_pairs(
    pairs: list[tuple[bytes, bytes]],
) -> None:
    def flat(some: list[tuple[bytes, bytes]]) -> list[bytes]:
        return [part for pair in some for part in pair]

    assert producers.content_iid(flat(pairs)) == producers.content_iid(flat(pairs[::-1]))


def test_the_id_made_of_a_content_depends_on_where_a_field_ends() -> None:
    one, other = producers.content_iid([b"ab", b"c"]), producers.content_iid([b"a", b"bc"])
    assert one != other
    assert len(one) == len(other) == 16
