"""The file that is loaded: a path or an open file, compressed with gzip or not."""

from __future__ import annotations

import gzip
import io
import os
import stat
import zlib
from contextlib import ExitStack
from typing import Any, BinaryIO, Final

from streamkeep.format.core.errors import LoadError

_BUFFER: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"

# What reading a damaged gzip file raises.
DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile)


class CountingReader(io.RawIOBase):
    """A file that counts the bytes that were read of it, for the progress."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._read = getattr(source, "read1", source.read)  # of a pipe, what is there already
        self.done = 0

    def readable(self) -> bool:
        """Say that this can be read."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read what is there into `buffer`."""
        view = memoryview(buffer)  # type: ignore[arg-type]  # any writable buffer
        data: bytes = self._read(len(view))
        view[: len(data)] = data
        self.done += len(data)
        return len(data)


def open_rows(source: CountingReader) -> io.BufferedReader[Any]:
    """Return the contents of a file, decompressed when its first bytes are those of gzip."""
    buffered: io.BufferedReader[Any] = io.BufferedReader(source, _BUFFER)
    if buffered.peek(2)[:2] == _GZIP_MAGIC:
        return io.BufferedReader(gzip.GzipFile(fileobj=buffered), _BUFFER)
    return buffered


class SourceFile:
    """The file that is loaded.

    Attributes:
        name: as messages name it.
        size: in bytes; None for a pipe.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO, name: str | None) -> None:
        """Open a file, unless it is open; raise OSError where it cannot be."""
        self._stack = ExitStack()
        if isinstance(source, (str, os.PathLike)):
            self._file: BinaryIO = self._stack.enter_context(open(source, "rb"))  # noqa: SIM115
            self.name = name or os.fspath(source)
        else:
            self._file = source
            given = getattr(source, "name", None)
            self.name = name or (given if isinstance(given, str) else "the file")
        self._counting = CountingReader(self._file)
        self.size = _size_of(self._file)

    def __enter__(self) -> SourceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def done(self) -> int:
        """How many bytes were read."""
        return self._counting.done

    def contents(self) -> io.BufferedReader[Any]:
        """Return the contents, decompressed where the first bytes are those of gzip."""
        try:
            return open_rows(self._counting)
        except OSError as error:
            problem = f"{self.name}: {error.strerror or error}"
            raise LoadError(problem, source=self.name) from error

    def seekable(self) -> BinaryIO:
        """Return the file itself for Parquet, which is read from its end."""
        if not self._file.seekable():
            problem = f"{self.name}: Parquet is read from a file, not from a pipe"
            raise LoadError(problem, source=self.name)
        return self._file


def _size_of(file: BinaryIO) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except (OSError, AttributeError):  # not a file of the system
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
