"""What files a journal consists of, and reading its records through all of them.

A record follows the one whose checksum seeds its own, so reading begins at a place that is known (a
checkpoint's) and ends where nothing follows. What is read may be written to meanwhile, and may be
cut or torn anywhere. Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, Protocol

from streamkeep.engine.journal.control_file import LogPosition
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.log.journal import (
    FILE_HEADER,
    RECORD_HEADER,
    FileHeader,
    decode_file_header,
    first_chain,
    read_record,
    record_size,
)

JOURNAL_FOLDER: Final = "journal"
SUFFIX: Final = ".skj"
END: Final = bytes(RECORD_HEADER.size)  # behind the last record of a file
_WINDOW: Final = 1 << 18  # how much of a file is read at a time


def file_name(number: int) -> str:
    """Return the name of a journal file."""
    return f"{number:012d}{SUFFIX}"


def journal_names(folder: Folder) -> list[str]:
    """Return the names of the journal's files, sorted."""
    return [name for name in folder.names() if name.endswith(SUFFIX)]


def journal_files(folder: Folder) -> dict[int, str]:
    """Return the journal's files by number, which their headers say: a rename may be lost."""
    found: dict[int, str] = {}
    for name in journal_names(folder):
        with contextlib.suppress(FileNotFoundError):  # another process needs it no longer
            header = read_header(folder, name)
            found[named_number(name) if header is None else header.file_number] = name
    return dict(sorted(found.items()))


def named_number(name: str) -> int:
    """Return the number that a journal file's name says."""
    return int(name[: -len(SUFFIX)])


def highest_number(folder: Folder) -> int:
    """Return the highest number of a journal file, by name or header; 0 when there is none."""
    names = [named_number(name) for name in journal_names(folder)]
    return max([*names, *journal_files(folder)], default=0)


def read_header(folder: Folder, name: str) -> FileHeader | None:
    """Return the header of a journal file; None when it has none."""
    return decode_file_header(folder.read(name, FILE_HEADER.size))


class Identity(Protocol):
    """What tells which journal files belong together."""

    @property
    def epoch(self) -> int: ...

    @property
    def store_uuid(self) -> bytes: ...


class Reader:
    """Reads records from a place on, through all files of the journal."""

    def __init__(self, folder: Folder, owner: Identity, position: LogPosition) -> None:
        self.position = position
        self._folder = folder
        self._identity = (owner.epoch, owner.store_uuid)
        self._names = journal_files(folder)
        self._data = b""  # of a file, from an offset on
        self._loaded = -1
        self._base = 0

    def next(self) -> bytes | None:
        """Return the body of the next record; None where the journal ends."""
        position = self.position
        body = self._next_in(position)
        if body is not None:
            return body
        name = self._names.get(position.file_number + 1)
        if name is None:
            return None
        header = read_header(self._folder, name)
        if (
            header is None
            or (header.epoch, header.store_uuid) != self._identity
            or header.first_commit != position.commit_number + 1
        ):
            return None
        return self._next_in(
            LogPosition(
                header.file_number,
                FILE_HEADER.size,
                first_chain(header.encode()),
                position.commit_number,
            )
        )

    def _next_in(self, position: LogPosition) -> bytes | None:
        """Return the body of the record at a place, and go behind it."""
        name = self._names.get(position.file_number)
        if name is None or not self._load(name, position, RECORD_HEADER.size):
            return None
        size = record_size(self._data, position.offset - self._base)
        if not self._load(name, position, size):
            return None
        record = read_record(self._data, position.offset - self._base, position.chain)
        if record is None or record.commit_number != position.commit_number + 1:
            return None
        self.position = LogPosition(
            position.file_number, self._base + record.end, record.chain, record.commit_number
        )
        return record.body

    def _load(self, name: str, position: LogPosition, size: int) -> bool:
        """Have `size` bytes from a place on in memory; False where the file ends before."""
        offset = position.offset
        if (
            self._loaded != position.file_number
            or offset < self._base
            or offset + size > self._base + len(self._data)
        ):
            try:
                with os.fdopen(self._folder.open(name), "rb") as file:
                    there = file.seek(0, os.SEEK_END) - offset
                    if size > there:
                        return False
                    file.seek(offset)
                    self._data = file.read(min(there, max(size, _WINDOW)))
            except FileNotFoundError:
                return False
            self._loaded = position.file_number
            self._base = offset
        return offset + size <= self._base + len(self._data)


def files_behind_gap(folder: Folder, owner: Identity, newest: int) -> dict[int, FileHeader]:
    """Return, by number, files that begin behind commits after the newest one that is known.

    Those commits were lost with the end of an earlier file; nothing follows without them.
    """
    found: dict[int, FileHeader] = {}
    for number, name in journal_files(folder).items():
        header = read_header(folder, name)
        if (
            header is not None
            and (header.epoch, header.store_uuid) == (owner.epoch, owner.store_uuid)
            and header.first_commit > newest + 1
        ):
            found[number] = header
    return found


def find_position(
    folder: Folder, owner: Identity, start: LogPosition, commit_number: int
) -> LogPosition | None:
    """Return the place behind a commit, read from a place before it; None when it is not there."""
    reader = Reader(folder, owner, start)
    while reader.position.commit_number < commit_number:
        if reader.next() is None:
            return None
    return reader.position


def is_there(folder: Folder, owner: Identity, position: LogPosition) -> bool:
    """Say whether a place is one that records can be written to: its file may have been lost."""
    name = file_name(position.file_number)
    if folder.size(name) < position.offset + len(END):
        return False
    header = read_header(folder, name)
    return (
        header is not None
        and header.file_number == position.file_number
        and (header.epoch, header.store_uuid) == (owner.epoch, owner.store_uuid)
    )
