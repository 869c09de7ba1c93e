"""What clients send: arrays, lines, pieces, and what is no command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.profile import configured
from streamkeep.format.redis.resp import encode_command
from streamkeep.server.resp.requests import ProtocolError, RequestParser

WORDS = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def all_of(parser: RequestParser) -> list[list[bytes]]:
    found = []
    while (words := parser.next()) is not None:
        found.append(words)
    return found


@configured(60)
@given(st.lists(WORDS, max_size=5), st.lists(st.integers(1, 9), min_size=1))
def test_commands_may_arrive_in_any_pieces(commands: list[list[bytes]], sizes: list[int]) -> None:
    data = b"".join(encode_command(*words) for words in commands)
    parser = RequestParser()
    found: list[list[bytes]] = []
    at = turn = 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        parser.feed(data[at : at + size])
        found += all_of(parser)
        at, turn = at + size, turn + 1
    assert found == commands
    assert parser.pending() == 0


def test_lines_are_commands_in_the_quoting_of_redis_cli() -> None:
    parser = RequestParser()
    parser.feed(b"PING\r\n\r\nset \"a b\" 'c'\n*1\r\n$4\r\nPING\r\n")
    assert all_of(parser) == [[b"PING"], [b"set", b"a b", b"c"], [b"PING"]]


def test_arrays_without_words_are_no_commands() -> None:
    parser = RequestParser()
    parser.feed(b"*0\r\n*-1\r\n*1\r\n$0\r\n\r\n")
    assert all_of(parser) == [[b""]]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n\x00", "expected '$', got '\\x00'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$536870913\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b'PING "a\r\n', "unbalanced quotes in request"),
        (b"P" * 65537, "too big inline request"),
        (b"*" + b"1" * 65537, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * 65537, "too big bulk count string"),
    ],
)
def test_other_bytes_are_refused_with_the_words_of_redis(data: bytes, line: str) -> None:
    parser = RequestParser()
    parser.feed(data)
    with pytest.raises(ProtocolError) as refused:
        all_of(parser)
    assert str(refused.value) == line


def test_strangers_may_send_little() -> None:
    for data, line in {
        b"*11\r\n": "unauthenticated multibulk length",
        b"*1\r\n$16385\r\n": "unauthenticated bulk length",
    }.items():
        parser = RequestParser()
        parser.trusted = False
        parser.feed(data)
        with pytest.raises(ProtocolError, match=line):
            all_of(parser)


@configured(200)
@given(st.binary(max_size=60), st.integers(1, 20))
def test_any_bytes_are_commands_or_a_protocol_error(data: bytes, size: int) -> None:
    parser = RequestParser()
    try:
        for at in range(0, len(data), size):
            parser.feed(data[at : at + size])
            all_of(parser)
    except ProtocolError:
        return
    assert parser.pending() <= len(data)


def test_a_long_word_is_not_copied_with_every_piece() -> None:
    parser = RequestParser()
    parser.feed(b"*1\r\n$10000000\r\n")
    for _ in range(1000):
        parser.feed(b"x" * 10_000)
        assert parser.next() is None
    assert len(parser._parts) > 900  # they are joined once, when the last one has come
    parser.feed(b"\r\n")
    assert parser.next() == [b"x" * 10_000_000]
