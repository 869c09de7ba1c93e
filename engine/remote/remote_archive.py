"""The archive of one store under a URI, and the cache through which its segments are read.

For the objects and what is always true of them, see `format/segment/remote.py`.

Segments are read in chunks of a megabyte, which a cache shared by all segments of a store keeps
while there is room. Objects never change, so a chunk is valid without limit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from streamkeep.engine.remote.object_store import ObjectStore, open_objects
from streamkeep.engine.system.locks import make_reentrant_lock
from streamkeep.engine.system.modes import Modes
from streamkeep.format.core.errors import CorruptionError, MissingSegmentError
from streamkeep.format.segment import remote
from streamkeep.format.segment.manifest import SegmentRecord
from streamkeep.format.segment.segment import ReadAt, Segment

CHUNK_BYTES: Final = 1 << 20
CACHE_BYTES: Final = 64 << 20
_TRIES: Final = 5


class ChunkCache:
    """The chunks of objects that were read last; safe to share between threads."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._size = 0
        self._chunks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = make_reentrant_lock("chunks of remote segments")

    def get(self, name: str, number: int) -> bytes | None:
        with self._lock:
            chunk = self._chunks.get((name, number))
            if chunk is not None:
                self._chunks.move_to_end((name, number))
            return chunk

    def put(self, name: str, number: int, chunk: bytes) -> None:
        """Keep a chunk, and drop those that were not used for longest."""
        with self._lock:
            before = self._chunks.pop((name, number), b"")
            self._chunks[name, number] = chunk
            self._size += len(chunk) - len(before)
            while self._size > self._most_bytes and len(self._chunks) > 1:
                self._size -= len(self._chunks.popitem(last=False)[1])

    def forget(self, path: str) -> None:
        """Drop the chunks of objects whose names end with a path."""
        with self._lock:
            for one in [one for one in self._chunks if one[0].endswith(path)]:
                self._size -= len(self._chunks.pop(one))


class RemoteArchive:
    """The archive of a store under a URI.

    Attributes:
        objects: those under the URI.
        folder: the folder of the store there, which is its UUID.
    """

    def __init__(self, objects: ObjectStore, store_uuid: str) -> None:
        self.objects = objects
        self.folder = store_uuid

    @property
    def uri(self) -> str:
        return f"{self.objects.uri}/{self.folder}"

    def name(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def head(self) -> remote.Head | None:
        """Return the head; None if nothing was published.

        Raises:
            CorruptionError: it is damaged, or of another store.
            UnreachableError: the object store does not answer.
        """
        where = f"{self.uri}/{remote.HEAD}"
        try:
            data = self.objects.get(self.name(remote.HEAD))
        except FileNotFoundError:
            return None
        head = remote.decode_head(data, where)
        if str(head.store) != self.folder:
            raise CorruptionError(where, f"it is of store {head.store}")
        return head

    def manifest(self, head: remote.Head) -> remote.Manifest:
        """Return the manifest of a head.

        Raises:
            FileNotFoundError: it was replaced; read the head again.
            CorruptionError: it is damaged.
        """
        data = self.objects.get(self.name(head.manifest))
        where = f"{self.uri}/{head.manifest}"
        if len(data) != head.manifest_bytes or remote.checksum_of(data) != head.checksum:
            raise CorruptionError(
                where, f"{len(data)} bytes, which do not match the checksum of the head"
            )
        return remote.decode_manifest(data, where)

    def newest(self) -> tuple[remote.Head, remote.Manifest] | None:
        """Return the head and its manifest; None if nothing was published."""
        name = ""
        for _ in range(_TRIES):
            head = self.head()
            if head is None:
                return None
            name = head.manifest
            try:
                return head, self.manifest(head)
            except FileNotFoundError:
                continue
        raise CorruptionError(f"{self.uri}/{name}", "the head names it, but it is missing")

    def open(
        self, record: SegmentRecord, *, sealed: bool = False, cache: ChunkCache | None = None
    ) -> Segment:
        """Open a segment; nothing is read but its end. The caller compares it with the record.

        Args:
            cache: None to read each range by itself.

        Raises:
            MissingSegmentError: there is no such object.
            CorruptionError: it is not a whole segment.
            UnreachableError: the object store does not answer.
        """
        name = self.name(remote.segment_name(record.path, sealed=sealed))
        where = f"segment {self.objects.uri}/{name}"
        read_at = self._reader(name, where, record.size_bytes, cache)
        return Segment.open(read_at, record.size_bytes, where)

    def segment(self, record: SegmentRecord, *, sealed: bool = False) -> Segment:
        """Open a segment, with a small cache of its own; see `open`.

        Raises:
            CorruptionError: also if it is not the segment of the record.
        """
        segment = self.open(record, sealed=sealed, cache=ChunkCache(4 * CHUNK_BYTES))
        check_means(record, segment)
        return segment

    def verify(self, record: SegmentRecord, *, sealed: bool = False) -> None:
        """Read the object of a segment; raise CorruptionError unless it is that segment."""
        check_checksums(self.segment(record, sealed=sealed))

    def _reader(self, name: str, where: str, total: int, cache: ChunkCache | None) -> ReadAt:
        def fetch(offset: int, size: int) -> bytes:
            try:
                return self.objects.read(name, offset, min(size, total - offset))
            except FileNotFoundError:
                raise MissingSegmentError(where, "the object is not there") from None

        if cache is None:
            return fetch

        def read_at(offset: int, size: int) -> bytes:
            end = min(offset + size, total)
            parts = []
            for number in range(offset // CHUNK_BYTES, (end + CHUNK_BYTES - 1) // CHUNK_BYTES):
                start = number * CHUNK_BYTES
                chunk = cache.get(name, number)
                if chunk is None:
                    chunk = fetch(start, CHUNK_BYTES)
                    cache.put(name, number, chunk)
                parts.append(chunk[max(0, offset - start) : end - start])
            return b"".join(parts)

        return read_at


def remote_archive(
    setting: remote.RemoteSetting, store_uuid: str, modes: Modes | None = None
) -> RemoteArchive:
    """Return the archive that a store's setting names.

    Args:
        modes: of the store, to write there; in a folder, nobody has more rights than there.

    Raises:
        UnreachableError: the package that reaches it is not installed.
    """
    return RemoteArchive(open_objects(setting.uri, modes), store_uuid)


def check_checksums(segment: Segment) -> None:
    """Read all bytes of a segment; raise CorruptionError unless they match their checksums."""
    segment.dictionary()
    for number in range(len(segment.index.blocks)):
        segment.compressed_block(number)


def check_means(record: SegmentRecord, segment: Segment) -> None:
    """Raise CorruptionError unless a file is the segment of its row."""
    if segment.checksum != record.checksum or segment.size != record.size_bytes:
        found = f"{segment.size} bytes with checksum {segment.checksum:016x}"
        wanted = f"{record.size_bytes} bytes with checksum {record.checksum:016x}"
        raise CorruptionError(
            record.where, f"the file holds another segment: {found}, the manifest names {wanted}"
        )
