"""The files of a journal, and reading records through all of them.

The checksum of a record is seeded with that of the record before. So reading begins at a known log
position, such as that of a checkpoint, and ends where no record follows. Another process may write
to the files at the same time, and they may be cut or torn anywhere. Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, Protocol

from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.journal.journal import (
    FILE_HEADER,
    RECORD_HEADER,
    FileHeader,
    decode_file_header,
    find_record,
    first_chain,
    read_record,
    record_size,
)
from streamkeep.format.journal.position import LogPosition

JOURNAL_FOLDER: Final = "journal"
SUFFIX: Final = ".skj"
END: Final = bytes(RECORD_HEADER.size)  # follows the last record of a file
_WINDOW: Final = 1 << 18  # bytes of a file that are read at a time


def file_name(number: int) -> str:
    """Return the name of a journal file."""
    return f"{number:012d}{SUFFIX}"


def is_file_name(name: str) -> bool:
    """Return whether a name is one that `file_name` gives; of a copy somebody made, it is not."""
    digits = name.removesuffix(SUFFIX)
    # 18 digits: a number fits into 63 bits.
    return digits.isdecimal() and len(digits) <= 18 and name == file_name(int(digits))


def journal_names(folder: Folder) -> list[str]:
    """Return the names of the journal files, sorted."""
    return sorted(filter(is_file_name, folder.names()), key=named_number)


def journal_files(folder: Folder) -> dict[int, str]:
    """Return the journal files by the number in their headers, since a rename may be lost."""
    found: dict[int, str] = {}
    for name in journal_names(folder):
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            header = read_header(folder, name)
            found[named_number(name) if header is None else header.file_number] = name
    return dict(sorted(found.items()))


def named_number(name: str) -> int:
    """Return the number in the name of a journal file."""
    return int(name[: -len(SUFFIX)])


def highest_number(folder: Folder) -> int:
    """Return the highest number of a journal file, by name or header; 0 if there is no file."""
    names = [named_number(name) for name in journal_names(folder)]
    return max([*names, *journal_files(folder)], default=0)


def read_header(folder: Folder, name: str) -> FileHeader | None:
    """Return the header of a journal file; None if it has no valid one."""
    return decode_file_header(folder.read(name, FILE_HEADER.size))


class Identity(Protocol):
    """What journal files that belong together have in common."""

    @property
    def epoch(self) -> int: ...

    @property
    def store_uuid(self) -> bytes: ...


class Reader:
    """Reads records from a log position on, through all files of the journal."""

    def __init__(self, folder: Folder, owner: Identity, position: LogPosition) -> None:
        self.position = position
        self._folder = folder
        self._identity = (owner.epoch, owner.store_uuid)
        self._names = journal_files(folder)
        self._data = b""  # a part of a file
        self._loaded = -1  # the number of that file
        self._base = 0  # the offset of that part

    def next(self) -> bytes | None:
        """Return the body of the next record; None at the end of the journal."""
        position = self.position
        body = self._next_in(position)
        if body is None:
            number = position.file_number
            # Without a file number, no file was in use at this commit: any may have been begun.
            following = [number + 1] if number else list(self._names)
            for one in following:
                start = self._start_of(one)
                if body is None and start is not None and start[3] == position.commit_number:
                    body = self._next_in(start)
        return body

    def resume(self) -> bool:
        """Where `next` has ended at damage, go to the next record after it.

        Returns:
            Whether there is one. Its commit number may be higher by more than one.
        """
        position = self.position
        for number, name in self._names.items():
            header = read_header(self._folder, name)
            foreign = header is not None and self._start_of(number) is None
            if number < position.file_number or foreign:
                continue
            begin = position.offset
            if number > position.file_number:
                start = self._start_of(number)
                later = start is not None and start.commit_number > position.commit_number
                if start is not None and later and self._next_in(start) is not None:
                    self.position = start
                    return True
                begin = FILE_HEADER.size
            found = find_record(self._folder.read(name), begin, position.commit_number)
            if found is not None:
                self.position = LogPosition(number, *found)
                return True
        return False

    def _start_of(self, number: int) -> LogPosition | None:
        """Return the position of a file's first record; None if the file is not of this store."""
        name = self._names.get(number)
        header = None if name is None else read_header(self._folder, name)
        if header is None or (header.epoch, header.store_uuid) != self._identity:
            return None
        chain = first_chain(header.encode())
        return LogPosition(header.file_number, FILE_HEADER.size, chain, header.first_commit - 1)

    def _next_in(self, position: LogPosition) -> bytes | None:
        """Return the body of the record at a position, and move the position after it."""
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
        """Load `size` bytes from a position on; return False if the file ends before."""
        offset = position.offset
        if (
            self._loaded != position.file_number
            or offset < self._base
            or offset + size > self._base + len(self._data)
        ):
            try:
                with os.fdopen(self._folder.open(name), "rb") as file:
                    left = file.seek(0, os.SEEK_END) - offset
                    if size > left:
                        return False
                    file.seek(offset)
                    self._data = file.read(min(left, max(size, _WINDOW)))
            except FileNotFoundError:
                return False
            self._loaded = position.file_number
            self._base = offset
        return offset + size <= self._base + len(self._data)


def newest_commit(folder: Folder, owner: Identity) -> int:
    """Return a commit that the headers of the files show to have been made; 0 if there is none."""
    headers = [read_header(folder, name) for name in journal_files(folder).values()]
    identity = (owner.epoch, owner.store_uuid)
    return max(
        (
            header.first_commit - 1
            for header in headers
            if header is not None and (header.epoch, header.store_uuid) == identity
        ),
        default=0,
    )


def is_writable_at(folder: Folder, owner: Identity, position: LogPosition) -> bool:
    """Return whether records can be written at a position; its file may have been lost."""
    name = file_name(position.file_number)
    if folder.size(name) < position.offset + len(END):
        return False
    header = read_header(folder, name)
    return (
        header is not None
        and header.file_number == position.file_number
        and (header.epoch, header.store_uuid) == (owner.epoch, owner.store_uuid)
    )
