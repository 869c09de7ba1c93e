"""The methods of a store that concern its files: sync, archive, maintain, erase.

They may take long; asyncio's class runs each in a thread (`async_methods`). A stream is named by
its key. A deleted stream has a history but no key, and is named by its number, which
`archived_streams` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from streamkeep.engine.api.command_base import (
    Condition,
    Id,
    Key,
    RangeId,
    end_bound,
    start_bound,
    to_condition,
)
from streamkeep.engine.archive import adopt, archiver, maintenance, publish, restore, segments
from streamkeep.engine.commands.arguments import parse_ids, to_bytes, to_id_text
from streamkeep.engine.store.durability import Durability
from streamkeep.engine.system.files import path_of, place_of
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.manifest import list_segments, remote_setting
from streamkeep.engine.whole_store import erase
from streamkeep.format.core.durations import Duration, milliseconds
from streamkeep.format.core.entry import StreamId, Text
from streamkeep.format.core.errors import ArgumentError, CorruptionError
from streamkeep.format.core.values import as_given
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.remote import RemoteSetting
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, Segment

if TYPE_CHECKING:
    from streamkeep.engine.store.environment import Environment

PathLike = Path | str


class AdminCommands(Generic[Text]):
    """What a store can do with its files; a base of `Store`."""

    _environment: Environment
    _wait: bool
    _check_open: Callable[[], None]
    _check_writable: Callable[[], None]
    _collect_garbage: Callable[[], None]

    # --- durability -------------------------------------------------------------------------------

    def durability(self) -> Durability:
        """Return how far the store is on disk, and what its last recovery did."""
        self._check_open()
        with translated():
            return self._environment.durability()

    def sync(self) -> None:
        """Return when everything committed so far is on disk, in any sync mode.

        Raises:
            StoreError: the store was opened with readonly=True.
        """
        self._check_writable()
        self._environment.sync()

    def wait_shipped(self, timeout: Duration) -> bool:
        """Wait until a copy elsewhere has everything committed so far; see `streamkeep ship`.

        It waits for the next time that commits are shipped, and does not ask for it: see
        `ship_now`.

        Args:
            timeout: how long to wait at most; 0 only looks.

        Returns:
            Whether a target has it. If so, it survives this machine.

        Raises:
            StoreError: nothing ships the store.
        """
        self._check_open()
        wait_s = milliseconds(timeout, "timeout") / 1000
        return self._environment.wait_shipped(wait_s, self._environment.newest_commit(), ask=False)

    def ship_now(self, timeout: Duration = 30) -> bool:
        """As `wait_shipped`, but have the process that ships the store do so at once."""
        self._check_writable()
        wait_s = milliseconds(timeout, "timeout") / 1000
        return self._environment.wait_shipped(wait_s, self._environment.newest_commit(), ask=True)

    # --- trimmed entries --------------------------------------------------------------------------

    def maintain(self) -> maintenance.MaintenanceReport:
        """Enforce the retention of all streams and of their archives; return what was removed.

        Appends keep their own stream within its limits. This method is for streams without appends,
        for new settings, and for segments that are too old. It also removes expired messages of
        idempotent XADD. Its transactions are short, so that writers never wait for long.
        """
        self._check_writable()
        with translated():
            return maintenance.maintain(self._environment)

    def archive(
        self,
        *,
        wait: bool = True,
        options: archiver.ArchiveOptions = archiver.DEFAULT_OPTIONS,
        progress: Progress | None = None,
        to: PathLike | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        seal: bool = False,
    ) -> archiver.ArchiveReport:
        """Make segment files of everything that was trimmed from streams that archive.

        A segment is on disk before its entries are removed elsewhere. If the process is killed,
        each entry is in exactly one place. One archiver works on a store at a time, in any process.

        Args:
            wait: wait for another archiver, and then archive what it left; otherwise raise.
            options: target size, compression and the like.
            progress: called with the bytes done and the approximate bytes in all.
            to: a URI such as `s3://bucket/fleet`, or a folder. The store notes it, and keeps its
                archive there from now on, below its UUID: each segment is written there, read back
                and then removed here. Reads of the history fetch what they need.
            name, labels: what the archive there calls this store; noted as well.
            seal: also copy the live entries there, which stay in the store.

        Returns:
            the number of `entries` and `segments` that were written, and their sizes; and as
            `published` what was done at the URI, if the store has one.

        Raises:
            StoreLockedError: another archiver is at work, and `wait` is False.
            StoreFullError: no room on the disk; the trimmed entries stay in the store.
            UnreachableError: the object store does not answer. The segments are on the disk; the
                next call writes them there.
            StoreError: another copy of the store publishes to the same URI.
        """
        self._check_writable()
        to = None if to is None else place_of(to, "to")
        if name is not None and not isinstance(name, str):
            raise ArgumentError(f"name must be text, not {as_given(name)}")
        if labels is not None and not (
            isinstance(labels, Mapping)
            and all(isinstance(text, str) for pair in labels.items() for text in pair)
        ):
            raise ArgumentError(f"labels must be texts by name, not {as_given(labels)}")
        where = publish.Destination(to, name, labels)
        has_remote = to is not None or publish.has_remote(self._environment)
        if (seal or name is not None or labels) and not has_remote:
            raise ArgumentError(
                "seal, name and labels are for an archive that is kept under a URI; next: also "
                "give `to`"
            )
        with translated():
            wait = bool(wait)  # compiled code takes nothing else
            report = archiver.archive(self._environment, options, wait=wait, progress=progress)
            if has_remote:
                done = publish.publish(self._environment, where, seal=seal, wait=wait)
                report = report._replace(published=done)
        return report

    def remote_archive(self) -> RemoteSetting | None:
        """Return where the archive of the store is also kept; None for nowhere."""
        self._check_open()
        return self._environment.read(remote_setting)

    # --- segments ---------------------------------------------------------------------------------

    def archived_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: RangeId = "-",
        end: RangeId = "+",
    ) -> list[SegmentRecord]:
        """Return the segments of the archive, by stream and then ascending by ID.

        Args:
            key: only segments of this stream; by default of all, including deleted streams.
            stream_number: only segments of the stream that has or had this number.
            start, end: only segments that hold IDs of this range, as in `xrange`.

        Raises:
            NoSuchKeyError: there is no stream of this key.
        """
        self._check_open()
        low, high = self._bounds(start, end)
        number = self._archived_number(key, stream_number)
        with translated():
            return self._environment.read(list_segments, number, low, high)

    def archived_streams(self) -> list[segments.ArchivedStream]:
        """Return what the archive holds of each stream, and what waits for it.

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
            MissingSegmentError: the file is gone; by now, `archived_segments` may list another.
            CorruptionError: the file is not the segment that the archive knows.
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

        It yields a `Verified` for each: its `record`, and a list of `problems`, which is empty for
        an intact segment. Copies of live entries in an object store, which have `sealed`, follow.
        Nothing is changed.

        Args:
            progress: called with the bytes done and the bytes in all.
        """
        records = self.archived_segments(key, stream_number=stream_number)
        number = self._archived_number(key, stream_number)
        return segments.verify(self._environment, records, number, progress)

    def restore_archive(
        self,
        key: Key,
        source: Key | None = None,
        *,
        from_store: AdminCommands[bytes] | AdminCommands[str] | None = None,
        stream_number: int | None = None,
        start: RangeId = "-",
        end: RangeId = "+",
        progress: Progress | None = None,
    ) -> restore.RestoreReport:
        """Write archived entries into the stream `key`, with the IDs that they had.

        A missing stream is created. The stream must not have IDs above the first one to restore,
        unless it has exactly these entries; then nothing is changed. If it has exactly the first of
        them, the others are written. Erased entries are not restored. The entries are written in
        transactions of about a megabyte, so that other writers never wait for long. If the process
        dies, the same call continues, and writes each entry once.

        Args:
            source: the stream that the archive is of; by default the stream called `key` in the
                other store.
            from_store: the store with the archive; by default this one.
            stream_number: instead of `source`: the number of a stream, such as a deleted one.
            start, end: the range of IDs, as in `xrange`.
            progress: called with the entries done and the approximate number expected.

        Returns:
            the number of entries that this call wrote, the first and last ID, whether the stream
            had the first ones, and, if all entries were in the stream, their number as `already`.

        Raises:
            IdTooSmallError: the stream already has higher IDs, and not the same entries; nothing
                was changed.
            CommandError: the stream got new entries meanwhile.
            CorruptionError: a segment is missing or damaged; the entries before it are restored.
        """
        self._check_writable()
        target = to_bytes(key, "key")
        origin = self if from_store is None else from_store
        if not isinstance(origin, AdminCommands):
            raise ArgumentError(f"from_store must be a store, not {as_given(from_store)}")
        origin._check_open()
        low, high = self._bounds(start, end)
        named = None if stream_number is not None else (key if source is None else source)
        number = origin._archived_number(named, stream_number)
        assert number is not None
        with translated():
            where = origin._environment, number, self._environment, target, low, high
            return restore.restore(*where, wait=self._wait, progress=progress)

    def adopt_segments(
        self,
        *paths: PathLike,
        key: Key | None = None,
        progress: Progress | None = None,
        max_block_bytes: int = MAX_BLOCK_BYTES,
    ) -> Iterator[adopt.Adopted]:
        """Add segment files to the archive; yield the result for each.

        Each file is verified, copied below `archive/` unless it is there, and then part of the
        history. A file that the archive already has is skipped, so the same call may be repeated. A
        file that the archive lists but that was lost is put back.

        Args:
            paths: files, folders that are searched for `*.seg`, or URIs of the archives of
                stores: that of a fleet, a slash and the UUID.
            key: the stream that gets the segments, which is created if it is missing; by default
                the stream that each was written for.
            progress: called with the bytes done and the bytes in all.
            max_block_bytes: refuse a file with a block that is larger when decompressed. A block is
                decompressed as a whole, and a small file can hold gigabytes. Raise it for files
                that you trust and that have entries of this size.

        Raises:
            StoreError: a block is larger than max_block_bytes; files before it stay adopted.
            CorruptionError: a file is damaged; files before it stay adopted.
            CommandError: a segment overlaps entries that the stream has elsewhere.
        """
        self._check_writable()
        name = None if key is None else to_bytes(key, "key")
        places = [
            path if isinstance(path, str) and "://" in path else path_of(path, "a path")
            for path in paths
        ]
        with translated():
            yield from adopt.adopt(self._environment, places, name, progress, max_block_bytes)
        self._collect_garbage()

    def export_segments(
        self,
        folder: PathLike,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        start: RangeId = "-",
        end: RangeId = "+",
        progress: Progress | None = None,
    ) -> Iterator[Path]:
        """Copy verified segments into a folder; yield the path of each copy.

        `adopt_segments` adds them to another store. Programs can read them with
        `streamkeep.format.segment.segment`, or with zstd.

        Raises:
            CorruptionError: a segment is missing or damaged; the copies before it stay.
            StoreError: the folder has another file of that name, or cannot be one.
        """
        records = self.archived_segments(key, stream_number=stream_number, start=start, end=end)
        return segments.export(self._environment, records, path_of(folder, "folder"), progress)

    def drop_segments(
        self,
        key: Key | None = None,
        *,
        stream_number: int | None = None,
        before: RangeId | None = None,
    ) -> list[SegmentRecord]:
        """Remove the segments whose entries are all older than `before`; return their records.

        Their rows are removed in transactions of at most 256, and their files when these are on
        disk. A segment that also has newer entries stays whole.

        Args:
            key: only segments of this stream; by default of all, including deleted streams.
            before: an ID, or a time as in `xrange`; `+`, the default with a stream, drops all.

        Raises:
            ArgumentError: neither a stream nor `before` is given, which would drop everything.
            UnreachableError: the archive is kept in an object store, which does not answer. Nothing
                was removed, or the rest of the work is done by the next `archive`.
            StoreError: another copy of the store publishes to the same URI. Nothing was removed.
        """
        self._check_writable()
        if before is None:
            if key is None and stream_number is None:
                raise ArgumentError(
                    "drop_segments() without arguments would drop the archive of all streams; "
                    "next: name a stream, or give before, which is '+' for all segments"
                )
            before = "+"
        number = self._archived_number(key, stream_number)
        limit = start_bound("before", before, self._environment.context.clock.now_ms)
        every = before in ("+", b"+")
        with translated():
            records = self._environment.read(list_segments, number)
        return self._drop([one for one in records if every or one.last_id < limit])

    def _drop(self, doomed: list[SegmentRecord]) -> list[SegmentRecord]:
        """Remove these segments; return those that were still in the archive, unchanged."""
        with translated():
            if doomed:
                # Where this fails, nothing is removed; see `drop_segments`.
                with suppress(CorruptionError):  # a damaged segment may go as well
                    publish.publish(self._environment)
            dropped = segments.drop(self._environment, doomed)
            self._collect_garbage()
            if dropped:
                publish.publish(self._environment)
        return dropped

    # --- privacy ----------------------------------------------------------------------------------

    def erase(
        self, key: Key, *ids: Id, timeout: Duration = 60, progress: Progress | None = None
    ) -> int:
        """Delete entries and overwrite their bytes in every file of the store.

        Readers see an erased entry as one that XDEL deleted. On return its contents are in no node,
        journal file, free page, or unused part of a page. Backups, exported files, and copies that
        a file system or a disk keeps internally are out of reach. Entries that were deleted or
        trimmed before can be erased as well. Erasing includes what idempotent XADD remembers of an
        entry, but not its ID: pending entries of groups stay.

        All pages of the store are visited, so erase many entries at once rather than one by one.
        Other callers can read and write during the erasure; a writer waits for some tenths of a
        second at most.

        Args:
            ids: an entry that is not there is no error, and its remains are erased. Without IDs, an
                erasure that was cut off is finished.
            timeout: how long to wait for readers of older states of the store.
            progress: called with pages done, and pages in all.

        Returns:
            how many of the entries existed.

        Raises:
            ErasureBlockedError: a process, which the error names, still reads an older state. The
                entries are deleted; erase again, with or without IDs, to overwrite their bytes.
            StoreError: the store is open for reading only.
        """
        self._check_writable()
        wait_s = milliseconds(timeout, "timeout") / 1000  # used when the entries are deleted
        name = to_bytes(key, "key")
        parsed = parse_ids([to_id_text(one) for one in ids])
        self._collect_garbage()
        with translated():
            return erase.erase(self._environment, name, parsed, wait_s, progress)

    def find_remains(self, key: Key, where: Condition | None = None) -> list[StreamId]:
        """Return the IDs of all entries with these fields of which the store still has the bytes.

        Beside live and archived entries these are deleted and trimmed ones that are still in a
        node, also of deleted streams that had the key. All nodes and all blocks of segments of the
        stream are read. It is what an erasure has to erase, and afterwards its proof:

            store.erase(key, *store.find_remains(key, {"user": 42}))
            assert not store.find_remains(key, {"user": 42})

        Args:
            where: as for `scan`; None for all entries.

        Raises:
            MissingSegmentError, CorruptionError: a segment is lost or damaged, so that it cannot be
                searched.
        """
        self._check_open()
        wanted = {} if where is None else to_condition(where)
        with translated():
            found = erase.find_remains(self._environment, to_bytes(key, "key"), wanted)
        return [StreamId(*one) for one in found]

    def _bounds(self, start: RangeId, end: RangeId) -> tuple[tuple[int, int], tuple[int, int]]:
        now = self._environment.context.clock.now_ms
        return start_bound("start", start, now), end_bound("end", end, now)

    def _archived_number(self, key: Key | None, stream_number: int | None) -> int | None:
        """Return the number of the named stream; None for all streams."""
        if key is None or stream_number is not None:
            if key is not None:
                raise ArgumentError("give a key or a stream number, not both")
            given: object = stream_number
            if given is None or (
                isinstance(given, int) and not isinstance(given, bool) and 0 < given < 1 << 64
            ):
                return stream_number
            raise ArgumentError(
                f"stream_number must be one that `archived_streams` returns, not {as_given(given)}"
            )
        name = to_bytes(key, "key")
        return self._environment.read(lambda txn: existing_stream(txn, name).number)


def checked_record(record: object) -> SegmentRecord:
    """Return the record; raise ArgumentError for any other value."""
    if isinstance(record, SegmentRecord):
        return record
    raise ArgumentError(
        f"record must be one that `archived_segments` returns, not {as_given(record)}"
    )
