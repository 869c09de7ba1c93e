"""The journal: what each commit changed, so that one sync makes it durable.

A journal file is a header and records, one per commit, in order:

    file      header, record, record, ...
    record    length of the body u64, checksum u64, body
    body      commit number u64, operation, operation, ...

The checksum is XXH3-64 over the body, seeded with the checksum of the record before it; the first
record's seed is the checksum of the header, which holds a random salt. So a record parses only
behind the one that it was written behind: neither stale bytes of a file used before nor what a
torn write left can follow. Where no record follows, the file ends; the next file says in its
header with which commit it begins.

An operation is one change of a sub-database, to be replayed in order:

    PUT       u8 kind and table, u16 key size, key, u32 size, value
    DELETE    u8 kind and table, u16 key size, key
    MOVE      u8 kind and table, u16 key size, key, u8 table that the row goes to
    SPLICE    u8 kind and table, u16 key size, key, u16 head size, head, u32 kept, u32 tail size,
              tail: the new value is head, `kept` bytes of the old value from head size on, tail

The row of a stream's tail node is written again with every append; SPLICE journals of it what
is new.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from librt.strings import BytesWriter, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64
from xxhash import xxh3_64_intdigest

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout

MAGIC: Final = b"SKJ"
FORMAT: Final = 1

FILE_HEADER: Final = Layout(
    "journal file header",
    (
        Field("magic", "3s", '`"SKJ"`'),
        Field("format", "B", "1"),
        Field("epoch", "I", "of all commits in the file"),
        Field("file_number", "Q", "files follow each other by number"),
        Field("first_commit", "Q", "commit number of the first record"),
        Field("salt", "Q", "random"),
        Field("store_uuid", "16s", "the store it belongs to"),
        Field("checksum", "Q", "XXH3-64 of the fields above"),
    ),
)
RECORD_HEADER: Final = Layout(
    "journal record header",
    (
        Field("length", "Q", "bytes of the body; 0 where the file ends"),
        Field("checksum", "Q", "XXH3-64 of the body, seeded with the checksum before"),
    ),
)

PUT: Final = 0
DELETE: Final = 1
SPLICE: Final = 2
MOVE: Final = 3
OPERATIONS: Final = ("PUT", "DELETE", "SPLICE", "MOVE")
_KIND_SHIFT: Final = 5  # the table is in the low five bits
_TABLE_MASK: Final = 31

_BODY_START: Final = 8
_CHECKED: Final = FILE_HEADER.size - 8
_SPLICE_MIN: Final = 64  # bytes a SPLICE must save at least
_ENVELOPE_END: Final = 9  # end mark of the listpack and checksum of the envelope
_unpack_record = RECORD_HEADER.struct.unpack_from
_pack_record = RECORD_HEADER.struct.pack
_unpack_u64 = struct.Struct(">Q").unpack_from
_unpack_u32 = struct.Struct(">I").unpack_from
_unpack_u16 = struct.Struct(">H").unpack_from


class FileHeader(NamedTuple):
    """The header of a journal file."""

    epoch: int
    file_number: int
    first_commit: int
    salt: int
    store_uuid: bytes

    def encode(self) -> bytes:
        """Return the header's bytes."""
        checked = FILE_HEADER.struct.pack(MAGIC, FORMAT, *self, 0)[:_CHECKED]
        return checked + xxh3_64_intdigest(checked).to_bytes(8, "big")


def decode_file_header(data: bytes) -> FileHeader | None:
    """Return the header at the start of `data`; None when there is no whole one."""
    if len(data) < FILE_HEADER.size:
        return None
    fields = FILE_HEADER.struct.unpack_from(data)
    if fields[:2] != (MAGIC, FORMAT) or fields[-1] != xxh3_64_intdigest(data[:_CHECKED]):
        return None
    return FileHeader(*fields[2:-1])


def first_chain(header: bytes) -> int:
    """Return the seed of the first record behind an encoded header."""
    return int.from_bytes(header[_CHECKED : FILE_HEADER.size], "big")


# --- records ------------------------------------------------------------------------------------


class Operations:
    """The operations of one commit, being collected."""

    def __init__(self, commit_number: int) -> None:
        self.count = 0
        self._writer = BytesWriter()
        write_i64_be(self._writer, i64(commit_number))

    def put(self, table: int, db_key: bytes, value: bytes) -> None:
        """Note that `value` was stored."""
        self.count += 1
        writer = self._writer
        writer.append(PUT << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)
        write_i32_be(writer, i32(len(value)))
        writer.write(value)

    def delete(self, table: int, db_key: bytes) -> None:
        """Note that a row was removed."""
        self.count += 1
        writer = self._writer
        writer.append(DELETE << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)

    def move(self, table: int, db_key: bytes, target: int) -> None:
        """Note that a row went to another table, under the same key."""
        self.count += 1
        writer = self._writer
        writer.append(MOVE << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)
        writer.append(target)

    def splice(self, table: int, db_key: bytes, old: bytes, value: bytes, head: i64) -> None:
        """Note that `value` was stored in place of `old`, from which it differs at both ends.

        Args:
            head: bytes at the start that differ; what follows is compared.
        """
        kept: i64 = len(old) - head - _ENVELOPE_END
        if kept < _SPLICE_MIN or old[head : head + kept] != value[head : head + kept]:
            self.put(table, db_key, value)
            return
        self.count += 1
        writer = self._writer
        writer.append(SPLICE << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)
        write_i16_be(writer, i16(head))
        writer.write(value[:head])
        write_i32_be(writer, i32(kept))
        tail = value[head + kept :]
        write_i32_be(writer, i32(len(tail)))
        writer.write(tail)

    def body(self) -> bytes:
        """Return the body of the record."""
        return self._writer.getvalue()


class Record(NamedTuple):
    """One record as it stands in a file."""

    commit_number: int
    body: bytes
    end: int  # offset behind it
    chain: int  # its checksum


def record_checksum(body: bytes, chain: int) -> int:
    """Return the checksum of a record behind one with the checksum `chain`."""
    return int(xxh3_64_intdigest(body, chain))


def encode_record(body: bytes, checksum: int) -> bytes:
    """Return a record's bytes."""
    return _pack_record(len(body), checksum) + body


def record_size(data: bytes, offset: int) -> int:
    """Return how many bytes the record takes whose header is at `offset`, if there is one."""
    return RECORD_HEADER.size + int(_unpack_record(data, offset)[0])


def read_record(data: bytes | memoryview, offset: int, chain: int) -> Record | None:
    """Return the record at `offset` behind one with the checksum `chain`; None where none is."""
    start = offset + RECORD_HEADER.size
    if start > len(data):
        return None
    length, checksum = _unpack_record(data, offset)
    end = start + length
    if length < _BODY_START or end > len(data):
        return None
    body = bytes(data[start:end])
    if record_checksum(body, chain) != checksum:
        return None
    return Record(_unpack_u64(body)[0], body, end, checksum)


class Change(NamedTuple):
    """One operation. `head` and `kept` are those of a SPLICE; then `value` is the tail.

    Of a MOVE, `kept` is the table that the row goes to.
    """

    kind: int
    table: int
    db_key: bytes
    value: bytes
    head: bytes
    kept: int

    def size(self) -> int:
        """Return how many bytes the operation takes in its record."""
        size = 3 + len(self.db_key)
        if self.kind == PUT:
            return size + 4 + len(self.value)
        if self.kind == SPLICE:
            return size + 2 + len(self.head) + 4 + 4 + len(self.value)
        return size + (self.kind == MOVE)

    def apply(self, old: bytes | None) -> bytes:
        """Return the new value of a PUT or SPLICE, given the old one."""
        if self.kind == PUT:
            return self.value
        size = len(self.head)
        if old is None or len(old) < size + self.kept:
            raise CorruptionError("journal", "a SPLICE does not fit the value it changes")
        return self.head + old[size : size + self.kept] + self.value


def read_changes(body: bytes, tables: Container[int]) -> Iterator[Change]:
    """Yield the operations of a record's body; raise CorruptionError for bytes that are none.

    Args:
        tables: the numbers of the sub-databases.
    """
    at = _BODY_START
    size = len(body)

    def take(count: int) -> bytes:
        nonlocal at
        if count > size - at:
            raise CorruptionError("journal record", "an operation is cut off", offset=at)
        at += count
        return body[at - count : at]

    while at < size:
        first = body[at]
        at += 1
        kind, table = first >> _KIND_SHIFT, first & _TABLE_MASK
        if kind > MOVE or table not in tables:
            raise CorruptionError("journal record", f"no operation 0x{first:02x}", offset=at - 1)
        db_key = take(_unpack_u16(take(2))[0])
        if kind == DELETE:
            yield Change(kind, table, db_key, b"", b"", 0)
        elif kind == MOVE:
            target = take(1)[0]
            if target not in tables:
                raise CorruptionError("journal record", f"no table {target}", offset=at - 1)
            yield Change(kind, table, db_key, b"", b"", target)
        elif kind == PUT:
            yield Change(kind, table, db_key, take(_unpack_u32(take(4))[0]), b"", 0)
        else:
            head = take(_unpack_u16(take(2))[0])
            kept = _unpack_u32(take(4))[0]
            yield Change(kind, table, db_key, take(_unpack_u32(take(4))[0]), head, kept)
