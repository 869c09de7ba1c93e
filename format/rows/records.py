"""The stream record, and the small rows of `meta`, `keys` and `garbage`.

The stream record holds the counters of one stream. It is stored before the stream's tail node, in
one envelope under the stream's number, because every append changes both.

Compiled by mypyc: every append encodes the record.
"""

from __future__ import annotations

import struct
from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, bits, u32_at, unsigned
from streamkeep.format.core.keys import LAST_NUMBER, check_number
from streamkeep.format.core.layout import Field, Layout

REOPEN: Final = 1  # bit of `flags`
PAGE_FIT: Final = 0xFFFFFFFF  # node_max_bytes of streams whose nodes fill LMDB pages

STREAM_RECORD: Final = Layout(
    "stream record",
    (
        Field("length", "Q", "live entries"),
        Field("last_ms", "Q", "last_generated_id: never decreases"),
        Field("last_seq", "Q", ""),
        Field("first_ms", "Q", "ID of the first live entry; 0-0 if there is none"),
        Field("first_seq", "Q", ""),
        Field("last_live_ms", "Q", "ID of the last live entry; 0-0 if there is none"),
        Field("last_live_seq", "Q", ""),
        Field("max_deleted_ms", "Q", "highest ID ever deleted (trimming does not count)"),
        Field("max_deleted_seq", "Q", ""),
        Field("entries_added", "Q", "entries ever added"),
        Field("sealed_nodes", "Q", "macro nodes in `nodes`, which excludes the tail node"),
        Field("sealed_bytes", "Q", "bytes of their listpacks"),
        Field("tombstones", "Q", "tombstones in all nodes, the tail node included"),
        Field("node_max_bytes", "I", "stream-node-max-bytes; 4294967295: nodes fill pages"),
        Field("node_max_entries", "I", "stream-node-max-entries; 0: no limit"),
        Field(
            "flags", "I", "1: there is no tail node, and the newest node in `nodes` may have room"
        ),
    ),
)
_RECORD_SIZE: Final = STREAM_RECORD.size


class StreamRecord:
    """The counters and settings of one stream; see `STREAM_RECORD` for their meaning."""

    def __init__(self, node_max_bytes: int, node_max_entries: int) -> None:
        self.length = 0
        self.last_ms = 0
        self.last_seq = 0
        self.first_ms = 0
        self.first_seq = 0
        self.last_live_ms = 0
        self.last_live_seq = 0
        self.max_deleted_ms = 0
        self.max_deleted_seq = 0
        self.entries_added = 0
        self.sealed_nodes = 0
        self.sealed_bytes = 0
        self.tombstones = 0
        self.node_max_bytes = node_max_bytes
        self.node_max_entries = node_max_entries
        self.flags = 0
        self.extension = b""  # optional sections, see `extension`; unknown ones are kept

    def first_id(self) -> tuple[int, int]:
        """Return the ID of the first live entry, 0-0 when there is none."""
        return self.first_ms, self.first_seq

    def last_live_id(self) -> tuple[int, int]:
        """Return the ID of the last live entry, 0-0 when there is none."""
        return self.last_live_ms, self.last_live_seq

    def last_id(self) -> tuple[int, int]:
        return self.last_ms, self.last_seq

    def max_deleted_id(self) -> tuple[int, int]:
        """Return the highest ID ever deleted, 0-0 when there is none."""
        return self.max_deleted_ms, self.max_deleted_seq

    def put(self, writer: BytesWriter) -> None:
        """Append the record as `STREAM_RECORD` lays it out.

        Raises:
            CorruptionError: a counter is out of its bounds, because it had been wrong before.
        """
        if not 0 <= self.length <= LAST_NUMBER or self.entries_added > MAX:
            problem = f"length {self.length}, entries_added {self.entries_added}"
            raise CorruptionError("stream record", f"{problem}; run `streamkeep repair`")
        write_i64_be(writer, bits(self.length))
        write_i64_be(writer, bits(self.last_ms))
        write_i64_be(writer, bits(self.last_seq))
        write_i64_be(writer, bits(self.first_ms))
        write_i64_be(writer, bits(self.first_seq))
        write_i64_be(writer, bits(self.last_live_ms))
        write_i64_be(writer, bits(self.last_live_seq))
        write_i64_be(writer, bits(self.max_deleted_ms))
        write_i64_be(writer, bits(self.max_deleted_seq))
        write_i64_be(writer, bits(self.entries_added))
        write_i64_be(writer, bits(self.sealed_nodes))
        write_i64_be(writer, bits(self.sealed_bytes))
        write_i64_be(writer, bits(self.tombstones))
        write_i64_be(writer, bits(self.node_max_bytes << 32 | self.node_max_entries))
        write_i32_be(writer, i32(self.flags))
        writer.write(self.extension)

    def encode(self) -> bytes:
        writer = BytesWriter()
        self.put(writer)
        return writer.getvalue()


def decode_stream_record(data: bytes, where: str) -> StreamRecord:
    """Parse a stream record, laid out as `STREAM_RECORD`; raise CorruptionError."""
    if len(data) < _RECORD_SIZE:
        problem = f"stream record of {len(data)} bytes, expected at least {_RECORD_SIZE}"
        raise CorruptionError(where, problem)
    record = StreamRecord(int(u32_at(data, 104)), int(u32_at(data, 108)))
    record.length = unsigned(read_i64_be(data, 0))
    record.last_ms = unsigned(read_i64_be(data, 8))
    record.last_seq = unsigned(read_i64_be(data, 16))
    record.first_ms = unsigned(read_i64_be(data, 24))
    record.first_seq = unsigned(read_i64_be(data, 32))
    record.last_live_ms = unsigned(read_i64_be(data, 40))
    record.last_live_seq = unsigned(read_i64_be(data, 48))
    record.max_deleted_ms = unsigned(read_i64_be(data, 56))
    record.max_deleted_seq = unsigned(read_i64_be(data, 64))
    record.entries_added = unsigned(read_i64_be(data, 72))
    record.sealed_nodes = unsigned(read_i64_be(data, 80))
    record.sealed_bytes = unsigned(read_i64_be(data, 88))
    record.tombstones = unsigned(read_i64_be(data, 96))
    record.flags = int(u32_at(data, 112))
    if record.flags & ~REOPEN:
        raise CorruptionError(where, f"flags 0x{record.flags:x}, expected at most 0x{REOPEN:x}")
    record.extension = data[_RECORD_SIZE:]
    return record


_U64: Final = struct.Struct(">Q")


def encode_number(number: int) -> bytes:
    return _U64.pack(number)


def decode_number(body: bytes, where: str) -> int:
    if len(body) != 8:
        raise CorruptionError(where, f"a number of {len(body)} bytes, expected 8")
    number: int = _U64.unpack(body)[0]
    return number


def encode_key_row(number: int, name: bytes) -> bytes:
    """Return the body of a `keys` row: stream number, whole name."""
    return _U64.pack(number) + name


def decode_counter(body: bytes, where: str) -> int:
    """Parse the body of a counter in `meta`: the next number to give, at least 1."""
    number = decode_number(body, where)
    check_number(number, LAST_NUMBER + 1, where)
    if number == 0:
        raise CorruptionError(where, "the next number is 0, expected at least 1")
    return number


LAST_EPOCH: Final = (1 << 32) - 2  # the next one still fits a u32


def decode_epoch(body: bytes, where: str) -> int:
    epoch = decode_number(body, where)
    if not 1 <= epoch <= LAST_EPOCH:
        raise CorruptionError(where, f"epoch {epoch}, expected 1 to {LAST_EPOCH}")
    return epoch


UUID_SIZE: Final = 16


def decode_uuid(body: bytes, where: str) -> bytes:
    if len(body) != UUID_SIZE:
        raise CorruptionError(where, f"a store UUID of {len(body)} bytes, expected {UUID_SIZE}")
    return body


def decode_key_row(body: bytes, where: str) -> tuple[int, bytes]:
    if len(body) < 8:
        raise CorruptionError(where, f"a row of {len(body)} bytes, expected at least 8")
    number: int = _U64.unpack_from(body)[0]
    check_number(number, LAST_NUMBER, where)
    return number, body[8:]


# --- garbage ------------------------------------------------------------------------------------

# Kinds of garbage. Permanent.
STREAM_NODES: Final = 1  # the nodes of a deleted stream
GROUP_ROWS: Final = 2  # consumers and pending entries of a destroyed group
IDEMPOTENCE_ROWS: Final = 3  # producers and messages of a deleted stream or of an old setting
ARCHIVE_FILE: Final = 4  # a file below archive/ that no row names any more; its path follows

GARBAGE_ROW: Final = Layout(
    "garbage row",
    (
        Field("kind", "B", "what is to be removed"),
        Field("number", "Q", "of its stream, group or section; 0 for a file, whose path follows"),
    ),
)


def encode_garbage(kind: int, number: int) -> bytes:
    """Return the body of a `garbage` row: kind, and number of what is to be removed."""
    return GARBAGE_ROW.struct.pack(kind, number)


def decode_garbage(body: bytes, where: str) -> tuple[int, int]:
    """Return kind and number of a `garbage` row; see `decode_file_garbage` for a file's path."""
    more = body.startswith(bytes((ARCHIVE_FILE,)))
    kind, number = GARBAGE_ROW.unpack(body, where, more=more)
    check_number(number, LAST_NUMBER, where)
    return kind, number


def encode_file_garbage(path: str) -> bytes:
    """Return the body of a `garbage` row for a file, by its path below archive/.

    A path of the system may be any bytes, as `os.fsdecode` gives them.
    """
    return encode_garbage(ARCHIVE_FILE, 0) + path.encode(errors="surrogateescape")


def decode_file_garbage(body: bytes, where: str) -> str:
    """Return the path of a garbage file, relative to archive/."""
    path = body[GARBAGE_ROW.size :].decode(errors="surrogateescape")
    if not is_safe_path(path):
        raise CorruptionError(where, f"the path {path!r} leads out of the archive")
    return path


def is_safe_path(path: str) -> bool:
    """Return whether a relative path cannot lead out of the folder that it is relative to."""
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return False
    return "\0" not in path


STORE_VERSION: Final = 1
