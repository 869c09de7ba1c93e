"""The records of a store's commits in order, read from its journal, also across recoveries.

A recovery raises the epoch, and the journal goes on in other files after the commit that it ended
with. So the records of an epoch count up to the first commit of the next one, and no further: what
the files have beyond that was not kept. Commits that no file has are a gap.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.engine.journal.reader import NOWHERE, Owner, Reader, journal_files, read_header
from streamkeep.engine.journal.slots import Slot
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.format.journal.journal import FileHeader, encode_record
from streamkeep.format.journal.position import LogPosition


class Gap(StreamkeepError):
    """The journal does not have the commits that follow."""


class Diverged(StreamkeepError):
    """The store has made other commits than the copy has."""


class History:
    """The records of a store from a position on.

    Attributes:
        epoch: that of the newest record which was read.
    """

    def __init__(
        self, folder: Folder, store_uuid: bytes, newest_epoch: int, epoch: int, start: LogPosition
    ) -> None:
        self._folder = folder
        self._store_uuid = store_uuid
        self._newest_epoch = newest_epoch
        self.epoch = epoch
        self._reader = Reader(folder, Owner(epoch, store_uuid), start)

    @property
    def position(self) -> LogPosition:
        """The position after the newest record that was read."""
        return self._reader.position

    def go_back(self, epoch: int, position: LogPosition) -> None:
        self.epoch = epoch
        self._reader.close()
        self._reader = Reader(self._folder, Owner(epoch, self._store_uuid), position)

    def read(self, end: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records up to a commit, which was made: their bytes in the journal, and bodies.

        The bytes of a file's first record come after the header of the file.

        Raises:
            Gap: the journal lacks one, or the store went back to an earlier commit.
        """
        self._reader.begin()
        while True:
            following = None if self.epoch == self._newest_epoch else self._following()
            last = end if following is None else min(end, following.first_commit - 1)
            if self.epoch != self._newest_epoch:
                # All or nothing: if the first file of the next epoch is gone, these records may
                # go further than what was kept of this one.
                self._check_reaches(last)
            yield from self._read(last)
            if self.position.commit_number > last:
                raise Gap(f"the store went back to commit {last}")
            if last == end:
                return
            assert following is not None
            at = NOWHERE._replace(
                chain=self.position.chain, commit_number=self.position.commit_number
            )
            self.go_back(following.epoch, at)

    def _read(self, last: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of this epoch up to a commit."""
        reader = self._reader
        while reader.commit_number < last:
            file_number = reader.number
            body = reader.next()
            header = b""
            if body is not None and reader.number != file_number:
                name = journal_files(self._folder).get(reader.number)
                found = None if name is None else read_header(self._folder, name)
                if found is None:
                    body = None
                else:
                    header = found.encode()
            if body is None:
                raise Gap(f"the journal has no record after commit {reader.commit_number}")
            yield header + encode_record(body, reader.chain), body

    def _check_reaches(self, last: int) -> None:
        """Raise Gap unless the records of this epoch go on up to a commit."""
        ahead = Reader(self._folder, Owner(self.epoch, self._store_uuid), self.position)
        while ahead.commit_number < last:
            if ahead.next() is None:
                raise Gap(f"the journal has no record after commit {ahead.commit_number}")

    def _following(self) -> FileHeader | None:
        """Return the header of the first journal file of the next epoch that has one."""
        later = [one for one in _headers(self._folder, self._store_uuid) if one.epoch > self.epoch]
        return min(later, key=lambda one: (one.epoch, one.first_commit), default=None)


def find_history(
    folder: Folder, store_uuid: bytes, epoch: int, slot: Slot, commit: int, chain: int
) -> History | None:
    """Return the history after a commit, if the journal proves that the store has made it.

    Args:
        epoch: the present one of the store.
        chain: the checksum of the record of that commit.

    Raises:
        Diverged: the journal proves that the store has made another one.
    """
    starts = [(slot.epoch, slot.position)]
    for header in _headers(folder, store_uuid):
        before = NOWHERE._replace(commit_number=header.first_commit - 1)
        starts.append((header.epoch, before))
    for began, start in starts:
        if start.commit_number > commit:
            continue
        history = History(folder, store_uuid, epoch, began, start)
        try:
            for _ in history.read(commit):
                pass
        except Gap:
            continue
        found = history.position
        if found.commit_number == commit and found.chain == chain:
            return history
        if found.commit_number == commit and found.chain:  # 0: before a file; it is not known
            raise Diverged(f"the store has another commit {commit}")
    return None


def _headers(folder: Folder, store_uuid: bytes) -> list[FileHeader]:
    """Return the headers of the journal files of a store, the newest first."""
    found = []
    for name in journal_files(folder).values():
        try:
            header = read_header(folder, name)
        except FileNotFoundError:
            continue  # a checkpoint has just retired it
        if header is not None and header.store_uuid == store_uuid:
            found.append(header)
    return sorted(found, key=lambda one: (one.epoch, one.first_commit), reverse=True)
