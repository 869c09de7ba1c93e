"""Correcting a single damaged byte of a value, by trying all changes until the checksum matches.

A macro node has about a million possible changes of one byte. A wrong change passes its 64-bit
checksum with a probability of 1 in 10^13. Small rows have 32-bit checksums, so only single bits are
tried: the probability stays below 1 in 100,000, and the result must also be a valid row.

A value without a match is left as it is. Trying takes up to a second for a node, so the total time
is limited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.node.envelope import CHECKSUM_SIZE, OVERHEAD

_BITS_UP_TO: Final = 16_384  # maximum size of a value for trying all bits
_BYTES_UP_TO: Final = 4_096  # maximum size of a value for trying all bytes
_LIMIT_S: Final = 60.0


class ByteGuesser:
    """Corrects values until its time is used up.

    Attributes:
        corrected: number of values corrected so far.
    """

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self.corrected = 0
        self._left_s = limit_s

    def envelope(self, value: bytes) -> bytes | None:
        """Return an envelope with one byte changed so that its checksum matches; None if none."""
        if len(value) < OVERHEAD or len(value) > _BITS_UP_TO:
            return None
        body, stored = bytearray(value[:-CHECKSUM_SIZE]), value[-CHECKSUM_SIZE:]
        computed = digest64(bytes(body))
        if _one_byte_apart(computed, stored):
            return self._done(bytes(body) + computed)

        def matches() -> bool:
            return digest64(body) == stored

        found = self._try(body, matches, bytes_too=len(value) <= _BYTES_UP_TO)
        return self._done(bytes(body) + stored) if found else None

    def row(self, table: int, db_key: bytes, value: bytes) -> bytes | None:
        """Return a row with one bit changed so that its checksum matches; None if none does."""
        if not ROW_CHECKSUM_SIZE < len(value) <= _BYTES_UP_TO:
            return None
        body, stored = bytearray(value[:-ROW_CHECKSUM_SIZE]), value[-ROW_CHECKSUM_SIZE:]
        computed = row_checksum(table, db_key, bytes(body))
        if _one_bit_apart(computed, stored):
            return self._done(bytes(body) + computed)

        def matches() -> bool:
            return row_checksum(table, db_key, bytes(body)) == stored

        found = self._try(body, matches, bytes_too=False)
        return self._done(bytes(body) + stored) if found else None

    def _done(self, value: bytes) -> bytes:
        self.corrected += 1
        return value

    def _try(self, body: bytearray, matches: Callable[[], bool], *, bytes_too: bool) -> bool:
        """Change `body` until it matches; return whether it does, else leave it unchanged."""
        if self._left_s <= 0:
            return False
        began = time.perf_counter()
        try:
            if _any_change(body, matches, [1 << bit for bit in range(8)]):
                return True
            others = [mask for mask in range(1, 256) if mask & (mask - 1)]
            return bytes_too and _any_change(body, matches, others)
        finally:
            self._left_s -= time.perf_counter() - began


def _any_change(body: bytearray, matches: Callable[[], bool], masks: list[int]) -> bool:
    """Apply each mask to each byte until the value matches; return whether it does."""
    for at in range(len(body)):
        byte = body[at]
        for mask in masks:
            body[at] = byte ^ mask
            if matches():
                return True
        body[at] = byte
    return False


def _one_byte_apart(one: bytes, other: bytes) -> bool:
    return sum(_differences(one, other)) == 1


def _one_bit_apart(one: bytes, other: bytes) -> bool:
    return sum(bin(a ^ b).count("1") for a, b in zip(one, other, strict=True)) == 1


def _differences(one: bytes, other: bytes) -> Iterator[bool]:
    return (a != b for a, b in zip(one, other, strict=True))
