"""The envelope around a macro node: header, content and checksum.

The header below is followed by `record_size` bytes of stream record (in `streams` only),
`listpack_size` bytes of listpack, the bitmap of trimmed slots (all bytes up to the checksum), and
8 bytes of XXH3-64 over everything before.

The header names the stream, the node and the commit that wrote it. So repair can identify a page
that no tree leads to, and find the newest of several copies. In `streams` the node may be absent:
listpack_size is then 0, and the node key 0-0.

Bit i of the bitmap (byte i/8, lowest bit first) is set if slot i is a tombstone because it was
trimmed, not deleted: trimmed entries are archived. Zero bytes at the end are omitted.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i64

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import ChecksumError, CorruptionError
from streamkeep.format.core.id_codec import Id, bits, id_text, low32, u16_at, u32_at, unsigned
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.node.node import peek_counts

MAGIC: Final = b"SKN"
FORMAT: Final = 1
_START: Final = MAGIC + bytes([FORMAT])

ENVELOPE: Final = Layout(
    "envelope header",
    (
        Field("magic", "3s", '`"SKN"`'),
        Field("format", "B", "1"),
        Field("length", "I", "bytes of the whole envelope, checksum included"),
        Field("stream_number", "Q", "the stream"),
        Field("ms", "Q", "node key"),
        Field("seq", "Q", ""),
        Field("epoch", "I", "epoch of the commit that wrote it"),
        Field("commit_number", "Q", "number of that commit in its epoch"),
        Field("record_size", "H", "bytes of the stream record that follows"),
        Field("reserved", "H", "0"),
        Field("listpack_size", "I", "bytes of the listpack that follows it"),
    ),
)
HEADER_SIZE: Final = ENVELOPE.size
CHECKSUM_SIZE: Final = 8
OVERHEAD: Final = HEADER_SIZE + CHECKSUM_SIZE
_COUNTS: Final = 32  # bytes of a listpack that always hold both counts

# LMDB gives an overflow value whole pages of 4096 bytes, 16 of which are the page header.
PAGE_VALUE: Final = 4080
PAGE_LISTPACK: Final = PAGE_VALUE - OVERHEAD

_LENGTH_AT: Final[i64] = ENVELOPE.offset("length")
_NUMBER_AT: Final[i64] = ENVELOPE.offset("stream_number")
_MS_AT: Final[i64] = ENVELOPE.offset("ms")
_SEQ_AT: Final[i64] = ENVELOPE.offset("seq")
_EPOCH_AT: Final[i64] = ENVELOPE.offset("epoch")
_COMMIT_AT: Final[i64] = ENVELOPE.offset("commit_number")
_RECORD_SIZE_AT: Final[i64] = ENVELOPE.offset("record_size")
_RESERVED_AT: Final[i64] = ENVELOPE.offset("reserved")
_LISTPACK_SIZE_AT: Final[i64] = ENVELOPE.offset("listpack_size")


class Envelope:
    """A decoded envelope. Its checksum is checked, its listpack is not."""

    def __init__(
        self,
        number: int,
        ms: int,
        seq: int,
        epoch: int,
        commit_number: int,
        record: bytes,
        listpack: bytes,
        trimmed: bytes,
    ) -> None:
        self.number = number
        self.ms = ms
        self.seq = seq
        self.epoch = epoch
        self.commit_number = commit_number
        self.record = record
        self.listpack = listpack
        self.trimmed = trimmed


def encode_envelope(
    number: int,
    ms: int,
    seq: int,
    epoch: int,
    commit_number: int,
    record: bytes,
    listpack: bytes,
    trimmed: bytes,
) -> bytes:
    writer = BytesWriter()
    size = HEADER_SIZE + len(record) + len(listpack) + len(trimmed) + CHECKSUM_SIZE
    put_header(writer, size, number, ms, seq, epoch, commit_number, len(record), len(listpack))
    writer.write(record)
    writer.write(listpack)
    writer.write(trimmed)
    return close_envelope(writer)


def put_header(
    writer: BytesWriter,
    size: int,
    number: int,
    ms: int,
    seq: int,
    epoch: int,
    commit_number: int,
    record_size: int,
    listpack_size: int,
) -> None:
    """Append the header as `ENVELOPE` lays it out, for an envelope of `size` bytes."""
    writer.write(_START)
    write_i32_be(writer, low32(i64(size)))
    write_i64_be(writer, bits(number))
    write_i64_be(writer, bits(ms))
    write_i64_be(writer, bits(seq))
    write_i32_be(writer, low32(i64(epoch)))
    write_i64_be(writer, bits(commit_number))
    write_i16_be(writer, i16(record_size))
    write_i16_be(writer, 0)
    write_i32_be(writer, low32(i64(listpack_size)))


def close_envelope(writer: BytesWriter) -> bytes:
    """Return the envelope: the content of `writer` and its checksum."""
    content = writer.getvalue()
    return content + digest64(content)


def decode_envelope(value: bytes, where: str) -> Envelope:
    """Check and parse a stored envelope; raise CorruptionError with `where`."""
    size: i64 = len(value)
    if size < OVERHEAD:
        found = f"envelope of {len(value)} bytes"
        raise CorruptionError(where, f"{found}, expected at least {OVERHEAD}")
    if digest64(value[: size - CHECKSUM_SIZE]) != value[size - CHECKSUM_SIZE :]:
        problem = f"the checksum of this envelope of {len(value)} bytes does not match"
        raise ChecksumError(where, problem)
    reserved = u16_at(value, _RESERVED_AT)
    if value[: len(_START)] != _START or reserved != 0:
        found = f"magic {value[:3]!r} format {value[3]} reserved {int(reserved)}"
        raise CorruptionError(where, f"{found}, expected {MAGIC!r} {FORMAT} 0", offset=0)
    listpack_start = HEADER_SIZE + u16_at(value, _RECORD_SIZE_AT)
    trimmed_start = listpack_start + u32_at(value, _LISTPACK_SIZE_AT)
    if u32_at(value, _LENGTH_AT) != size or trimmed_start + CHECKSUM_SIZE > size:
        problem = f"the sizes in the envelope header do not add up to {len(value)} bytes"
        raise CorruptionError(where, problem, offset=4)
    number = read_i64_be(value, _NUMBER_AT)
    if number < 0:  # above LAST_NUMBER
        problem = f"stream number {unsigned(number)} is too high"
        raise CorruptionError(where, problem, offset=int(_NUMBER_AT))
    return Envelope(
        int(number),
        unsigned(read_i64_be(value, _MS_AT)),
        unsigned(read_i64_be(value, _SEQ_AT)),
        int(u32_at(value, _EPOCH_AT)),
        unsigned(read_i64_be(value, _COMMIT_AT)),
        value[HEADER_SIZE:listpack_start],
        value[listpack_start:trimmed_start],
        value[trimmed_start : size - CHECKSUM_SIZE],
    )


def envelope_length(raw: bytes, at: int) -> int:
    """Return the length that the envelope at `at` states; 0 if its header is truncated."""
    start: i64 = i64(at) + _LENGTH_AT
    return int(u32_at(raw, start)) if start + 4 <= len(raw) else 0


def split_block(raw: bytes, number: int, last_id: Id, where: str) -> list[Envelope]:
    """Return the envelopes of a block of a segment, which are back to back.

    Args:
        number: of the stream.
        last_id: the highest ID of the block.

    Raises:
        CorruptionError: with `where`: one of them is damaged, of another stream, has a record or
            a bitmap, or is out of order.
    """
    nodes: list[Envelope] = []
    size: i64 = len(raw)
    at: i64 = 0
    while at < size:
        length: i64 = i64(envelope_length(raw, int(at)))
        if length < OVERHEAD or at + length > size:
            problem = f"an envelope states {int(length)} bytes, {int(size - at)} are left"
            raise CorruptionError(where, problem, offset=int(at))
        found = decode_envelope(raw[at : at + length], where)
        if found.number != number or found.record or found.trimmed:
            shown = id_text(found.ms, found.seq).decode()
            problem = f"node {shown} is of another stream, or has a record or bitmap"
            raise CorruptionError(where, problem, offset=int(at))
        key = (found.ms, found.seq)
        if key > last_id or (nodes and key <= (nodes[-1].ms, nodes[-1].seq)):
            problem = f"node {id_text(found.ms, found.seq).decode()} is out of order"
            raise CorruptionError(where, problem, offset=int(at))
        nodes.append(found)
        at += length
    return nodes


def has_bitmap(value: bytes) -> bool:
    """Return whether a stored envelope has a bitmap, from its header alone."""
    if len(value) < OVERHEAD:
        return True  # damaged: `decode_envelope` reports it
    return len(value) > OVERHEAD + u16_at(value, _RECORD_SIZE_AT) + u32_at(value, _LISTPACK_SIZE_AT)


def counts_in(value: bytes) -> tuple[int, int]:
    """Return (live, tombstones) of the node in a stored envelope, without checking its checksum."""
    if len(value) < OVERHEAD:
        raise CorruptionError("macro node", f"envelope of {len(value)} bytes")
    start = HEADER_SIZE + u16_at(value, _RECORD_SIZE_AT)
    return peek_counts(value[start : start + _COUNTS])


def set_trimmed(bitmap: bytes, slots: list[int]) -> bytes:
    """Return the bitmap of trimmed slots with the bits of `slots` set."""
    if not slots:
        return bitmap
    bits = bytearray(bitmap)
    need = max(slots) // 8 + 1
    if len(bits) < need:
        bits.extend(bytes(need - len(bits)))
    for slot in slots:
        bits[slot // 8] |= 1 << slot % 8
    return bytes(bits)


def trimmed_slots(bitmap: bytes) -> set[int]:
    """Return the numbers of the slots whose bit is set."""
    return {slot for slot in range(len(bitmap) * 8) if bitmap[slot // 8] >> slot % 8 & 1}
