"""Put right what one damaged byte has done: find it by trying.

A checksum says that something is wrong, not where. But there are few ways to change one byte, and
the right one is told by the same checksum: of the million ways to change a byte of a macro node,
one that is wrong passes 64 bits with a chance of 1 in 10^13. Small rows have 32 bits; only single
bits are tried there, so that the chance stays below 1 in 100,000, and what was found must be a
sound row besides.

Nothing is guessed: what cannot be proven is left alone. Trying costs up to a second for a node, so
that there is a limit to the time that is spent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.node.envelope import CHECKSUM_SIZE, OVERHEAD

_BITS_UP_TO: Final = 16_384  # bytes of a value whose bits are tried
_BYTES_UP_TO: Final = 4_096  # bytes of a value all whose bytes are tried
_LIMIT_S: Final = 60.0


class Mender:
    """Tries to put values right, until it has spent its time."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self.mended = 0
        self._left_s = limit_s

    def envelope(self, value: bytes) -> bytes | None:
        """Return an envelope with one byte changed so that its checksum holds; None for none."""
        if len(value) < OVERHEAD or len(value) > _BITS_UP_TO:
            return None
        body, stored = bytearray(value[:-CHECKSUM_SIZE]), value[-CHECKSUM_SIZE:]
        computed = digest64(bytes(body))
        if _one_byte_apart(computed, stored):
            return self._done(bytes(body) + computed)

        def holds() -> bool:
            return digest64(body) == stored

        found = self._try(body, holds, bytes_too=len(value) <= _BYTES_UP_TO)
        return self._done(bytes(body) + stored) if found else None

    def row(self, table: int, db_key: bytes, value: bytes) -> bytes | None:
        """Return a row with one bit changed so that its checksum holds; None for none."""
        if not ROW_CHECKSUM_SIZE < len(value) <= _BYTES_UP_TO:
            return None
        body, stored = bytearray(value[:-ROW_CHECKSUM_SIZE]), value[-ROW_CHECKSUM_SIZE:]
        computed = row_checksum(table, db_key, bytes(body))
        if _one_bit_apart(computed, stored):
            return self._done(bytes(body) + computed)

        def holds() -> bool:
            return row_checksum(table, db_key, bytes(body)) == stored

        found = self._try(body, holds, bytes_too=False)
        return self._done(bytes(body) + stored) if found else None

    def _done(self, value: bytes) -> bytes:
        self.mended += 1
        return value

    def _try(self, body: bytearray, holds: Callable[[], bool], *, bytes_too: bool) -> bool:
        """Change `body` until it holds; say whether it does, else leave it as it was."""
        if self._left_s <= 0:
            return False
        began = time.perf_counter()
        try:
            if _any_change(body, holds, [1 << bit for bit in range(8)]):
                return True
            others = [mask for mask in range(1, 256) if mask & (mask - 1)]
            return bytes_too and _any_change(body, holds, others)
        finally:
            self._left_s -= time.perf_counter() - began


def _any_change(body: bytearray, holds: Callable[[], bool], masks: list[int]) -> bool:
    for place in range(len(body)):
        byte = body[place]
        for mask in masks:
            body[place] = byte ^ mask
            if holds():
                return True
        body[place] = byte
    return False


def _one_byte_apart(one: bytes, other: bytes) -> bool:
    return sum(_differences(one, other)) == 1


def _one_bit_apart(one: bytes, other: bytes) -> bool:
    return sum(bin(a ^ b).count("1") for a, b in zip(one, other, strict=True)) == 1


def _differences(one: bytes, other: bytes) -> Iterator[bool]:
    return (a != b for a, b in zip(one, other, strict=True))
