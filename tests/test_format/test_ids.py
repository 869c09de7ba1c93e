"""Entry IDs: exact parsing, order, and arithmetic modulo 2^64."""

from __future__ import annotations

import pytest

from streamkeep.engine.commands.arguments import range_end, range_start
from streamkeep.engine.commands.xadd import AUTO, AUTO_SEQ, EXPLICIT, parse_new_id
from streamkeep.format.core import id_codec
from streamkeep.format.core.entry import MAX_ID, MIN_ID
from streamkeep.format.core.errors import InvalidIdError

TOP = (1 << 64) - 1
GOOD = {
    b"5": (5, 0),
    b"5-7": (5, 7),
    b"01-002": (1, 2),
    b"+2-1": (2, 1),
    b"5-+7": (5, 7),
    b" 5-\t7": (5, 7),
    b"0-0": (0, 0),
    b"18446744073709551615-18446744073709551615": (TOP, TOP),
    b"5-3\x00rest": (5, 3),
    b"5--0": (5, 0),
    b"5- -1": (5, TOP),
    b"5--05": (5, TOP - 4),
    b"0" * 127: (0, 0),
}
BAD = [
    b"",
    b"-",
    b"+",
    b"5-",
    b"-5",
    b"4--1",
    b"1-2-3",
    b"x",
    b"5x",
    b"0x5",
    b"5-7 ",
    b"5.0",
    b"18446744073709551616",
    b"5-18446744073709551616",
    b"5-*",
    b"0" * 128,
    b"\x005",
    "٣".encode(),
]


@pytest.mark.parametrize(("text", "expected"), GOOD.items())
def test_ids_are_parsed_as_redis_parses_them(text: bytes, expected: tuple[int, int]) -> None:
    assert id_codec.parse_id(text, 0) == expected


@pytest.mark.parametrize("text", BAD)
def test_what_redis_refuses_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidIdError) as caught:
        id_codec.parse_id(text, 0)
    expected = "ERR Invalid stream ID specified as stream command argument"
    assert caught.value.redis_error == expected


def test_a_missing_sequence_number_is_filled_in() -> None:
    assert id_codec.parse_id(b"5", TOP) == (5, TOP)
    assert range_start("5") == (5, 0)
    assert range_end("5") == (5, TOP)


def test_intervals() -> None:
    assert range_start("-") == MIN_ID
    assert range_end("+") == MAX_ID
    assert range_start("(5-7") == (5, 8)
    assert range_start(f"(5-{TOP}") == (6, 0)
    assert range_end("(5-0") == (4, TOP)
    assert range_end("(5") == (5, TOP - 1)
    for text in ("(", "(-", "(+"):
        with pytest.raises(InvalidIdError):
            range_start(text)
    with pytest.raises(InvalidIdError, match="invalid start ID for the interval"):
        range_start(f"({TOP}-{TOP}")
    with pytest.raises(InvalidIdError, match="invalid end ID for the interval"):
        range_end("(0-0")


def test_ids_of_new_entries() -> None:
    assert parse_new_id(b"*").kind == AUTO
    partial = parse_new_id(b"7-*")
    assert (partial.kind, partial.ms) == (AUTO_SEQ, 7)
    explicit = parse_new_id(b"7-3")
    assert (explicit.kind, explicit.ms, explicit.seq) == (EXPLICIT, 7, 3)
    for text in (b"*-*", b"*-1", b"-*", b"1-**"):
        with pytest.raises(InvalidIdError):
            parse_new_id(text)
