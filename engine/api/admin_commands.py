"""The methods of a store that concern its files: sync, archive, maintain, erase.

They may take long; asyncio's class runs each in a thread (`async_methods`). A stream is named by
its key. One that was deleted has a history but no key, and is named by its number, which
`archived_streams` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from streamkeep.engine.admin import erase
from streamkeep.engine.api.command_base import Id, Key
from streamkeep.engine.archive import adopt, archiver, maintenance, restore, segments
from streamkeep.engine.checkpoint.durability import Durability
from streamkeep.engine.commands.arguments import (
    as_given,
    parse_ids,
    range_end,
    range_start,
    to_bytes,
    to_id_text,
)
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError, NoSuchKeyError
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, Segment

if TYPE_CHECKING:
    from streamkeep.engine.store.environment import Environment

PathLike = Path | str
Progress = Callable[[int, int], None]


class AdminCommands(Generic[Text]):
    """What a store can do with its files; a base of `Store`."""

    _environment: Environment
    _wait: bool

    def _check_open(self) -> None:
        raise NotImplementedError

    def _check_writable(self) -> None:
        raise NotImplementedError

    def _collect_garbage(self) -> None:
        raise NotImplementedError

    # --- durability -------------------------------------------------------------------------------

    def durability(self) -> Durability:
        """Return how far the store is on disk, and what its last recovery did."""
        self._check_open()
        return self._environment.durability()

    def sync(self) -> None:
        """Return when everything committed so far is on disk, whatever the sync mode.

        Raises:
            StoreError: the store was opened with readonly=True.
        """
        self._check_writable()
        self._environment.sync()

    # --- trimmed entries --------------------------------------------------------------------------

    def maintain(self) -> maintenance.MaintenanceReport:
        """Enforce the retention of all streams, and of their archives; return what went.

        Appends keep their own stream within its limits; this is for streams that nobody appends
        to, for settings that are new, and for segments that are too old. Also forget messages of
        idempotent XADD that have expired. Transactions are bounded, so that writers are never held
        for long.
        """
        self._check_writable()
        with translated():
            report = maintenance.maintain(self._environment)
        if report.dropped:
            self._collect_garbage()
        return report

    def archive(
        self,
        *,
        wait: bool = True,
        options: archiver.ArchiveOptions = archiver.DEFAULT_OPTIONS,
        progress: Progress | None = None,
    ) -> archiver.ArchiveReport:
        """Make segment files of everything that was trimmed from streams that archive.

        A segment is on disk, whole, before anything is removed elsewhere: killed at any moment,
        each entry is in exactly one place. One archiver works at a time, whichever process it is
        in.

        Args:
            wait: for another archiver, and then do what it has left; else raise.
            options: target size, compression and the like.
            progress: called with the bytes done and the bytes in all, about.

        Returns:
            how many `entries` and `segments` were written, and their sizes.

        Raises:
            StoreLockedError: another archiver is at work, and `wait` is False.
            StoreFullError: no room on the disk; what is retired stays so.
        """
        self._check_writable()
        with translated():
            return archiver.archive(self._environment, options, wait=wait, progress=progress)

    # --- segments ---------------------------------------------------------------------------------

    def archived_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: Id = "-",
        end: Id = "+",
    ) -> list[SegmentRecord]:
        """Return the segments of the archive, by stream and then ascending by ID.

        Args:
            key: only those of this stream; without it also those of deleted streams.
            stream_number: only those of the stream that has or had this number.
            start, end: only those that hold IDs of this range, as in `xrange`.

        Raises:
            NoSuchKeyError: there is no stream of this key.
        """
        self._check_open()
        low, high = range_start(start), range_end(end)
        number = self._archived_number(key, stream_number)
        with translated():
            return self._environment.read(segments.list_segments, number, low, high)

    def archived_streams(self) -> list[segments.ArchivedStream]:
        """Return what the archive holds of each stream, and what it is about to get.

        Deleted streams keep their segments, and are listed with `exists` False.
        """
        self._check_open()
        with translated():
            return self._environment.read(segments.list_streams)

    def open_segment(self, record: SegmentRecord) -> Segment:
        """Return a segment to read from: its index, and its blocks of macro nodes.

        Args:
            record: one of `archived_segments`.

        Raises:
            ArgumentError: `record` is something else.
            MissingSegmentError: the file is gone; `archived_segments` may list another by now.
            CorruptionError: it is not the segment that the archive knows.
        """
        self._check_open()
        return self._environment.segments.open(checked_record(record))

    def verify_archive(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        progress: Progress | None = None,
    ) -> Iterator[segments.Verified]:
        """Read segments to the last byte, and compare each with the manifest.

        Yields a `Verified` for each: its `record`, and a list of `problems`, empty when it is
        whole. Nothing is changed.

        Args:
            progress: called with the bytes done and the bytes in all.
        """
        records = self.archived_segments(key, stream_number=stream_number)
        return segments.verify(self._environment, records, progress)

    def restore_archive(
        self,
        key: Key,
        source: Key | None = None,
        *,
        from_store: AdminCommands[bytes] | AdminCommands[str] | None = None,
        stream_number: int | None = None,
        start: Id = "-",
        end: Id = "+",
        progress: Progress | None = None,
    ) -> restore.RestoreReport:
        """Write archived entries into the stream `key`, with the IDs that they had.

        The stream is created when it is missing; it must not have IDs above the first one to be
        restored, unless it has exactly these entries: then nothing is changed. What was erased does
        not come back. The entries come in transactions of about a megabyte, so that others are
        never kept waiting. When the process dies, the same call goes on where it was; each entry
        comes once.

        Args:
            source: the stream whose archive it is; by default the one called `key`, which then is
                in another store.
            from_store: the store with the archive; by default this one.
            stream_number: instead of `source`: the number of the stream, for deleted ones.
            start, end: the range of IDs, as in `xrange`.
            progress: called with the entries done and those expected, about.

        Returns:
            how many entries this call wrote, from which ID to which, whether it went on with an
            earlier call, and how many were there `already`, when that is all of them.

        Raises:
            IdTooSmallError: the stream has higher IDs already, and not the same entries; nothing
                was changed.
            CommandError: another restore into the stream is unfinished, or the stream was
                appended to since.
            CorruptionError: a segment is missing or damaged; the entries before it are restored.
        """
        self._check_writable()
        origin = self if from_store is None else from_store
        origin._check_open()
        low, high = range_start(start), range_end(end)
        named = None if stream_number is not None else (key if source is None else source)
        number = origin._archived_number(named, stream_number)
        assert number is not None
        with translated():
            return restore.restore(
                origin._environment,
                number,
                self._environment,
                to_bytes(key),
                low,
                high,
                wait=self._wait,
                progress=progress,
            )

    def adopt_segments(
        self,
        *paths: PathLike,
        key: Key | None = None,
        progress: Progress | None = None,
        max_block_bytes: int = MAX_BLOCK_BYTES,
    ) -> Iterator[adopt.Adopted]:
        """Take segment files into the archive that it does not know; yield what became of each.

        Each is verified, copied below `archive/` unless it is there already, and part of the
        history from then on. Files that the archive has already are passed over, so the same call
        may be made again; one that it knows, and whose file is gone, takes its place again.

        Args:
            paths: files, or folders that are searched for `*.seg`.
            key: the stream that they are to belong to, which is created when it is missing; by
                default the one that they were written for.
            progress: called with the bytes done and the bytes in all.
            max_block_bytes: refuse a file with a block that takes more when it is decompressed. A
                block is decompressed as a whole, and a small file can hold gigabytes; raise it for
                files that you trust, with entries as large as this.

        Raises:
            StoreError: a block takes more than max_block_bytes; files before it stay adopted.
            CorruptionError: a file is damaged; those before it stay adopted.
            CommandError: a segment overlaps what the stream has elsewhere.
        """
        self._check_writable()
        name = None if key is None else to_bytes(key)
        places = [Path(path) for path in paths]
        with translated():
            yield from adopt.adopt(self._environment, places, name, progress, max_block_bytes)
        self._collect_garbage()

    def export_segments(
        self,
        folder: PathLike,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: Id = "-",
        end: Id = "+",
        progress: Progress | None = None,
    ) -> Iterator[Path]:
        """Copy verified segments into a folder; yield the path of each copy.

        `adopt_segments` takes them into another store; programs read them with
        `streamkeep.format.segment.segment`, or with zstd.

        Raises:
            CorruptionError: a segment is missing or damaged; copies made before it stay.
            StoreError: the folder has a file of that name already.
        """
        records = self.archived_segments(key, stream_number=stream_number, start=start, end=end)
        return segments.export(self._environment, records, Path(folder), progress)

    def drop_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        before: Id = "+",
    ) -> list[SegmentRecord]:
        """Remove segments for good, whose entries are all older than `before`; return them.

        The rows go in transactions of at most 256, and the files when those are on disk. A segment
        that also has entries from `before` on stays whole.

        Args:
            key: only segments of this stream; without it of all streams, deleted ones too.
            before: an ID, or a time in Unix milliseconds; `+` drops all.
        """
        self._check_writable()
        number = self._archived_number(key, stream_number)
        limit = range_start(before)
        every = before in ("+", b"+")
        with translated():
            records = self._environment.read(segments.list_segments, number, (0, 0), range_end("+"))
            doomed = [one for one in records if every or one.last_id < limit]
            dropped = segments.drop(self._environment, doomed)
            self._collect_garbage()
        return dropped

    # --- privacy ----------------------------------------------------------------------------------

    def erase(
        self,
        key: Key,
        *ids: Id,
        timeout: float = 60.0,
        progress: Progress | None = None,
    ) -> int:
        """Delete entries and overwrite their bytes in every file of the store.

        To readers an erased entry is one that XDEL deleted. On return its contents stand in no
        node, journal file, free page, or unused part of a page. Backups, exported files, and what
        a file system or a disk keeps aside are out of reach. Entries that were deleted or trimmed
        before are erased, too, and what idempotent XADD remembers of them. IDs alone are no
        contents: what groups have pending stays.

        All pages of the store are visited, so erase many entries at once rather than one by one.
        Others read and write meanwhile; a writer waits for a tenth of a second at most.

        Args:
            ids: entries that are not there are no error, and their remains are erased. Without
                any, an erasure that was cut off is finished.
            timeout: how many seconds to wait for readers of older states of the store.
            progress: called with pages done, and pages in all.

        Returns:
            how many of the entries were there until now.

        Raises:
            ErasureBlockedError: somebody still reads an older state; it says who. The entries are
                deleted, and erasing again, with or without their IDs, overwrites their bytes.
            StoreError: the store is open for reading only.
        """
        self._check_writable()
        name = to_bytes(key)
        parsed = parse_ids([to_id_text(one) for one in ids])
        self._collect_garbage()
        with translated():
            return erase.erase(self._environment, name, parsed, timeout, progress)

    def _archived_number(self, key: Key | None, stream_number: int | None) -> int | None:
        """Return the number of the stream that is meant; None for all."""
        if key is None or stream_number is not None:
            if key is not None:
                raise ArgumentError("give a key or a stream number, not both")
            given: object = stream_number
            if given is None or (
                isinstance(given, int) and not isinstance(given, bool) and 0 < given < 1 << 64
            ):
                return stream_number
            raise ArgumentError(
                f"stream_number must be one that `archived_streams` gives, not {as_given(given)}"
            )
        name = to_bytes(key)

        def find(txn: Txn) -> int:
            stream = txn.find_stream(name)
            return 0 if stream is None else stream.number

        number = self._environment.read(find)
        if number == 0:
            raise NoSuchKeyError("no such key")
        return number


def checked_record(record: object) -> SegmentRecord:
    """Return the record; raise ArgumentError for any other value."""
    if isinstance(record, SegmentRecord):
        return record
    raise ArgumentError(
        f"record must be one that `archived_segments` returns, not {as_given(record)}"
    )
