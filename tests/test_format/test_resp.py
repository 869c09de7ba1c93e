"""Commands in RESP and as plain lines."""

from __future__ import annotations

import io
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis.resp import encode_command, read_commands, split_line

words = st.lists(st.binary(max_size=20), min_size=1, max_size=5)


def commands_of(data: bytes) -> list[tuple[int, list[bytes]]]:
    return list(read_commands(io.BytesIO(data).read, "here"))


@given(st.lists(words, max_size=5))
def test_commands_come_back_with_their_offsets(wanted: list[list[bytes]]) -> None:
    encoded = [encode_command(*one) for one in wanted]
    offsets = [len(b"".join(encoded[:at])) for at in range(len(encoded))]
    assert commands_of(b"".join(encoded)) == list(zip(offsets, wanted, strict=True))


@given(words, st.data())
def test_a_command_that_is_cut_off_is_reported(one: list[bytes], draw: st.DataObject) -> None:
    whole = encode_command(*one)
    cut = draw.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(CorruptionError, match="here"):
        commands_of(whole[:cut])


def test_text_and_numbers_are_encoded() -> None:
    assert encode_command("XLEN", b"\xff", 12) == b"*3\r\n$4\r\nXLEN\r\n$1\r\n\xff\r\n$2\r\n12\r\n"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"*x\r\n", "expected a number up to 1048576"),
        (b"*1048577\r\n", "expected a number up to 1048576"),
        (b"*1\r\n+OK\r\n", r"found b'\+OK', expected a string"),
        (b"*1\r\n$536870913\r\n", "expected a number up to 536870912"),
        (b"*1\r\n$1\r\nab\r\n", "longer or shorter than its length says"),
    ],
)
def test_what_is_not_resp_is_reported(data: bytes, problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        commands_of(data)


def test_plain_lines_are_commands_and_empty_ones_are_not() -> None:
    assert commands_of(b'\r\nXADD s * note "two words"\n\nPING\r\n') == [
        (2, [b"XADD", b"s", b"*", b"note", b"two words"]),
        (29, [b"PING"]),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (rb'"a\n\x41\"\\"', [b'a\nA"\\']),
        (rb"'it\'s' '\n'", [b"it's", rb"\n"]),
        (b'"" x', [b"", b"x"]),
        (rb'"\xg1"', [b"xg1"]),
    ],
)
def test_quotes_are_those_of_redis_cli(line: bytes, expected: list[bytes]) -> None:
    assert split_line(line, "here", 0) == expected


@pytest.mark.parametrize("line", [b'"open', b"'open", b'"a"b', rb'"a\"'])
def test_quotes_that_are_not_closed_are_reported(line: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"here: .*quote is not closed.* at byte 9"):
        split_line(line, "here", 9)


@given(st.lists(st.text("abc", min_size=1, max_size=4), max_size=4))
def test_words_without_quotes_are_split_as_a_shell_does(wanted: list[str]) -> None:
    line = " ".join(map(shlex.quote, wanted))
    assert split_line(line.encode(), "here", 0) == [one.encode() for one in wanted]
