"""Bytes of the journal and of checkpoints: whatever they are, reported or harmless."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.journal import journal
from streamkeep.format.journal.checkpoint import decode_slot
from streamkeep.format.lmdb_file.meta_page import META_SIZE, decode_meta_page
from test_format.made_journal import flipped, sixteen, u32, u64

TABLES = range(12)
headers = st.builds(journal.FileHeader, u32, u64, u64, u64, sixteen)
keys = st.binary(max_size=511)
puts = st.tuples(st.just(journal.PUT), st.sampled_from(TABLES), keys, st.binary(max_size=300))
deletes = st.tuples(st.just(journal.DELETE), st.sampled_from(TABLES), keys, st.just(b""))
operations = st.lists(puts | deletes, max_size=8)


def changes(body: bytes) -> list[journal.Change]:
    return list(journal.read_changes(body, TABLES))


def operations_body(wanted: list[tuple[int, int, bytes, bytes]], number: int = 1) -> bytes:
    """Return the body of a record with these operations."""
    noted = journal.Operations(number)
    for kind, table, key, value in wanted:
        if kind == journal.PUT:
            noted.put(table, key, value)
        else:
            noted.delete(table, key)
    return noted.body()


@given(headers, st.binary(max_size=20))
def test_a_file_header_comes_back_and_no_bit_of_it_may_flip(
    header: journal.FileHeader, after: bytes
) -> None:
    data = header.encode()
    assert journal.decode_file_header(data + after) == header
    for bit in range(8 * len(data)):
        assert journal.decode_file_header(flipped(data, bit)) is None
    for size in range(len(data)):
        assert journal.decode_file_header(data[:size]) is None


@given(st.binary(max_size=600))
def test_any_bytes_are_a_slot_a_header_or_nothing(data: bytes) -> None:
    assert decode_slot(data) is None
    assert journal.decode_file_header(data) is None
    page = decode_meta_page(data)
    assert page is None or page.data == data[:META_SIZE]


@given(st.integers(0, (1 << 62) - 1), operations)
def test_operations_come_back(number: int, wanted: list[tuple[int, int, bytes, bytes]]) -> None:
    body = operations_body(wanted, number)
    assert int.from_bytes(body[:8], "big") == number
    assert [(one.kind, one.table, one.db_key, one.value) for one in changes(body)] == wanted
    data = journal.encode_record(body, journal.record_checksum(body, 77))
    record = journal.read_record(data + b"stale", 0, 77)
    assert record is not None
    assert (record.commit_number, record.body, record.end) == (number, body, len(data))
    assert journal.read_record(data, 0, 78) is None  # it was written after another record


@given(st.binary(min_size=64, max_size=400), st.binary(max_size=80), st.integers(0, 40))
def test_a_splice_makes_the_new_value(kept: bytes, tail: bytes, head: int) -> None:
    old = b"h" * head + kept + b"e" * 9
    value = b"H" * head + kept + tail
    noted = journal.Operations(1)
    noted.splice(3, b"key", old, value, head)
    (one,) = changes(noted.body())
    assert one.kind == journal.SPLICE
    assert one.apply(old) == value
    for wrong in (None, old[: head + len(kept) - 1], b""):
        with pytest.raises(CorruptionError):
            one.apply(wrong)


@given(st.binary(min_size=40, max_size=400), st.binary(max_size=80), st.integers(1, 20))
def test_an_extend_makes_the_new_value_and_its_checksum(old: bytes, tail: bytes, head: int) -> None:
    kept = len(old) - head - 9  # without the end mark of the node and the checksum
    old = old[:-8] + digest64(old[:-8])
    noted = journal.Operations(1)
    noted.extend(3, b"key", b"H" * head, kept, tail)
    (one,) = changes(noted.body())
    assert one.kind == journal.EXTEND
    assert one.size() == len(noted.body()) - 8
    content = b"H" * head + old[head : head + kept] + tail
    assert one.apply(old) == content + digest64(content)
    for wrong in (None, old[:-1], old + b"x"):
        with pytest.raises(CorruptionError, match=f"EXTEND of a row: expected {len(old)} bytes"):
            one.apply(wrong)
    made = old[:-1] + bytes([old[-1] ^ 1])
    for _ in range(2):  # the first leaves a damaged row to the second
        content = b"H" * head + made[head:-9] + tail
        made = one._replace(kept=len(made) - head - 9).apply(made)
        assert made[:-8] == content
        assert all(a != b for a, b in zip(made[-8:], digest64(content), strict=True))


def test_a_file_header_of_another_format_is_none() -> None:
    other = bytearray(journal.FileHeader(1, 2, 3, 4, b"u" * 16).encode())
    other[3] = journal.FORMAT + 1
    other[-8:] = xxh3_64_intdigest(bytes(other[:-8])).to_bytes(8, "big")
    assert journal.decode_file_header(bytes(other)) is None


@given(operations, st.data())
def test_damaged_operations_are_read_in_part_or_reported(
    wanted: list[tuple[int, int, bytes, bytes]], draw: st.DataObject
) -> None:
    """What is in front of the damage is read as it was written."""
    sound = operations_body(wanted)
    at = draw.draw(st.integers(8, len(sound)))
    data = sound[:at] + draw.draw(st.binary(max_size=60))
    ends = [len(operations_body(wanted[:count])) for count in range(len(wanted) + 1)]
    whole = sum(end <= at for end in ends) - 1  # operations before the damage
    found: list[journal.Change] = []
    damage: CorruptionError | None = None
    try:
        for one in journal.read_changes(data, TABLES):
            found.append(one)
    except CorruptionError as error:
        damage = error
    if damage is None:
        assert sum(len(one.db_key) + len(one.value) + len(one.head) for one in found) <= len(data)
    else:
        assert damage.offset is not None
        assert ends[whole] <= damage.offset <= len(data)
    told = [(one.kind, one.table, one.db_key, one.value) for one in found]
    assert told[:whole] == wanted[:whole]


@given(operations.filter(bool), st.data())
def test_operations_that_are_cut_off_are_reported(
    wanted: list[tuple[int, int, bytes, bytes]], draw: st.DataObject
) -> None:
    sound = operations_body(wanted)
    ends = {len(operations_body(wanted[:count])) for count in range(len(wanted) + 1)}
    size = draw.draw(st.integers(8, len(sound) - 1))
    if size in ends:
        assert len(changes(sound[:size])) < len(wanted)
    else:
        with pytest.raises(CorruptionError):
            changes(sound[:size])


def a_record(number: int, chain: int) -> bytes:
    """Return a record that ends with what looks like another use of the file."""
    body = journal.Operations(number).body()
    return journal.encode_record(body, journal.record_checksum(body, chain))


@given(st.binary(max_size=40), st.binary(max_size=40), u64, st.integers(0, 120))
def test_only_whole_records_in_their_place_are_read(
    before: bytes, after: bytes, chain: int, offset: int
) -> None:
    record = a_record(7, chain)
    data = before + record + after
    for at in {offset, len(before)}:
        found = journal.read_record(data, at, chain)
        assert (found is not None) == (at == len(before))
    whole = journal.read_record(data, len(before), chain)
    assert whole is not None
    assert (whole.commit_number, whole.end) == (7, len(before) + len(record))
    assert journal.read_record(data, len(before), chain ^ 1) is None


@given(u64 | st.integers(0, 80))
def test_a_length_that_is_not_that_of_the_record_is_none(length: int) -> None:
    record = a_record(7, 1)
    size = len(record) - journal.RECORD_HEADER.size
    _, checksum = journal.RECORD_HEADER.struct.unpack_from(record)
    data = (
        journal.RECORD_HEADER.struct.pack(length, checksum) + record[journal.RECORD_HEADER.size :]
    )
    for room in (b"", bytes(64)):
        assert (journal.read_record(data + room, 0, 1) is not None) == (length == size)


@given(operations, st.data())
def test_no_bit_of_a_record_may_flip(
    wanted: list[tuple[int, int, bytes, bytes]], data: st.DataObject
) -> None:
    body = operations_body(wanted, 5)
    record = journal.encode_record(body, journal.record_checksum(body, 1))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    assert journal.read_record(flipped(record, bit), 0, 1) is None
