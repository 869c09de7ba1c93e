"""The payload of Redis's DUMP for a stream, of type 19 and RDB version 10: that of Redis 7.0.

    type u8 | value | rdb-version u16 LE | crc64 u64 LE

    value   nodes: number, then for each the 16 bytes of its key and its listpack, as strings
            length, last_id, first_id, max_deleted_id, entries_added
            groups: number (here always 0)

Strings are written raw and numbers as lengths, which every version reads.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_STREAM = 19
RDB_VERSION = 10
FOOTER = 10  # bytes: the version and the checksum

_POLYNOMIAL = 0x95AC9329AC4BC9B5  # CRC-64 "Jones", bits reversed


class StreamValue(NamedTuple):
    """What a payload says of a stream."""

    nodes: list[tuple[tuple[int, int], bytes]]  # key and listpack
    length: int
    last_id: tuple[int, int]
    first_id: tuple[int, int]
    max_deleted_id: tuple[int, int]
    entries_added: int


def dump_stream(value: StreamValue) -> bytes:
    parts = [bytes([TYPE_STREAM]), _length(len(value.nodes))]
    for (ms, seq), listpack in value.nodes:
        parts.append(_string(ms.to_bytes(8, "big") + seq.to_bytes(8, "big")))
        parts.append(_string(listpack))
    parts.append(_length(value.length))
    for one in (value.last_id, value.first_id, value.max_deleted_id):
        parts += [_length(one[0]), _length(one[1])]
    parts += [_length(value.entries_added), _length(0)]
    body = b"".join(parts) + RDB_VERSION.to_bytes(2, "little")
    return body + crc64(body).to_bytes(8, "little")


def crc64(data: bytes) -> int:
    """Return the CRC-64 "Jones" that ends a payload."""
    crc = 0
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def _length(number: int) -> bytes:
    """Return a number as RDB writes lengths: 6, 14, 32 or 64 bits."""
    if number < 1 << 6:
        return bytes([number])
    if number < 1 << 14:
        return (number | 1 << 14).to_bytes(2, "big")
    if number < 1 << 32:
        return b"\x80" + number.to_bytes(4, "big")
    return b"\x81" + number.to_bytes(8, "big")


def _string(text: bytes) -> bytes:
    return _length(len(text)) + text
