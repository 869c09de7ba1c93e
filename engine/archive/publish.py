"""Keeping the archive of a store under a URI: `archive run --to`.

The objects and what is always true of them are described in `format/segment/remote.py`. One
publication, under the archive's lock, does this:

1. Read the newest head and manifest; without a head, the manifest whose version is noted. A head
   of a higher version than this store has written was written by another copy of the store: then
   nothing is changed. The first publication notes the URI before it writes there.
2. Write each segment that is not there yet, and read it back: every byte is compared with its
   checksums. Only then may a manifest name it.
3. Write the manifest, commit its version to `meta`, then write the head; both are read back.
4. Remove the local copies of the segments that the manifest names.
5. Remove objects that no manifest names any more: segments that were erased or dropped, and
   manifests before the last one; manifests last, so that more than one means that objects may be
   left.

An archive that moves takes its sealed segments along, before step 2: nothing in the store names
them. What is at the URI before stays there.

A process that is killed between two steps has lost nothing: before step 4 the files are also on the
disk, and the next publication begins with step 1. Steps 2 and 5 may be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, NamedTuple

from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.archive.remote_head import RemoteHead
from streamkeep.engine.archive.sealed_segments import SealedSegments
from streamkeep.engine.commands.keys import former_name, names_from
from streamkeep.engine.remote.object_store import check_outside, normal_uri
from streamkeep.engine.remote.remote_archive import check_checksums, check_means, remote_archive
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.tables.manifest import (
    iter_erasures,
    iter_segments,
    put_remote_setting,
    remote_setting,
)
from streamkeep.engine.tables.scan import rows_with
from streamkeep.engine.tables.segment_files import open_archived, stored_name
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.core.errors import CorruptionError, MissingSegmentError, UnreachableError
from streamkeep.format.core.id_codec import MAX
from streamkeep.format.core.keys import NODES, RETIRED, pack_number, unpack_node_key
from streamkeep.format.rows.retired import is_former_name
from streamkeep.format.segment import remote
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import Segment

_AT_ONCE: Final = 8  # objects written or removed at the same time
_KEPT_MANIFESTS: Final = 2  # the newest, and the one that a reader may just have found


log = logging.getLogger("streamkeep")


class Destination(NamedTuple):
    """Where an archive is to be kept; None leaves what the store has noted."""

    uri: str | None = None
    name: str | None = None
    labels: Mapping[str, str] | None = None


class PublishReport(NamedTuple):
    """The result of a publication.

    Attributes:
        uri: of the archive; None if the store keeps none elsewhere.
        version: of the head.
        uploaded, uploaded_bytes: segments that were written there.
        sealed, sealed_entries: segments with copies of live entries that were written, and the
            entries in them that no segment had before.
        freed_bytes: size of the local copies that were removed.
        removed: objects that were removed.
        missing: segments that the archive names and that are nowhere, and sealed ones that are
            lost and have more entries than the store; the manifest lacks them.
        moved_from: where the archive was before, if it has moved. Nothing is removed there.
    """

    uri: str | None = None
    version: int = 0
    uploaded: int = 0
    uploaded_bytes: int = 0
    sealed: int = 0
    sealed_entries: int = 0
    freed_bytes: int = 0
    removed: int = 0
    missing: tuple[SegmentRecord, ...] = ()
    moved_from: str | None = None


def publish(
    environment: Environment,
    destination: Destination = Destination(),  # noqa: B008  # immutable
    *,
    seal: bool = False,
    progress: Progress | None = None,
    wait: bool = True,
) -> PublishReport:
    """Bring the archive at a store's URI up to date; do nothing if the store has none.

    Args:
        destination: noted in the store, if it says anything.
        seal: also copy live entries, which stay in the store.
        wait: wait for an archiver that is at work; otherwise raise.

    Raises:
        StoreLockedError: an archiver is at work, and `wait` is False.
        UnreachableError: the object store does not answer. Nothing is lost; call again.
        StoreError: another copy of this store has published to the same URI.
        CorruptionError: a segment is damaged. Those before it are published at the next call.
        ArgumentError: the URI is not supported.
    """
    if destination.uri is None and not has_remote(environment):
        return PublishReport()
    with ArchiveLock(environment, wait=wait):
        noted = environment.read(remote_setting)
        setting = _setting(environment, noted, destination)
        if setting is None:
            return PublishReport()
        return _Publication(environment, noted, setting, progress).run(seal)


def has_remote(environment: Environment) -> bool:
    return environment.read(remote_setting) is not None


def sealed_streams(environment: Environment) -> dict[int, set[bytes]]:
    """Return the keys under which streams with sealed segments are known, by stream number.

    The manifest is the one with which the next publication begins, which may have no head. The
    caller has the archive's lock.
    """
    archive, setting = environment.remote_archive(), environment.read(remote_setting)
    found: dict[int, set[bytes]] = {}
    if archive is not None and setting is not None:
        head = RemoteHead(environment, archive, setting, setting)
        _, manifest = head.manifest_before(archive.head())
        for record, sealed in manifest.segments:
            if sealed:
                known = found.setdefault(record.stream_number, set())
                known.add(record.key)
                if record.stream_number in manifest.streams:
                    known.add(manifest.streams[record.stream_number].key)
    return found


def _setting(
    environment: Environment, noted: remote.RemoteSetting | None, destination: Destination
) -> remote.RemoteSetting | None:
    """Return the setting to use; None for a store without one."""
    uri = None if destination.uri is None else normal_uri(destination.uri)
    if uri is not None:
        check_outside(uri, environment.path)
    if noted is None:
        if uri is None:
            return None
        noted = remote.RemoteSetting(uri, environment.path.name, {}, 0)
    elif uri is not None and uri != noted.uri:
        noted = noted._replace(uri=uri, version=0)
    name = noted.name if destination.name is None else destination.name
    return noted._replace(name=name, labels={**noted.labels, **(destination.labels or {})})


class _Publication:
    """One publication; the caller has the archive's lock."""

    def __init__(
        self,
        environment: Environment,
        noted: remote.RemoteSetting | None,
        setting: remote.RemoteSetting,
        progress: Progress | None,
    ) -> None:
        self.environment = environment
        self.noted = noted
        self.setting = setting
        self.progress = progress
        modes = environment.folder.modes
        self.remote = remote_archive(setting, str(environment.uuid), modes)
        # Where segments are that are not on the disk, if they are to move.
        self.source = self.remote
        if noted is not None and noted.uri != setting.uri:
            self.source = remote_archive(noted, str(environment.uuid))
        moved_from = None if self.source is self.remote else self.source.uri
        self.head = RemoteHead(environment, self.remote, noted, setting)
        self.report = PublishReport(self.remote.uri, moved_from=moved_from)

    def run(self, seal: bool) -> PublishReport:
        head = self.remote.head()
        self.head.check(head)
        if self.noted is None:  # before the first object: an erasure must know where they are
            self.environment.write(put_remote_setting, self.setting, wait=True, frees=True)
        moved = self.source is not self.remote
        removed: list[SegmentRecord] = []
        if moved:
            last, version, before, removed = self._take_along()
        else:
            last, (version, before) = head, self.head.manifest_before(head)
        sealed_ms = None if last is None else last.sealed_ms
        ranges = [one for one in self.setting.removed if one.version >= version]
        streams, records = self.environment.read(streams_of, before, ranges)
        folder = self.environment.folder
        local = {one.path for one in records if folder.exists(stored_name(one.path))}
        # Where the head is lost, more may be.
        there = set() if head is None else {one.name for one in before.segments}
        missing = self._upload(records, local, there)
        archived = [remote.RemoteSegment(one, False) for one in records if one not in missing]
        copies = SealedSegments(self.environment, self.remote, before, records)
        lost = copies.seal_again(streams, missing) if seal or moved else []
        copies.leave_out_removed(removed, ranges)
        copies.drop_covered(missing)
        copies.leave_out_erased()
        if seal:
            sealed_ms = self.environment.context.clock.now_ms()
            streams = copies.seal(streams)
            self.report = self.report._replace(
                sealed=copies.written, sealed_entries=copies.new_entries
            )
        manifest = remote.Manifest(streams, remote.in_order(iter([*archived, *copies.segments])))
        failpoints.hit("publish:uploaded")
        renamed = head is not None and (head.name, head.labels) != (
            self.setting.name,
            self.setting.labels,
        )
        kept = 1
        if head is None or manifest != before or renamed or seal:
            head, kept = self.head.write(manifest, head, sealed_ms, ranges), _KEPT_MANIFESTS
        if moved:
            self.environment.segments.close()  # what is open reads from where the archive was
        self.report = self.report._replace(version=head.version, missing=(*missing, *lost))
        self._remove_local([one for one in records if one.path in local and one not in missing])
        self._remove_objects(head, before, manifest, kept)
        return self.report

    def _take_along(self) -> tuple[remote.Head | None, int, remote.Manifest, list[SegmentRecord]]:
        """Copy the sealed segments from where the archive was; each may be an only copy.

        What a move that did not come to its end has left there counts only without a source:
        entries in it may have been removed since.

        Returns:
            the head of the source; the manifest to go on from, after its version; and what that of
            the source names of the archive, some of which may have been removed since.
        """
        assert self.noted is not None
        problem = "it is no longer there"
        try:
            newest = self.source.newest()
        except CorruptionError as error:
            newest, problem = None, str(error)
        except UnreachableError as error:
            raise UnreachableError(
                f"{error}; the archive has not moved, because its copies of live entries there may "
                "be the only ones of what was trimmed since; if that place is gone for good, make "
                f"an empty one in its place ({self.source.objects.uri}), and repeat the command"
            ) from error
        if newest is not None and newest[0].version > self.noted.version:
            newest, problem = None, "another copy of the store has written there"
        if newest is None:
            log.warning("%s: copies of live entries are not taken: %s", self.source.uri, problem)
            return None, *self.head.manifest_before(None), []
        head, manifest = newest
        sealed = [one for one in manifest.segments if one.sealed]
        for one in sealed:
            try:
                segment = self.source.segment(one.record, sealed=True)
                check_checksums(segment)
            except CorruptionError as error:  # what is still live is copied again
                log.warning("%s: %s is left out: %s", self.source.uri, one.name, error)
                continue
            self.remote.objects.put(self.remote.name(one.name), segment.read_at, segment.size)
            self.remote.verify(one.record, sealed=True)
        archived = [one.record for one in manifest.segments if not one.sealed]
        return head, head.version, remote.Manifest(manifest.streams, tuple(sealed)), archived

    # --- segments ---------------------------------------------------------------------------

    def _upload(
        self, records: list[SegmentRecord], local: set[str], there: set[str]
    ) -> list[SegmentRecord]:
        """Write the segments that are not there; return those that are nowhere.

        A segment on the disk is compared with its object even if the last manifest names that: the
        object may have been lost, and the segment put back from a copy.
        """
        wanted = [
            one
            for one in records
            if one.path in local or remote.segment_name(one.path) not in there
        ]
        total = sum(one.size_bytes for one in wanted)
        done = 0
        missing = []
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for record, found in zip(wanted, threads.map(self._upload_one, wanted), strict=True):
                if found is None:
                    missing.append(record)
                    continue
                done += record.size_bytes
                if found:
                    self.report = self.report._replace(
                        uploaded=self.report.uploaded + 1,
                        uploaded_bytes=self.report.uploaded_bytes + record.size_bytes,
                    )
                if self.progress is not None:
                    self.progress(done, total)
        return missing

    def _upload_one(self, record: SegmentRecord) -> bool | None:
        """Write a segment and read it back; return whether it was written, None if it is nowhere.

        Raises:
            CorruptionError: it is damaged here, or another object has its name.
        """
        name = self.remote.name(remote.segment_name(record.path))
        segment = self._source_of(record)
        size = self.remote.objects.size(name)
        if segment is None:
            if size is None:
                return None
            self.remote.verify(record)
            return False
        if size is not None:
            with suppress(CorruptionError):
                self.remote.verify(record)
                return False  # a killed publication has written it
        check_checksums(segment)
        self.remote.objects.put(name, segment.read_at, segment.size)
        failpoints.hit("publish:segment")
        self.remote.verify(record)
        return True

    def _source_of(self, record: SegmentRecord) -> Segment | None:
        """Return a segment on the disk, or where the archive was before; None if it is nowhere."""
        source = None if self.source is self.remote else self.source
        try:
            segment = open_archived(self.environment.folder, record, lambda: source)
        except MissingSegmentError:
            return None
        check_means(record, segment)
        return segment

    # --- removing ---------------------------------------------------------------------------

    def _remove_local(self, records: list[SegmentRecord]) -> None:
        folder = self.environment.folder
        freed = 0
        parents = set()
        with translated(system=True):  # after an error, the next publication tries it again
            for record in records:
                name = stored_name(record.path)
                folder.remove(name)
                self.environment.segments.forget(record.path)
                freed += record.size_bytes
                parents.add(name.rpartition("/")[0])
            for parent in parents:
                folder.sync(parent)
        self.report = self.report._replace(freed_bytes=freed)
        failpoints.hit("publish:local-removed")

    def _remove_objects(
        self, head: remote.Head, before: remote.Manifest, manifest: remote.Manifest, kept: int
    ) -> None:
        """Remove segments that are no longer named, and all but the newest manifests.

        What the last manifest named is known; a listing also finds what killed processes have left.
        It may be of an earlier moment, and then shows objects that are gone: that does no harm.
        While there is an older manifest, a process may have been killed here: so manifests go last,
        and the last but one goes when there is no new one.
        """
        named = {one.name for one in manifest.segments}
        doomed = {one.name for one in before.segments} - named
        prefix = len(self.remote.name(""))
        objects = self.remote.objects
        old = [name[prefix:] for name in self.head.manifests()]
        outdated = {*sorted(old)[:-kept], *(name for name in old if name > head.manifest)}
        outdated.discard(head.manifest)
        looks = outdated or kept > 1
        if looks:
            objects.sweep(self.remote.folder, 0)  # only who has the archive's lock writes there
        for folder in (remote.SEGMENTS, remote.SEALED) if looks else ():
            for name in objects.names(self.remote.name(folder)):
                if name[prefix:] not in named:
                    doomed.add(name[prefix:])
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for those in (doomed, outdated):
                list(threads.map(lambda one: objects.remove(self.remote.name(one)), sorted(those)))
        self.report = self.report._replace(removed=len(doomed) + len(outdated))
        failpoints.hit("publish:objects-removed")


# --- what the manifest says of each stream ----------------------------------------------------


def streams_of(
    txn: Txn, before: remote.Manifest, removed: Sequence[remote.Removed]
) -> tuple[dict[int, remote.RemoteStream], list[SegmentRecord]]:
    """Return what the manifest will say of each stream, and the segments of the archive.

    If segments are complete up to an ID, they hold every entry up to and including it. So a reader
    that has copied everything up to that ID never needs to look below it again, except for segments
    that were adopted later.

    Args:
        removed: noted ranges; where one has no end, IDs in it may have been given out again.
    """
    records = list(iter_segments(txn))
    names = dict(names_from(txn, 0))
    # Where the manifest was lost, a stream that is gone may have sealed segments alone.
    keys = {one.record.stream_number: one.record.key for one in before.segments}
    keys.update((record.stream_number, record.key) for record in records)
    keys.update((number, stream.key) for number, stream in before.streams.items())
    found = {}
    for number in sorted({*keys, *names}):
        erased = tuple(StreamId(*one) for one, _ in iter_erasures(txn, number, (0, 0), (MAX, MAX)))
        if number in names:
            record = txn.load_numbered(number, names[number]).record
            complete = last = StreamId(record.last_ms, record.last_seq)
            added, length = record.entries_added, record.length
        else:
            last, added, length = MIN_ID, 0, 0
            complete = max(
                (one.last_id for one in records if one.stream_number == number), default=MIN_ID
            )
        for one in _first_unarchived(txn, number, names.get(number)):
            complete = min(complete, one.previous() if one > MIN_ID else one)
        earlier = before.streams.get(number)
        if earlier is not None:
            below = [
                one.first.previous()
                for one in removed
                if one.number == number and one.last >= earlier.complete_to
            ]
            complete = max(complete, min([earlier.complete_to, *below]))
        key = names.get(number, former_name(txn, number))
        key = keys.get(number, b"") if key is None else key
        found[number] = remote.RemoteStream(
            number, key, number in names, last, added, length, complete, erased
        )
    return found, records


def _first_unarchived(txn: Txn, number: int, name: bytes | None) -> Iterator[StreamId]:
    """Yield IDs such that no segment is needed for any lower ID: of the first nodes without one.

    A live node may have entries that were trimmed and not archived, even before its first live one.
    """
    for table in (NODES, RETIRED):
        for db_key, _ in rows_with(txn, table, pack_number(number)):
            _, ms, seq = unpack_node_key(db_key)
            if not is_former_name(ms, seq):
                yield StreamId(ms, seq)
                break
    if name is not None:
        tail = txn.load_numbered(number, name)
        if tail.has_tail():
            yield StreamId(tail.tail_ms, tail.tail_seq)
