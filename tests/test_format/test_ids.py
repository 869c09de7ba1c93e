"""IDs, entries and errors: text, packed bytes, bit patterns, order, and pickling."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamkeep.engine.commands.arguments import range_end, range_start
from streamkeep.format.core import errors, id_codec
from streamkeep.format.core.entry import MAX_ID, MIN_ID, Entry, RepeatedFields, StreamId, fields_of
from streamkeep.format.core.errors import InvalidIdError

TOP = (1 << 64) - 1


def test_a_missing_sequence_number_is_filled_in() -> None:
    assert id_codec.parse_id(b"5", TOP) == (5, TOP)
    assert range_start("5") == (5, 0)
    assert range_end("5") == (5, TOP)


u64 = st.integers(0, TOP) | st.sampled_from([0, 1, (1 << 62), (1 << 63) - 1, 1 << 63, TOP])


@given(u64, u64)
def test_ids_survive_text_and_bytes(ms: int, seq: int) -> None:
    one = StreamId(ms, seq)
    assert StreamId.parse(str(one)) == one
    assert StreamId.parse(bytes(one)) == one
    assert id_codec.unpack_id(id_codec.pack_id(ms, seq)) == one
    assert pickle.loads(pickle.dumps(one)) == one


@given(u64, u64, u64, u64)
def test_packed_ids_sort_as_ids_do(ms: int, seq: int, other_ms: int, other_seq: int) -> None:
    lower = (ms, seq) < (other_ms, other_seq)
    packed = id_codec.pack_id(ms, seq) < id_codec.pack_id(other_ms, other_seq)
    bits = id_codec.bits
    patterns = id_codec.below(bits(ms), bits(seq), bits(other_ms), bits(other_seq))
    assert lower == packed == patterns


@given(u64, u64)
@example(0, TOP)
@example(TOP, 0)
@example((1 << 63) - 1, 1 << 63)
@example(1 << 63, 0)
def test_bit_patterns_add_and_subtract_modulo_2_64(value: int, base: int) -> None:
    difference = id_codec.subtract(id_codec.bits(value), id_codec.bits(base))
    assert -(1 << 63) <= difference < 1 << 63
    assert (difference - (value - base)) % (1 << 64) == 0
    assert id_codec.unsigned(id_codec.add(id_codec.bits(base), difference)) == value


def test_ids_print_parse_and_order_as_redis_has_them() -> None:
    one = StreamId.parse("5-3")
    assert (one, str(one), bytes(one)) == ((5, 3), "5-3", b"5-3")
    assert StreamId.parse(b"5", default_seq=9) == (5, 9)
    assert one.previous() < one < one.next()
    assert (StreamId(5, TOP).next(), StreamId(6, 0).previous()) == ((6, 0), (5, TOP))
    assert MAX_ID.next() == MIN_ID
    with pytest.raises(InvalidIdError):
        StreamId.parse("5-x")


def test_fields_are_a_plain_dict_unless_one_is_repeated() -> None:
    assert type(fields_of([b"a", b"1", b"b", b"2"])) is dict
    repeated = fields_of([b"a", b"1", b"b", b"2", b"a", b"3"])
    assert isinstance(repeated, RepeatedFields)
    assert repeated == {b"a": b"3", b"b": b"2"}
    assert repeated.pairs == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]


def test_an_entry_has_all_pairs_and_keeps_them_when_it_is_pickled() -> None:
    entry = Entry(b"1-0", fields_of([b"a", b"1", b"a", b"2"]))
    again = pickle.loads(pickle.dumps(entry))
    assert again == entry == (b"1-0", {b"a": b"2"})
    assert again.pairs == entry.pairs == [(b"a", b"1"), (b"a", b"2")]
    assert Entry(b"1-0", {b"a": b"1"}).pairs == [(b"a", b"1")]


# --- errors: pickling, and the line of a Redis server ---------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.MissingSegmentError("segment", "gone", offset=3), "segment: gone at byte 3"),
        (errors.LoadError("no", source="file", line=3, done=2, hint="h"), "no"),
        (errors.ChangesGoneError("gone", 3, 5), "gone"),
    ],
)
def test_errors_survive_pickling(error: errors.StreamkeepError, text: str) -> None:
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), text, vars(error))


def test_errors_know_the_line_of_a_redis_server() -> None:
    assert errors.NoSuchKeyError("no such key").redis_error == "ERR no such key"
    text = "NOGROUP No such consumer group 'g' for key name 'k'"
    assert errors.NoSuchGroupError(text).redis_error == text
