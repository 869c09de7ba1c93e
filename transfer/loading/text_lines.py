"""Lines of a text file, none of them longer than a limit.

A line must fit into memory as a whole, and its parsed form takes up to forty times its size. A
compressed file of a few kilobytes may hold a line of gigabytes. The limit is therefore below the
size that an entry may have; a caller with such entries raises it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from streamkeep.format.humanize import size_text

MAX_LINE: Final = 16 << 20
BOM: Final = b"\xef\xbb\xbf"
BOMS_OF_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


class RowError(Exception):
    """A part of a file that cannot be loaded: which part, what is wrong, and what to do.

    `load` makes a LoadError of it, which also says how much is in the store.
    """

    def __init__(
        self, line: int | None, problem: str, *, hint: str = "", unit: str = "line"
    ) -> None:
        """Describe a problem.

        Args:
            line: the number of the line or row, from 1 on; None for the file as a whole.
            unit: "line" or "row".
        """
        super().__init__(problem)
        self.line = line
        self.hint = hint
        self.unit = unit

    @property
    def place(self) -> str:
        """The part of the file, as it follows the name of the file in a message."""
        return "" if self.line is None else f" {self.unit} {self.line}"


def too_long(line: int, limit: int) -> RowError:
    """Return the error of a line beyond the limit."""
    hint = f"max_line={2 * limit} takes lines twice as long, and twice the memory"
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
        self._stream = stream
        self._limit = limit
        self._record = 0  # bytes since the last record ended
        self._number = 0
        self._began = 1

    def __iter__(self) -> Iterator[str]:
        """Yield each line."""
        for data in bounded_lines(self._stream, self._limit):
            line = data.removeprefix(BOM) if self._number == 0 else data
            if line.endswith(b"\n") and line.find(b"\r", 0, -2) < 0:
                yield self._taken(line)
                continue
            for part in line.splitlines(keepends=True) or [b""]:
                yield self._taken(part)

    def _taken(self, part: bytes) -> str:
        self._number += 1
        self._record += len(part)
        if self._record > self._limit:
            raise too_long(self._began, self._limit)
        return part.decode("utf-8", "surrogateescape")

    def end_record(self) -> None:
        """Begin to count the bytes of the next record."""
        self._record = 0
        self._began = self._number + 1
