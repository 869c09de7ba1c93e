"""External sorting of pairs of numbers: sorted in pieces, which are kept in a temporary file.

Rows with names are sorted by name, but the rows that they refer to by number. To compare them
without keeping either in memory, the pairs are sorted here by number and merged with the other
table.
"""

from __future__ import annotations

import heapq
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Final

_PAIR: Final = struct.Struct("=QQ")
_PIECE: Final = 50_000  # pairs that are sorted in memory at a time
_READ: Final = 4096 * _PAIR.size

Pair = tuple[int, int]


class SortedPairs:
    """Pairs of numbers: added in any order, iterated in ascending order, any number of times."""

    def __init__(self) -> None:
        self._piece: list[Pair] = []
        self._runs: list[tuple[int, int]] = []  # offset and size of each piece in the file
        self._file: IO[bytes] | None = None

    def add(self, first: int, second: int = 0) -> None:
        self._piece.append((first, second))
        if len(self._piece) < _PIECE:
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed with this object
        self._piece.sort()
        data = b"".join(_PAIR.pack(*pair) for pair in self._piece)
        offset = self._file.seek(0, 2)
        self._file.write(data)
        self._runs.append((offset, len(data)))
        self._piece = []

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs in ascending order."""
        self._piece.sort()
        runs = [self._read(offset, size) for offset, size in self._runs]
        return heapq.merge(self._piece, *runs)

    def firsts(self) -> Ascending:
        """Return the first numbers of the pairs, for look-ups in ascending order."""
        return Ascending(first for first, _ in self)

    def _read(self, offset: int, size: int) -> Iterator[Pair]:
        assert self._file is not None
        end = offset + size
        while offset < end:
            self._file.seek(offset)
            data = self._file.read(min(_READ, end - offset))
            yield from _PAIR.iter_unpack(data)
            offset += len(data)


class Ascending:
    """Ascending numbers, for look-ups in ascending order."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._next: int | None = next(numbers, None)

    def has(self, number: int) -> bool:
        """Return whether a number is among them; no call may ask for less than the one before."""
        while self._next is not None and self._next < number:
            self._next = next(self._numbers, None)
        return self._next == number
