"""Segment files: opened by their row of the manifest, read with pread, a few kept open.

A row and its file are written at different times, and a file may be removed while it is read: a
drop or an erasure removes the row from the manifest first, and the file later. So a reader with the
manifest of a snapshot may find a file missing or empty although nothing is wrong. The rule for
callers: on `CorruptionError` (`MissingSegmentError` is one), look at the *newest* manifest. If it
no longer names this file, renew the snapshot and read on; otherwise raise the error.

A store may keep its archive in an object store (`remote_archive`). A file that is not below
`archive/` is then read from there, through a cache of bounded size. The file on the disk comes
first: it is removed only after its copy there was verified.

A file stays open as long as there is a reference to its `Segment`, even after it has left the
cache. So no descriptor is closed, and reused for another file, while a reader has it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from streamkeep.engine.remote.remote_archive import ChunkCache, RemoteArchive, check_means
from streamkeep.engine.system.lmdb_errors import NO_DESCRIPTORS, translate_os
from streamkeep.engine.system.locks import make_reentrant_lock
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError, MissingSegmentError
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.remote import HEAD
from streamkeep.format.segment.segment import Segment

ARCHIVE_FOLDER: Final = "archive"
ARCHIVE_LOCK: Final = "lock"  # the file of `archive.lock`
_MOST_OPEN: Final = 16


class SegmentFile:
    """An open file; `read_at` is what a `Segment` reads through."""

    def __init__(self, handle: int, where: str) -> None:
        """Take over the descriptor of a file; it is closed with the object."""
        self._handle = handle
        self._where = where
        self.size = os.fstat(self._handle).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from an offset, fewer at the end of the file."""
        data = b""
        try:
            while len(data) < size:  # the kernel returns at most 2 GiB at once
                more = os.pread(self._handle, size - len(data), offset + len(data))
                if not more:
                    break
                data = data + more if data else more
        except OSError as error:
            problem = f"{size} bytes cannot be read: {error.strerror}"
            raise CorruptionError(self._where, problem, offset=offset) from error
        return data

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def stored_name(path: str) -> str:
    """Return the name in the folder of a store of a file that a row of the manifest names."""
    return f"{ARCHIVE_FOLDER}/{path}"


def open_segment(path: Path, *, max_block_bytes: int | None = None) -> Segment:
    """Open a segment file that the caller has named, in a store or not; links are followed.

    Args:
        max_block_bytes: the most bytes of a decompressed block. A file that the manifest does not
            name may be hostile. See `Segment.open`.

    Raises:
        MissingSegmentError: the file is missing.
        CorruptionError: it cannot be read, or is not a whole segment.
        StoreError: the process has no descriptor left.
        FormatVersionError: a newer version of Streamkeep wrote it.
    """
    return _open(lambda: open_named(path), f"segment {path}", max_block_bytes)


def open_named(path: Path) -> int:
    """Open a file that the caller has named, to read it; never wait for a named pipe."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def open_stored(
    store: Folder, path: str, where: str | None = None, *, max_block_bytes: int | None = None
) -> Segment:
    """Open a segment file in the archive of a store, whether a manifest names it or not.

    Args:
        path: of the file below `archive/`.
        max_block_bytes: as of `open_segment`.

    Raises:
        UntrustedFileError: it is not a regular file, or a user who is not trusted owns it.
        Others as `open_segment`.
    """
    name = stored_name(path)
    return _open(lambda: store.open(name), where or f"segment {store.path / name}", max_block_bytes)


def _open(open_file: Callable[[], int], where: str, max_block_bytes: int | None) -> Segment:
    try:
        file = SegmentFile(open_file(), where)
        return Segment.open(file.read_at, file.size, where, max_block_bytes)
    except FileNotFoundError:
        raise MissingSegmentError(where, "the file is not there") from None
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:  # the file may be as sound as any
            raise translate_os(error) from error
        raise CorruptionError(where, f"it cannot be read: {error.strerror}") from error


def open_archived(
    store: Folder,
    record: SegmentRecord,
    remote: Callable[[], RemoteArchive | None],
    cache: ChunkCache | None = None,
) -> Segment:
    """Open the segment of a row, on the disk or else in the object store of the archive.

    Args:
        remote: returns where the archive of the store is also kept; called if the file is not
            on the disk.
        cache: for what is read from there.

    Raises:
        MissingSegmentError: it is in neither place.
        UnreachableError: it is not on the disk, and the object store does not answer.
        Others as `open_stored`.
    """
    try:
        return open_stored(store, record.path, record.where)
    except MissingSegmentError:
        elsewhere = remote()
        if elsewhere is None:
            raise
    try:
        return elsewhere.open(record, cache=cache)
    except MissingSegmentError:
        problem = f"the file is neither on the disk nor at {elsewhere.uri}"
        if elsewhere.objects.size(elsewhere.name(HEAD)) is None:
            problem += ", where there is no archive; next: mount the disk, or bring that place back"
        raise MissingSegmentError(record.where, problem) from None


class SegmentFiles:
    """The segments of one store, by their rows; safe to share between threads."""

    def __init__(
        self,
        store: Folder,
        most_open: int = _MOST_OPEN,
        remote: Callable[[], RemoteArchive | None] = lambda: None,
    ) -> None:
        """Take the folder of a store, which need not have an archive.

        Args:
            most_open: files that are kept open without a reader.
            remote: returns where the archive of the store is also kept.
        """
        self.store = store
        self.remote = remote
        self._most_open = most_open
        self._chunks = ChunkCache()
        self._open: OrderedDict[str, Segment] = OrderedDict()
        self._lock = make_reentrant_lock("segment files")

    def path(self, record: SegmentRecord) -> Path:
        return self.store.path / stored_name(record.path)

    def open(self, record: SegmentRecord) -> Segment:
        """Return the segment of a row, ready to read.

        Raises:
            MissingSegmentError: the file is not there.
            CorruptionError: it is not whole, or is not the segment of the row.
        """
        with self._lock:
            segment = self._open.get(record.path)
            if segment is not None and segment.checksum == record.checksum:
                self._open.move_to_end(record.path)
                return segment
        segment = self.open_uncached(record)
        with self._lock:
            self._open[record.path] = segment
            self._open.move_to_end(record.path)
            while len(self._open) > self._most_open:
                self._open.popitem(last=False)
        return segment

    def open_uncached(self, record: SegmentRecord) -> Segment:
        """Do what `open` does, and look at the file again if it is open."""
        segment = open_archived(self.store, record, self.remote, self._chunks)
        check_means(record, segment)
        return segment

    def forget(self, path: str) -> None:
        """Forget a file that will be removed, so that its blocks on the disk become free."""
        with self._lock:
            self._open.pop(path, None)
        self._chunks.forget(path)

    def close(self) -> None:
        with self._lock:
            self._open.clear()
        self._chunks.forget("")
