"""Checksums: XXH3-64 over the content of a value and its key.

A small row ends with the low 32 bits of XXH3-64 over key and body, seeded with the table's number
and the key's length. So a row under a wrong key, or in a wrong table, fails the check. Envelopes
contain their key themselves and end with all 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xxhash import xxh3_64_digest

from streamkeep.format.core.errors import ChecksumError

ROW_CHECKSUM_SIZE: Final = 4
_LOW: Final = 8 - ROW_CHECKSUM_SIZE  # digests are big-endian

digest64: Final[Callable[..., bytes]] = xxh3_64_digest


def row_checksum(table: int, db_key: bytes, body: bytes) -> bytes:
    """Return the four checksum bytes that end the row with this body and key."""
    return digest64(db_key + body, table | len(db_key) << 8)[_LOW:]


def with_checksum(table: int, db_key: bytes, body: bytes) -> bytes:
    return body + row_checksum(table, db_key, body)


def row_body(table: int, db_key: bytes, value: bytes, where: str) -> bytes:
    """Return the body of a stored row; raise ChecksumError with `where` if it is damaged."""
    body = value[:-ROW_CHECKSUM_SIZE]
    stored = value[len(body) :]
    if len(stored) != ROW_CHECKSUM_SIZE or stored != row_checksum(table, db_key, body):
        raise ChecksumError(where, f"the checksum of this row of {len(value)} bytes does not match")
    return body
