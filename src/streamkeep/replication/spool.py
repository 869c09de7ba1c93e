"""Bytes that came from the server and are not applied yet: in memory, then in files without names.

A server keeps what a replica has not taken in its own memory, and disconnects one for which that
becomes too much; the replica must then begin anew. So everything is taken as fast as it comes.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, Final

_MEMORY: Final = 16 << 20  # bytes in memory, before files are used
_FILE: Final = 64 << 20  # bytes of one file; what it held is free when all of it was taken
_PIECE: Final = 1 << 20


class Spool:
    """A queue of bytes between two threads.

    Attributes:
        size: bytes in it.
        came: Unix time at which the bytes came that `take` returned last, or up to a second before.
    """

    def __init__(self, folder: Path, most: int) -> None:
        """Keep up to `most` bytes; files are in `folder`, and gone when the process ends."""
        self._folder = folder
        self._most = most
        self._changed = threading.Condition()
        self._pieces: deque[bytes] = deque()  # the oldest, as many as fit into memory
        self._in_memory = 0
        self._files: deque[tuple[IO[bytes], int, int]] = deque()  # read up to, written up to
        self._ended: BaseException | None = None
        self._taken = 0
        self._times: deque[tuple[int, float]] = deque()  # bytes that had been put, at a time
        self.size = 0
        self.came = 0.0

    def room(self) -> int:
        """Return how many bytes `put` takes."""
        return self._most - self.size

    def put(self, data: bytes) -> bool:
        """Append bytes; return False where there would be too many.

        Raises:
            OSError: a file cannot be written.
        """
        with self._changed:
            if self.size + len(data) > self._most:
                return False
            if self._files or self._in_memory + len(data) > _MEMORY:
                self._write(data)
            else:
                self._pieces.append(data)
                self._in_memory += len(data)
            now = time.time()
            if not self._times or not 0 <= now - self._times[-1][1] < 1:
                self._times.append((self._taken + self.size, now))
            self.size += len(data)
            self._changed.notify()
            return True

    def _write(self, data: bytes) -> None:
        if not self._files or self._files[-1][2] >= _FILE:
            self._files.append((tempfile.TemporaryFile(dir=self._folder, buffering=0), 0, 0))  # noqa: SIM115
        file, read, written = self._files[-1]
        file.seek(written)
        view = memoryview(data)
        while view:
            count = file.write(view)
            assert count is not None
            view = view[count:]
        self._files[-1] = file, read, written + len(data)

    def end(self, error: BaseException) -> None:
        """Let `take` raise this error when all bytes were taken."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify()

    def take(self, wait_s: float) -> bytes:
        """Return some bytes, after a wait if there are none yet; b"" if none came.

        Raises:
            BaseException: what `end` was given.
        """
        with self._changed:
            if not self.size and self._ended is None:
                self._changed.wait(wait_s)
            if self._pieces:
                data = self._pieces.popleft()
                self._in_memory -= len(data)
            elif self._files:
                data = self._read()
            elif self._ended is not None:
                raise self._ended
            else:
                return b""
            while len(self._times) > 1 and self._times[1][0] <= self._taken:
                self._times.popleft()
            self.came = self._times[0][1]
            self._taken += len(data)
            self.size -= len(data)
            return data

    def _read(self) -> bytes:
        file, read, written = self._files[0]
        file.seek(read)
        data = file.read(min(_PIECE, written - read))
        read += len(data)
        self._files[0] = file, read, written
        if read == written:
            self._files.popleft()
            file.close()
        return data

    def close(self) -> None:
        with self._changed:
            for file, _, _ in self._files:
                file.close()
            self._files.clear()
            self._pieces.clear()
