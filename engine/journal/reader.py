"""The files of a journal, and reading records through all of them: for followers and recovery.

The checksum of a record is seeded with that of the record before. So reading begins at a known log
position, such as that of a checkpoint, and ends where no record follows. Another process may write
to the files at the same time, and they may be cut or torn anywhere. A published record never
changes, so reading needs no lock. A file that is needed no longer may be removed or used again; a
record that is read from it has the wrong checksum. Compiled by mypyc.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final, NamedTuple

from streamkeep.engine.system import files
from streamkeep.engine.system.lmdb_errors import translate_os
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.journal import journal
from streamkeep.format.journal.checkpoint import CheckpointSlot
from streamkeep.format.journal.position import LogPosition

NOWHERE: Final = LogPosition(0, 0, 0, -1)
JOURNAL_FOLDER: Final = "journal"
SUFFIX: Final = ".skj"
_MOST_FILES: Final = 1 << 30  # a number and an offset fit into 63 bits
_HEADER_SIZE: Final[int] = journal.RECORD_HEADER.size
END: Final = bytes(_HEADER_SIZE)  # follows the last record of a file
_WINDOW: Final = 4096  # bytes that are read first; a record of an append has about 200
_MOST_WINDOW: Final = 1 << 18


def file_name(number: int) -> str:
    return f"{number:012d}{SUFFIX}"


def is_file_name(name: str) -> bool:
    """Return whether a name is one that `file_name` gives; of a copy somebody made, it is not."""
    digits = name.removesuffix(SUFFIX)
    if not digits.isdecimal() or len(digits) > 12 or name != file_name(int(digits)):
        return False
    return int(digits) < _MOST_FILES


def journal_names(folder: Folder) -> list[str]:
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
    return int(name[: -len(SUFFIX)])


def read_header(folder: Folder, name: str) -> journal.FileHeader | None:
    """Return the header of a journal file; None if it has no valid one."""
    return journal.decode_file_header(folder.read(name, journal.FILE_HEADER.size))


class Owner(NamedTuple):
    """The store that journal files belong to."""

    epoch: int
    store_uuid: bytes


class Reader:
    """Reads records from a log position on, through all files of the journal.

    Attributes:
        folder: that of the journal.
        number: the number of the journal file; 0 if none was in use.
        offset: where the next record begins in it.
        chain: the checksum of the record before.
        commit_number: the newest commit that was read; -1 for none.
        owner: the store and epoch that the files must be of.
    """

    def __init__(
        self, folder: Folder, owner: Owner | CheckpointSlot, position: LogPosition = NOWHERE
    ) -> None:
        self.go_to(*position)
        self.folder = folder
        self.owner = owner
        self._handle = -1
        self._opened = 0  # the number of the file that is open
        self._data = b""  # a part of it
        self._base = 0  # the offset of that part
        self._window = _WINDOW

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        self._opened = 0
        self._data = b""
        if handle >= 0:
            os.close(handle)

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.number, self.offset, self.chain, self.commit_number)

    def go_to(self, number: int, offset: int, chain: int, commit_number: int) -> None:
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
            None if it cannot be found: there is none yet, it is damaged, or it is needed no longer.

        Raises:
            StoreError: a file cannot be read, as without a descriptor.
        """
        try:
            body = self._next_in("", self.number, self.offset, self.chain)
            if body is None:
                for name in journal_names(self.folder):
                    start = self.start_of(name)
                    if (
                        start is not None
                        and start.file_number >= self.number
                        and start.commit_number == self.commit_number
                    ):
                        body = self._next_in(name, start.file_number, start.offset, start.chain)
                        if body is not None:
                            break
        except OSError as error:
            raise translate_os(error) from error
        return body

    def start_of(self, name: str) -> LogPosition | None:
        """Return the position of a file's first record; None if the file is not of this store."""
        try:
            header = read_header(self.folder, name)
        except FileNotFoundError:
            return None  # a checkpoint has just retired it
        owner = self.owner
        if header is None or (header.epoch, header.store_uuid) != (owner.epoch, owner.store_uuid):
            return None
        chain = journal.first_chain(header.encode())
        return LogPosition(
            header.file_number, journal.FILE_HEADER.size, chain, header.first_commit - 1
        )

    def _next_in(self, name: str, number: int, offset: int, chain: int) -> bytes | None:
        """Return the body of the record at a place, and move the position after it.

        Args:
            name: that of the file, if a lost rename has left it another one than that of its
                number.
        """
        record = None
        if self._opened == number and self._base <= offset < self._base + len(self._data):
            record = journal.read_record(self._data, offset - self._base, chain)
        if record is None:  # it is not loaded, or there is none
            if not self._load(name, number, offset, _HEADER_SIZE):
                return None
            size = journal.record_size(self._data, offset - self._base)
            if not self._load(name, number, offset, size):
                return None
            record = journal.read_record(self._data, offset - self._base, chain)
        if record is None or record.commit_number != self.commit_number + 1:
            return None
        self.go_to(number, self._base + record.end, record.chain, record.commit_number)
        return record.body

    def _load(self, name: str, number: int, offset: int, size: int) -> bool:
        """Load `size` bytes of a file; return False if it ends before."""
        if number == 0:
            return False
        if self._opened != number:
            self.close()
            try:
                self._handle = self.folder.open(name or file_name(number))
            except FileNotFoundError:
                return False
            files.read_nothing_ahead(self._handle)
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


def newest_commit(folder: Folder, owner: Owner | CheckpointSlot) -> int:
    """Return a commit that the headers of the files show to have been made; 0 if there is none."""
    reader = Reader(folder, owner)
    starts = [reader.start_of(name) for name in journal_names(folder)]
    return max([start.commit_number for start in starts if start is not None], default=0)


def is_writable_at(folder: Folder, owner: Owner | CheckpointSlot, position: LogPosition) -> bool:
    """Return whether records can be written at a position; its file may have been lost."""
    name = file_name(position.file_number)
    start = Reader(folder, owner).start_of(name)
    if start is None or start.file_number != position.file_number:
        return False
    with contextlib.suppress(OSError), folder.opened(name, os.O_RDWR) as handle:
        size = os.fstat(handle).st_size
        files.reserve(handle, size)
        return size >= position.offset + len(END)
    return False
