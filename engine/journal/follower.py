"""Following the journal: reading the records that other processes have published.

A published record never changes, so reading needs no lock. A file is no longer needed after a
checkpoint, and may then be removed or used again; a record that is read from it has the wrong
checksum. Compiled by mypyc.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from streamkeep.engine.journal.reader import (
    Identity,
    file_name,
    journal_names,
    named_number,
    read_header,
)
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.journal.journal import (
    FILE_HEADER,
    RECORD_HEADER,
    first_chain,
    read_record,
    record_size,
)
from streamkeep.format.journal.position import LogPosition

_WINDOW: Final = 4096  # bytes that are read first; a record of an append has about 200
_MOST_WINDOW: Final = 1 << 18


class Owner(NamedTuple):
    """The store that journal files belong to."""

    epoch: int
    store_uuid: bytes


class Follower:
    """The log position up to which this process knows the commits, and the records after it.

    Attributes:
        number: the number of the journal file; 0 if none was in use.
        offset: where the next record begins in it.
        chain: the checksum of the record before.
        commit_number: the newest commit that this process knows; -1 for none.
    """

    def __init__(self, folder: Folder, owner: Identity) -> None:
        self.number = 0
        self.offset = 0
        self.chain = 0
        self.commit_number = -1
        self._folder = folder
        self._owner = owner
        self._handle = -1
        self._opened = 0  # the number of the file that is open
        self._data = b""  # a part of it
        self._base = 0  # the offset of that part
        self._window = _WINDOW

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        self._opened = 0
        self._data = b""
        if handle >= 0:
            os.close(handle)

    def position(self) -> LogPosition:
        """Return the log position after the newest commit that this process knows."""
        return LogPosition(self.number, self.offset, self.chain, self.commit_number)

    def go_to(self, number: int, offset: int, chain: int, commit_number: int) -> None:
        """Go on from another log position."""
        self.number = number
        self.offset = offset
        self.chain = chain
        self.commit_number = commit_number

    def begin(self) -> None:
        """Read the files anew: others have written to them."""
        self._data = b""
        self._window = _WINDOW

    def next(self) -> bytes | None:
        """Return the body of the next record, and move the position after it.

        Returns:
            None if it cannot be found: it was not published, or it is needed no longer.
        """
        body = self._next_in(self.number, self.offset, self.chain)
        if body is None and self._opened:
            self.close()  # a process may have begun the file again, after a commit that failed
            body = self._next_in(self.number, self.offset, self.chain)
        return self._next_in_later() if body is None else body

    def _next_in_later(self) -> bytes | None:
        """Return the body of the next record if it is the first of another file."""
        owner = self._owner
        for name in journal_names(self._folder):
            if named_number(name) < self.number:  # one may have been begun again
                continue
            try:
                header = read_header(self._folder, name)
            except FileNotFoundError:
                continue  # a checkpoint has just retired it
            if (
                header is None
                or header.first_commit != self.commit_number + 1
                or (header.epoch, header.store_uuid) != (owner.epoch, owner.store_uuid)
            ):
                continue
            body = self._next_in(header.file_number, FILE_HEADER.size, first_chain(header.encode()))
            if body is not None:
                return body
        return None

    def _next_in(self, number: int, offset: int, chain: int) -> bytes | None:
        """Return the body of the record at a place, and move the position after it."""
        if not self._load(number, offset, RECORD_HEADER.size):
            return None
        if not self._load(number, offset, record_size(self._data, offset - self._base)):
            return None
        record = read_record(self._data, offset - self._base, chain)
        if record is None or record.commit_number != self.commit_number + 1:
            return None
        self.go_to(number, self._base + record.end, record.chain, record.commit_number)
        return record.body

    def _load(self, number: int, offset: int, size: int) -> bool:
        """Load `size` bytes of a file; return False if it ends before."""
        if number == 0:
            return False
        if self._opened != number:
            self.close()
            try:
                self._handle = self._folder.open(file_name(number))
            except FileNotFoundError:
                return False
            self._opened = number
        end = self._base + len(self._data)
        if offset < self._base or offset + size > end:
            if size > self._window and offset + size > os.fstat(self._handle).st_size:
                return False  # no header of a record
            self._data = os.pread(self._handle, max(size, self._window), offset)
            self._base = offset
            self._window = min(4 * self._window, _MOST_WINDOW)
            end = offset + len(self._data)
        return offset + size <= end
