"""Lines of a text file, none of them longer than a limit.

A line has to be in memory whole, and what is parsed from it takes up to forty times its size. A
compressed file of a few kilobytes may hold a line of gigabytes, so that there is a limit below what
an entry may have; whoever has such entries raises it by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from streamkeep.format.shown import size_text

MAX_LINE: Final = 16 << 20
MAX_LINE_OPTION: Final = "--max-line"
_BOM: Final = b"\xef\xbb\xbf"


class RowError(Exception):
    """A line that is no entry: which, what is wrong, and where there is one a hint."""

    def __init__(self, line: int, problem: str, *, hint: str = "") -> None:
        super().__init__(problem)
        self.line = line
        self.hint = hint


def too_long(line: int, limit: int) -> RowError:
    """Return the error of a line beyond the limit."""
    twice = f"{limit >> 19}M" if limit >= 1 << 20 else str(2 * limit)
    hint = f"{MAX_LINE_OPTION} {twice} takes lines twice as long, and as much more memory"
    return RowError(line, f"longer than {size_text(limit)}, the limit of a line", hint=hint)


def bounded_lines(stream: BinaryIO, limit: int, start: bytes = b"") -> Iterator[bytes]:
    """Yield the lines of a stream with their ends; raise RowError for one beyond the limit.

    Args:
        start: what was already read of the first line.
    """
    number = 0
    while data := start + stream.readline(limit + 1 - len(start)):
        start = b""
        number += 1
        if len(data) > limit:
            raise too_long(number, limit)
        yield data


class TextLines:
    """The lines of a stream as text, for the CSV reader; a record of several lines is bounded, too.

    A line ends with CR, LF, or both. Bytes that are not UTF-8 become surrogates.
    """

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._lines = bounded_lines(stream, limit)
        self._limit = limit
        self._parts: list[bytes] = []
        self._record = 0  # bytes since the last record ended
        self._number = 0
        self._began = 1

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Return the next line."""
        if not self._parts:
            data = next(self._lines)
            if self._number == 0:
                data = data.removeprefix(_BOM)
            self._parts = data.splitlines(keepends=True)[::-1] or [b""]
        part = self._parts.pop()
        self._number += 1
        self._record += len(part)
        if self._record > self._limit:
            raise too_long(self._began, self._limit)
        return part.decode("utf-8", "surrogateescape")

    def end_record(self) -> None:
        """Note that a record has ended."""
        self._record = 0
        self._began = self._number + 1
