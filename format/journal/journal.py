"""The journal: the changes of each commit, so that one sync makes a commit durable.

A journal file is a header and records, one per commit, in order:

    file      header, record, record, ...
    record    length of the body u64, checksum u64, body
    body      commit number u64, operation, operation, ...

The checksum is XXH3-64 over the body, seeded with the checksum of the record before it. The seed of
the first record is the checksum of the header, which contains a random salt. So a record is only
valid after the record that it was written after: stale bytes of a recycled log file and the rest
of a torn write are not. The file ends where no valid record follows; the header of the next file
names its first commit.

An operation is one change of a table. Operations are replayed in order:

    PUT       u8 kind and table, u16 key size, key, u32 size, value
    DELETE    u8 kind and table, u16 key size, key
    MOVE      u8 kind and table, u16 key size, key, u8 table to which the row moves
    SPLICE    u8 kind and table, u16 key size, key, u16 head size, head, u32 kept, u32 tail size,
              tail: the new value is head, `kept` bytes of the old value from head size on, tail
    EXTEND    the same; the XXH3-64 of all that, 8 bytes, ends the new value

Every append rewrites the row of a stream's tail node; SPLICE only journals the new part. EXTEND
also spares its writer the checksum of the row, which a deferred transaction does not even encode.
Neither hides that a row was damaged: SPLICE has the checksum of what its writer knew, and EXTEND
makes a wrong one of a wrong one. So both are applied, and only that row cannot be read.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64
from xxhash import xxh3_64_intdigest

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout

MAGIC: Final = b"SKJ"
FORMAT: Final = 1

FILE_HEADER: Final[Layout] = Layout(
    "journal file header",
    (
        Field("magic", "3s", '`"SKJ"`'),
        Field("format", "B", "1"),
        Field("epoch", "I", "epoch of all commits in the file"),
        Field("file_number", "Q", "log files are numbered without gaps"),
        Field("first_commit", "Q", "commit number of the first record"),
        Field("salt", "Q", "random"),
        Field("store_uuid", "16s", "the store that the file belongs to"),
        Field("checksum", "Q", "XXH3-64 of the fields above"),
    ),
)
RECORD_HEADER: Final[Layout] = Layout(
    "journal record header",
    (
        Field("length", "Q", "bytes of the body; 0 at the end of the file"),
        Field("checksum", "Q", "XXH3-64 of the body, seeded with the record before"),
    ),
)

PUT: Final = 0
DELETE: Final = 1
SPLICE: Final = 2
MOVE: Final = 3
EXTEND: Final = 4
OPERATIONS: Final = ("PUT", "DELETE", "SPLICE", "MOVE", "EXTEND")
_KIND_SHIFT: Final = 5  # the table is in the low five bits
_TABLE_MASK: Final = 31

_BODY_START: Final = 8
_CHECKED: Final = FILE_HEADER.size - 8
_SPLICE_MIN: Final = 64  # a SPLICE that saves fewer bytes is written as a PUT
_ENVELOPE_END: Final = 9  # end mark of the listpack and checksum of the envelope
_HIGH_LENGTH: Final = bytes(4)  # no record has 4 GiB
_unpack_record = RECORD_HEADER.struct.unpack_from
_pack_record = RECORD_HEADER.struct.pack
_RECORD_HEADER_SIZE: Final[i64] = RECORD_HEADER.size
_MOST_U64: Final = (1 << 64) - 1


class FileHeader(NamedTuple):
    """The header of a journal file."""

    epoch: int
    file_number: int
    first_commit: int
    salt: int
    store_uuid: bytes

    def encode(self) -> bytes:
        checked = FILE_HEADER.struct.pack(MAGIC, FORMAT, *self, 0)[:_CHECKED]
        return checked + xxh3_64_intdigest(checked).to_bytes(8, "big")


def decode_file_header(data: bytes) -> FileHeader | None:
    """Return the header at the start of `data`; None if it is truncated or damaged."""
    if len(data) < FILE_HEADER.size:
        return None
    fields = FILE_HEADER.struct.unpack_from(data)
    if fields[:2] != (MAGIC, FORMAT):
        return None
    if fields[-1] != xxh3_64_intdigest(data[:_CHECKED]):
        return None
    return FileHeader(*fields[2:-1])


def first_chain(header: bytes) -> int:
    """Return the seed of the first record after an encoded header."""
    return int.from_bytes(header[_CHECKED : FILE_HEADER.size], "big")


# --- records ------------------------------------------------------------------------------------


class Operations:
    """Collects the operations of one commit."""

    def __init__(self, commit_number: int) -> None:
        self.count = 0
        self._writer = BytesWriter()
        write_i64_be(self._writer, i64(commit_number))

    def put(self, table: int, db_key: bytes, value: bytes) -> None:
        self.count += 1
        writer = self._writer
        writer.append(PUT << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)
        write_i32_be(writer, i32(len(value)))
        writer.write(value)

    def delete(self, table: int, db_key: bytes) -> None:
        self.count += 1
        writer = self._writer
        writer.append(DELETE << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)

    def move(self, table: int, db_key: bytes, target: int) -> None:
        """Add a MOVE: a row moved to the table `target`, with the same key."""
        self.count += 1
        writer = self._writer
        writer.append(MOVE << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)
        writer.append(target)

    def splice(self, table: int, db_key: bytes, old: bytes, value: bytes, head: i64) -> None:
        """Add a SPLICE, or a PUT if it would save little: `value` replaced `old`.

        Args:
            head: number of bytes at the start that may differ; the bytes after it are compared.
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

    def extend(self, table: int, db_key: bytes, head: bytes, kept: i64, tail: bytes) -> None:
        """Add an EXTEND: the value is `head`, `kept` bytes of the old one, `tail`, a checksum."""
        self.count += 1
        writer = self._writer
        writer.append(EXTEND << _KIND_SHIFT | table)
        write_i16_be(writer, i16(len(db_key)))
        writer.write(db_key)
        write_i16_be(writer, i16(len(head)))
        writer.write(head)
        write_i32_be(writer, i32(kept))
        write_i32_be(writer, i32(len(tail)))
        writer.write(tail)

    def body(self) -> bytes:
        return self._writer.getvalue()


class Record:  # no tuple, which takes as long to make as a record takes to check
    """One record of a log file.

    Attributes:
        end: the offset after the record.
        chain: its checksum, the seed of the next record.
    """

    def __init__(self, commit_number: int, body: bytes, end: int, chain: int) -> None:
        self.commit_number = commit_number
        self.body = body
        self.end = end
        self.chain = chain


def record_checksum(body: bytes, chain: int) -> int:
    """Return the checksum of a record after the record with the checksum `chain`."""
    return int(xxh3_64_intdigest(body, chain))


def encode_record(body: bytes, checksum: int) -> bytes:
    return _pack_record(len(body), checksum) + body


def record_size(data: bytes, offset: int) -> int:
    """Return the size in bytes that the record header at `offset` states, valid or not."""
    return int(_RECORD_HEADER_SIZE) + int(read_i64_be(data, offset))


def read_record(data: bytes, offset: i64, chain: int) -> Record | None:
    """Return the record at `offset`, after one with the checksum `chain`; None if not valid."""
    start = offset + _RECORD_HEADER_SIZE
    if start > len(data):
        return None
    end = start + read_i64_be(data, offset)
    if not start + _BODY_START <= end <= len(data):
        return None
    body = data[start:end]
    checksum = record_checksum(body, chain)
    if checksum != int(read_i64_be(data, offset + 8)) & _MOST_U64:
        return None
    return Record(int(read_i64_be(body, 0)), body, int(end), checksum)


def find_record(data: bytes, offset: int, commit_number: int) -> tuple[int, int, int] | None:
    """Find the first record of a commit above `commit_number` after damage at `offset`.

    The checksum of each record seeds that of the next one. So where a valid record follows the
    bytes of a header, they are the header of the record before it.

    Returns:
        The offset of the record, its seed, and the commit before it; None if there is none.
    """
    end = len(data.rstrip(b"\0"))
    at = data.find(_HIGH_LENGTH, offset, end)
    while at >= 0 and at + RECORD_HEADER.size <= end:
        length, chain = _unpack_record(data, at)
        following = at + RECORD_HEADER.size + int(length)
        record = read_record(data, following, chain) if following < end else None
        if record is not None and record.commit_number > commit_number + 1:
            return following, int(chain), record.commit_number - 1
        at = data.find(_HIGH_LENGTH, at + 1, end)
    return None


def is_sound(row: bytes) -> bool:
    """Return whether a row that an EXTEND changes has the checksum of its bytes."""
    return digest64(row[:-8]) == row[-8:]


def extend_checksum(content: bytes, *, sound: bool) -> bytes:
    """Return the checksum of a row after an EXTEND.

    A right one would hide the damage of the row before: then it is wrong in each byte, since repair
    corrects a single one.
    """
    right = digest64(content)
    return right if sound else bytes([byte ^ 0xFF for byte in right])


class Change(NamedTuple):
    """One operation.

    Attributes:
        kind: PUT, DELETE, SPLICE, MOVE or EXTEND.
        value: the value of a PUT, the tail of a SPLICE or EXTEND.
        head: the head of a SPLICE or EXTEND.
        kept: the bytes that these two keep; for a MOVE, the table to which the row moves.
    """

    kind: int
    table: int
    db_key: bytes
    value: bytes
    head: bytes
    kept: int

    def size(self) -> int:
        """Return the size of the operation in its record, in bytes."""
        size = 3 + len(self.db_key)
        if self.kind == PUT:
            return size + 4 + len(self.value)
        if self.kind in (SPLICE, EXTEND):
            return size + 2 + len(self.head) + 4 + 4 + len(self.value)
        return size + (self.kind == MOVE)

    def apply(self, old: bytes | None) -> bytes:
        """Return the new value of the row after a PUT, SPLICE or EXTEND.

        Raises:
            CorruptionError: the old value is missing or too short for what is kept of it.
        """
        self.check(-1 if old is None else len(old))
        if self.kind == PUT or old is None:
            return self.value
        size = len(self.head)
        value = self.head + old[size : size + self.kept] + self.value
        if self.kind != EXTEND:
            return value
        return value + extend_checksum(value, sound=is_sound(old))

    def joined(self, old: bytes) -> bytes:
        """Return what a SPLICE or EXTEND makes of a row that lacks some of what it kept.

        The result has no valid checksum, but can be read if only whole entries are missing.
        """
        size = len(self.head)
        kept = old[size : max(size, len(old) - _ENVELOPE_END)]
        checksum = bytes(8) if self.kind == EXTEND else b""
        return self.head + kept + self.value + checksum

    def check(self, old_size: int) -> None:
        """Raise CorruptionError unless the operation fits to the row that it changes.

        Args:
            old_size: bytes of the row's value; -1 for no row.
        """
        expected = old_size
        if self.kind == MOVE:
            expected = max(0, old_size)
        elif self.kind in (SPLICE, EXTEND):
            expected = len(self.head) + self.kept + _ENVELOPE_END
        if old_size != expected:
            found = "no row" if old_size < 0 else f"{old_size:,} bytes"
            needed = "one" if self.kind == MOVE else f"{expected:,} bytes"
            problem = f"{OPERATIONS[self.kind]} of a row: expected {needed}, found {found}"
            raise CorruptionError("journal", problem)

    def new_size(self, old_size: int) -> int:
        """Return the bytes of the row's value afterwards; -1 for no row.

        Args:
            old_size: what it had; after a MOVE, the row in the other table has it.
        """
        if self.kind == PUT:
            return len(self.value)
        if self.kind in (DELETE, MOVE):
            return -1
        return len(self.head) + self.kept + len(self.value) + (8 if self.kind == EXTEND else 0)


class ChangeReader:
    """Reads the operations of a record's body, one at a time, into its attributes.

    They are those of `Change`. Replaying a commit costs less without an object for each operation.
    """

    def __init__(self, body: bytes, tables: Container[int]) -> None:
        self.kind: i64 = 0
        self.table = 0
        self.db_key = b""
        self.value = b""
        self.head = b""
        self.kept: i64 = 0
        self._body = body
        self._tables = tables
        self._at: i64 = _BODY_START

    def next(self) -> bool:
        """Read the next operation; return False at the end.

        Raises:
            CorruptionError: it is truncated or unknown.
        """
        body = self._body
        if self._at >= len(body):
            return False
        first = body[self._at]
        self._at += 1
        kind = self.kind = first >> _KIND_SHIFT
        self.table = first & _TABLE_MASK
        if kind > EXTEND or self.table not in self._tables:
            problem = f"unknown operation 0x{first:02x}"
            raise CorruptionError("journal record", problem, offset=self._at - 1)
        self.db_key = self._take(self._number16())
        if kind == PUT:
            self.value = self._take(self._number32())
        elif kind == MOVE:
            self.kept = self._take(1)[0]
            if self.kept not in self._tables:
                problem = f"unknown table {self.kept}"
                raise CorruptionError("journal record", problem, offset=self._at - 1)
        elif kind != DELETE:
            self.head = self._take(self._number16())
            self.kept = self._number32()
            self.value = self._take(self._number32())
        return True

    def change(self) -> Change:
        kind, head, kept = self.kind, b"", 0
        if kind == MOVE:
            kept = self.kept
        elif kind in (SPLICE, EXTEND):
            head, kept = self.head, self.kept
        value = b"" if kind in (DELETE, MOVE) else self.value
        return Change(kind, self.table, self.db_key, value, head, kept)

    def _number16(self) -> i64:
        at = self._passed(2)
        return i64(read_i16_be(self._body, at)) & 0xFFFF

    def _number32(self) -> i64:
        at = self._passed(4)
        return i64(read_i32_be(self._body, at)) & 0xFFFFFFFF

    def _take(self, count: i64) -> bytes:
        at = self._passed(count)
        return self._body[at : at + count]

    def _passed(self, count: i64) -> i64:
        """Pass over some bytes; return where they begin."""
        at = self._at
        if at + count > len(self._body):
            raise CorruptionError("journal record", "an operation is truncated", offset=int(at))
        self._at = at + count
        return at


def read_changes(body: bytes, tables: Container[int]) -> Iterator[Change]:
    """Yield the operations of a record's body; raise CorruptionError for other bytes.

    Args:
        tables: the numbers of the tables.
    """
    reader = ChangeReader(body, tables)
    while reader.next():
        yield reader.change()
