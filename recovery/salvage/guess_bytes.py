"""Correcting a single damaged byte of a value, by trying all changes until the checksum matches.

A macro node has about a million possible changes of one byte. A wrong change passes its 64-bit
checksum with a probability of 1 in 10^13. Small rows have 32-bit checksums, so only single bits are
tried: the probability stays below 1 in 100,000, and the result must also be a valid row.

A value without a match is left as it is. Trying takes up to a second for a node, so the total time
is limited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.node.envelope import CHECKSUM_SIZE, OVERHEAD

_BITS_UP_TO: Final = 16_384  # maximum size of a value for trying all bits
_BYTES_UP_TO: Final = 4_096  # maximum size of a value for trying all bytes
_LIMIT_S: Final = 60.0
_BITS: Final = [1 << bit for bit in range(8)]
_OTHERS: Final = [mask for mask in range(1, 256) if mask not in _BITS]


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
        if not OVERHEAD <= len(value) <= _BITS_UP_TO:
            return None
        masks = _BITS + _OTHERS if len(value) <= _BYTES_UP_TO else _BITS
        return self._try(value, CHECKSUM_SIZE, digest64, masks, range(1, 256))

    def row(self, table: int, db_key: bytes, value: bytes) -> bytes | None:
        """Return a row with one bit changed so that its checksum matches; None if none does."""
        if not ROW_CHECKSUM_SIZE < len(value) <= _BYTES_UP_TO:
            return None

        def checksum(body: bytearray) -> bytes:
            return row_checksum(table, db_key, bytes(body))

        return self._try(value, ROW_CHECKSUM_SIZE, checksum, _BITS, _BITS)

    def _try(
        self,
        value: bytes,
        size: int,
        checksum: Callable[[bytearray], bytes],
        masks: list[int],
        of_checksum: Iterable[int],
    ) -> bytes | None:
        """Change a byte of the checksum, or of the bytes before it, by each of some masks."""
        body, stored = bytearray(value[:-size]), value[-size:]
        right = checksum(body)
        differences = [a ^ b for a, b in zip(right, stored, strict=True) if a != b]
        if len(differences) == 1 and differences[0] in of_checksum:
            self.corrected += 1
            return bytes(body) + right
        if self._left_s <= 0:
            return None
        began = time.perf_counter()
        try:
            for mask in masks:
                for at in range(len(body)):
                    body[at] ^= mask
                    if checksum(body) == stored:
                        self.corrected += 1
                        return bytes(body) + stored
                    body[at] ^= mask
            return None
        finally:
            self._left_s -= time.perf_counter() - began
