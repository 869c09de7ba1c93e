"""The public types of entries and IDs."""

from __future__ import annotations

import pickle

import pytest

from streamkeep.format.core.entry import MAX_ID, MIN_ID, Entry, RepeatedFields, StreamId, fields_of
from streamkeep.format.core.errors import InvalidIdError


def test_ids_print_parse_and_order_as_redis_has_them() -> None:
    one = StreamId.parse("5-3")
    assert (one, str(one), bytes(one)) == ((5, 3), "5-3", b"5-3")
    assert StreamId.parse(b"5", default_seq=9) == (5, 9)
    assert one.previous() < one < one.next()
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
