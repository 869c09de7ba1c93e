"""The listpack codec: Redis's own vectors, round trips, and damage."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import listpack, listpack_check
from test_format.made_journal import flipped
from test_format.made_nodes import elements_of, listpack_of, wrapped

VECTORS = {  # element with its backlen, as real servers write it
    b"0": "00 01",
    b"127": "7f 01",
    b"128": "c0 80 02",
    b"-1": "df ff 02",
    b"4095": "cf ff 02",
    b"-4096": "d0 00 02",
    b"4096": "f1 00 10 03",
    b"-32768": "f1 00 80 03",
    b"32767": "f1 ff 7f 03",
    b"32768": "f2 00 80 00 04",
    b"8388607": "f2 ff ff 7f 04",
    b"8388608": "f3 00 00 80 00 05",
    b"-2147483648": "f3 00 00 00 80 05",
    b"2147483648": "f4 00 00 00 80 00 00 00 00 09",
    b"9223372036854775807": "f4 ff ff ff ff ff ff ff 7f 09",
    b"9223372036854775808": "93 39 32 32 33 33 37 32 30 33 36 38 35 34 37 37 35 38 30 38 14",
    b"": "80 01",
    b"a": "81 61 02",
    b"007": "83 30 30 37 04",
}
NOT_INTEGERS = [
    b"-",
    b"-0",
    b"00",
    b"01",
    b"+1",
    b" 1",
    b"1 ",
    b"1a",
    b"-a",
    b"9223372036854775808",
    b"-9223372036854775809",
    b"99999999999999999999",
    b"123456789012345678a",
    b"\xb2",
]

integers = st.integers(-(1 << 63), (1 << 63) - 1)
edges = st.sampled_from(
    [
        sign * (1 << bits) + step
        for bits in (7, 12, 15, 23, 31, 62)
        for sign in (1, -1)
        for step in (-1, 0, 1)
    ]
)
strings = st.binary(max_size=200) | (integers | edges).map(lambda number: b"%d" % number)


def element(text: bytes) -> bytes:
    """Return the encoding of one string, without header and end."""
    writer = BytesWriter()
    listpack.put_string(writer, text)
    return writer.getvalue()


@pytest.mark.parametrize(("text", "expected"), VECTORS.items())
def test_elements_are_encoded_as_redis_does(text: bytes, expected: str) -> None:
    assert element(text).hex(" ") == expected


@pytest.mark.parametrize("text", NOT_INTEGERS)
def test_only_canonical_integers_are_stored_as_numbers(text: bytes) -> None:
    assert element(text)[0] == 0x80 + len(text)
    assert elements_of(listpack_of([text])) == [text]


def test_the_empty_listpack_is_seven_bytes() -> None:
    assert listpack_of([]) == bytes.fromhex("07000000 0000 ff")


@given(st.lists(strings, max_size=30))
@example([b"9" * size for size in range(1, 25)])
@example([b"-" + b"9" * size for size in range(1, 25)])
@example([b"-9223372036854775808", b"9223372036854775807"])
@example([b"x" * size for size in (0, 63, 64, 125, 126, 4095, 4096, 16377, 16378, 16379, 70000)])
def test_what_is_encoded_is_decoded(elements: list[bytes]) -> None:
    data = listpack_of(elements)
    assert elements_of(data) == elements


BOTH_GENERATIONS = [(16378, "00ffff", "7fff"), (2097146, "00ffffff", "7fffff")]


@pytest.mark.parametrize(("size", "older", "newer"), BOTH_GENERATIONS)
def test_both_generations_of_backlens_are_read(size: int, older: str, newer: str) -> None:
    text = b"y" * size
    data = element(text)
    ours = data[len(data) - len(older) // 2 :]
    assert ours.hex() == older, "we write what Redis up to 8.6 writes"
    body = data[: len(data) - len(ours)]
    for backlen in (older, newer):
        elements = body + bytes.fromhex(backlen) + element(b"5")
        assert elements_of(wrapped(elements, 2)) == [text, b"5"]


def test_more_elements_than_the_header_can_count() -> None:
    elements = [b"1"] * 70_000
    data = listpack_of(elements)
    assert data[4:6] == b"\xff\xff"
    assert elements_of(data) == elements


def test_integers_that_are_stored_as_strings_are_read() -> None:
    data = wrapped(b"\x81\x35\x02", 1)
    assert elements_of(data) == [b"5"]


DAMAGED = {
    "too short": "0700000000",
    "wrong size": "08000000 0000 ff",
    "no end": "07000000 0000 00",
    "unknown encoding": "09000000 0100 f5 01 ff",
    "cut string": "09000000 0100 85 61 ff",
    "cut length": "08000000 0100 f0 ff",
    "length of four gigabytes": "0d000000 0100 f0ffffffff 01 ff",
    "no backlen": "08000000 0100 05 ff",
    "wrong backlen": "09000000 0100 05 02 ff",
    "continuation bit on the first backlen byte": "09000000 0100 05 81 ff",
    "end among the elements": "0b000000 0200 05 01 ff 01 ff",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name: str) -> None:
    with pytest.raises(CorruptionError) as caught:
        elements_of(bytes.fromhex(DAMAGED[name]))
    assert caught.value.where == "listpack"


@given(st.binary(max_size=64))
def test_hostile_bytes_give_our_error_or_a_list(data: bytes) -> None:
    try:
        elements = elements_of(data)
    except CorruptionError:
        return
    assert sum(map(len, elements)) <= 20 * len(data)


@given(st.lists(strings, min_size=1, max_size=5), st.data())
def test_every_flipped_bit_is_reported_or_changes_only_a_value(
    elements: list[bytes], data: st.DataObject
) -> None:
    """Structure is checked here; that values stay what they were is the envelope's business."""
    good = listpack_of(elements)
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = flipped(good, bit)
    try:
        decoded = elements_of(bad)
    except CorruptionError:
        return
    assert len(decoded) == len(elements) or bit // 8 in (4, 5)


@given(integers)
@example(-(1 << 63))
def test_decimal_text_of_every_integer(number: int) -> None:
    writer = BytesWriter()
    listpack.put_decimal(writer, number)
    assert writer.getvalue() == b"%d" % number


def test_backlens_are_converted_between_both_generations() -> None:
    for size in (16378, 16377, 16379, 2097146):
        older = listpack_of([b"a", b"x" * size, b"7", b"y" * size, b"z"])
        newer = listpack_check.convert_backlens(older, True)
        assert elements_of(newer) == elements_of(older)
        assert len(older) - len(newer) == (2 if size in (16378, 2097146) else 0)
        assert listpack_check.convert_backlens(newer, False) == older
        assert listpack_check.convert_backlens(newer, True) is newer
