"""The archive of a store under a URI: its head, its manifest, and the names of its objects.

    URI/<store UUID>/store.json                        the head: name, labels, the newest manifest
    URI/<store UUID>/manifests/<version>-<token>.jsonl.zst   all streams and segments, as JSON lines
    URI/<store UUID>/segments/<path>                   segments of the archive, as below `archive/`
    URI/<store UUID>/sealed/<path>                     segments with copies of live entries

A URI under which several stores have their archives is a fleet.

Always true: objects never change, except for the head. An object that a manifest names was written,
and read back, before that manifest; a manifest was, before the head that names it. So a reader that
has a head finds a state of the archive that is complete. A segment that is no longer named is
removed after the head, so a reader that misses one reads the head again.

Versions rise by one with each head. The store has the version in the row `archive_remote` of
`meta`, which is committed before the head is written. So a head with a higher version was written
by another copy of the store.

Sealed segments hold copies of entries that are live in the store. They overlap nothing else when
they are written. When their entries are archived later, a sealed segment remains until segments of
the archive cover it, and longer if it alone has entries that were trimmed without being archived.
Until then a reader takes what is within the range of an archived segment from there. What a store
removes from its archive is taken out of sealed segments, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import zstandard

from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError, FormatVersionError, StreamkeepError
from streamkeep.format.core.json_form import from_json, json_bytes
from streamkeep.format.rows.records import is_safe_path
from streamkeep.format.segment.manifest import ORIGINS, SegmentRecord

VERSION: Final = 1  # of head and manifest. Permanent
HEAD: Final = "store.json"
MANIFESTS: Final = "manifests"
SEGMENTS: Final = "segments"
SEALED: Final = "sealed"
META_REMOTE: Final = b"archive_remote"  # row of `meta`
_MOST_HEAD: Final = 1 << 20
_MOST_MANIFEST: Final = 1 << 32  # bytes of lines; more is a hostile file


class Removed(NamedTuple):
    """A range of IDs of a stream that sealed segments lose at the next publication.

    Attributes:
        version: of the newest head that may have been published before that.
    """

    version: int
    number: int
    first: StreamId
    last: StreamId


class RemoteSetting(NamedTuple):
    """The row `archive_remote` of `meta`: where the archive of a store is kept.

    Attributes:
        name: of the store in its fleet.
        version: the highest version of a head that this store may have written; 0 if it has none.
        removed: what left the store, but not yet the sealed segments of every head.
    """

    uri: str
    name: str
    labels: dict[str, str]
    version: int
    removed: tuple[Removed, ...] = ()

    def encode(self) -> bytes:
        members = {name: one for name, one in self._asdict().items() if one != ()}
        return json.dumps(members, sort_keys=True).encode()


class Head(NamedTuple):
    """The object `store.json`.

    Attributes:
        version: number of this head; rises with each publication.
        manifest: name of the manifest, relative to the folder of the store.
        checksum: XXH3-64 of that object, 16 hexadecimal digits.
        segments, entries, size_bytes: totals of the segments, sealed ones included.
        published_ms: Unix time of the publication.
        sealed_ms: Unix time up to which all entries are in segments; None if they never were.
    """

    store: UUID
    name: str
    labels: dict[str, str]
    version: int
    manifest: str
    manifest_bytes: int
    checksum: str
    segments: int
    entries: int
    size_bytes: int
    published_ms: int
    sealed_ms: int | None

    def encode(self) -> bytes:
        members = {"format": VERSION, **self._asdict(), "store": str(self.store)}
        return (json.dumps(members, indent=1) + "\n").encode()


class RemoteStream(NamedTuple):
    """What a manifest says of a stream.

    Attributes:
        exists: whether the store had the stream when the manifest was made.
        last_id: the last generated ID; 0-0 for a stream that is gone.
        entries_added, length: as in XINFO STREAM; 0 for a stream that is gone.
        complete_to: segments hold every entry up to this ID that was not deleted.
        erased: IDs of erased entries.
    """

    number: int
    key: bytes
    exists: bool
    last_id: StreamId
    entries_added: int
    length: int
    complete_to: StreamId
    erased: tuple[StreamId, ...] = ()


class RemoteSegment(NamedTuple):
    """A segment that a manifest names."""

    record: SegmentRecord
    sealed: bool

    @property
    def name(self) -> str:
        """The name of the object, relative to the folder of the store."""
        return segment_name(self.record.path, sealed=self.sealed)


class Manifest(NamedTuple):
    """A manifest: streams by number, and segments by stream and ID."""

    streams: dict[int, RemoteStream]
    segments: tuple[RemoteSegment, ...]

    def by_stream(self) -> dict[int, list[RemoteSegment]]:
        """Return the segments of each stream, by number; of some streams there are none."""
        found: dict[int, list[RemoteSegment]] = {number: [] for number in self.streams}
        for one in self.segments:
            found.setdefault(one.record.stream_number, []).append(one)
        return found


def segment_name(path: str, *, sealed: bool = False) -> str:
    """Return the name of a segment, relative to the folder of its store."""
    return f"{SEALED if sealed else SEGMENTS}/{path}"


def manifest_name(version: int, token: str) -> str:
    """Return the name of a new manifest; names in order are versions in order."""
    return f"{MANIFESTS}/{version:020d}-{token}.jsonl.zst"


def version_of(name: str) -> int:
    """Return the version of a manifest by its name."""
    digits = name.rpartition("/")[2].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def checksum_of(data: bytes) -> str:
    return digest64(data).hex()


def parts_of(segments: Sequence[RemoteSegment]) -> list[tuple[StreamId, StreamId, RemoteSegment]]:
    """Return where a reader takes the entries of a stream from: ranges of IDs, which ascend.

    An archived segment is taken whole; a sealed one only outside of archived ones.
    """
    archived = sorted(
        (one for one in segments if not one.sealed), key=lambda one: one.record.first_id
    )
    parts = [(one.record.first_id, one.record.last_id, one) for one in archived]
    taken = [(first, last) for first, last, _ in parts]
    reached: StreamId | None = None
    for one in sorted(
        (one for one in segments if one.sealed),
        key=lambda one: (one.record.first_id, -one.record.entries),
    ):
        low, high = one.record.first_id, one.record.last_id
        if reached is not None:
            if high <= reached:
                continue
            low = max(low, reached.next())
        parts += [(first, last, one) for first, last in outside(low, high, taken)]
        reached = high
    return sorted(parts, key=lambda part: part[0])


def outside(
    low: StreamId, high: StreamId, taken: Sequence[tuple[StreamId, StreamId]]
) -> Iterator[tuple[StreamId, StreamId]]:
    """Yield the parts of a range that are in none of some sorted ranges."""
    for first, last in taken:
        if last < low:
            continue
        if first > high:
            break
        if first > low:
            yield low, first.previous()
        if last >= high:
            return
        low = last.next()
    if low <= high:
        yield low, high


# --- the setting and the head ---------------------------------------------------------------------


def decode_setting(body: bytes, where: str) -> RemoteSetting:
    members = _object(body, where)
    try:
        return RemoteSetting(
            _text(members, "uri"),
            _text(members, "name"),
            _labels(members),
            _number(members, "version"),
            tuple(
                Removed(version, number, StreamId(*first), StreamId(*last))
                for version, number, first, last in members.get("removed", ())
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(where, f"{error}") from None


def decode_head(data: bytes, where: str) -> Head:
    """Parse a head.

    Raises:
        CorruptionError: it is damaged, or something else.
        FormatVersionError: a newer version of Streamkeep wrote it.
    """
    if len(data) > _MOST_HEAD:
        raise CorruptionError(where, f"{len(data)} bytes, expected at most {_MOST_HEAD}")
    members = _object(data, where)
    _check_version(members, where)
    try:
        manifest = _text(members, "manifest")
        if not is_safe_path(manifest):
            raise ValueError(f"the name {manifest!r} leads out of the archive")
        sealed = members.get("sealed_ms")
        return Head(
            store=UUID(_text(members, "store")),
            name=_text(members, "name"),
            labels=_labels(members),
            version=_number(members, "version"),
            manifest=manifest,
            manifest_bytes=_number(members, "manifest_bytes"),
            checksum=_text(members, "checksum"),
            segments=_number(members, "segments"),
            entries=_number(members, "entries"),
            size_bytes=_number(members, "size_bytes"),
            published_ms=_number(members, "published_ms"),
            sealed_ms=None if sealed is None else _number(members, "sealed_ms"),
        )
    except (KeyError, ValueError) as error:
        raise CorruptionError(where, f"{error}") from None


# --- the manifest ---------------------------------------------------------------------------------

_NUMBERS: Final = (  # members of a segment that are the fields of its row
    *("entries", "nodes", "size_bytes", "raw_bytes", "sequence", "created_ms", "erased", "epoch"),
)


def encode_manifest(manifest: Manifest) -> bytes:
    lines: list[dict[str, Any]] = [{"type": "manifest", "format": VERSION}]
    lines += [
        {
            "type": "stream",
            **stream._asdict(),
            "key": json_bytes(stream.key),
            "last_id": str(stream.last_id),
            "complete_to": str(stream.complete_to),
            "erased": [str(one) for one in stream.erased],
        }
        for stream in manifest.streams.values()
    ]
    lines += [
        {
            "type": "segment",
            "stream": record.stream_number,
            "path": record.path,
            "sealed": sealed,
            "key": json_bytes(record.key),
            "first_id": str(record.first_id),
            "last_id": str(record.last_id),
            "checksum": f"{record.checksum:016x}",
            "origin": ORIGINS[record.origin],
            **{name: getattr(record, name) for name in _NUMBERS},
        }
        for record, sealed in manifest.segments
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return zstandard.ZstdCompressor(level=3).compress(text.encode())


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest object.

    Raises:
        CorruptionError: it is damaged.
        FormatVersionError: a newer version of Streamkeep wrote it.
    """
    try:
        if zstandard.frame_content_size(data) > _MOST_MANIFEST:
            raise CorruptionError(where, f"it states more than {_MOST_MANIFEST} bytes")
        text = zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise CorruptionError(where, f"zstd cannot decompress it: {error}") from None
    streams: dict[int, RemoteStream] = {}
    segments: list[RemoteSegment] = []
    for at, line in enumerate(text.splitlines()):
        place = f"{where}: line {at + 1}"
        members = _object(line, place)
        if at == 0:
            _check_version(members, place)
            continue
        try:
            if members.get("type") == "stream":
                stream = _stream(members)
                streams[stream.number] = stream
            elif members.get("type") == "segment":
                segments.append(_segment(members))
        except (AttributeError, KeyError, TypeError, ValueError, StreamkeepError) as error:
            raise CorruptionError(place, f"{error}") from None
    return Manifest(streams, tuple(segments))


def in_order(segments: Iterator[RemoteSegment]) -> tuple[RemoteSegment, ...]:
    """Return segments by stream, first ID, and archived ones first."""
    return tuple(
        sorted(
            segments, key=lambda one: (one.record.stream_number, one.record.first_id, one.sealed)
        )
    )


def _stream(members: Mapping[str, Any]) -> RemoteStream:
    return RemoteStream(
        _number(members, "number"),
        from_json(members["key"]),
        members["exists"] is True,
        StreamId.parse(_text(members, "last_id")),
        _number(members, "entries_added"),
        _number(members, "length"),
        StreamId.parse(_text(members, "complete_to")),
        tuple(map(_id, members["erased"])),
    )


def _segment(members: Mapping[str, Any]) -> RemoteSegment:
    path = _text(members, "path")
    if not is_safe_path(path):
        raise ValueError(f"the path {path!r} leads out of the archive")
    first, last = _id(_text(members, "first_id")), _id(_text(members, "last_id"))
    numbers = {name: _number(members, name) for name in _NUMBERS}
    if first > last or numbers["entries"] == 0:
        raise ValueError("the last ID is below the first, or there are no entries")
    record = SegmentRecord(
        stream_number=_number(members, "stream"),
        first_ms=first.ms,
        first_seq=first.seq,
        last_ms=last.ms,
        last_seq=last.seq,
        checksum=int(_text(members, "checksum"), 16),
        origin=ORIGINS.index(_text(members, "origin")),
        path=path,
        key=from_json(members["key"]),
        **numbers,
    )
    return RemoteSegment(record, members["sealed"] is True)


# --- members of objects ---------------------------------------------------------------------------


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        members = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(where, f"not JSON: {error}") from None
    if not isinstance(members, dict):
        raise CorruptionError(where, "not a JSON object")
    return members


def _check_version(members: Mapping[str, Any], where: str) -> None:
    found = members.get("format")
    if type(found) is not int or found < 1:
        raise CorruptionError(where, f"format {found!r}, expected a number")
    if found > VERSION:
        raise FormatVersionError(
            f"{where}: format {found}, this version reads up to {VERSION}; next: install a newer "
            "version of Streamkeep"
        )


def _text(members: Mapping[str, Any], name: str) -> str:
    value = members[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, expected text")
    return value


def _id(text: str) -> StreamId:
    """Parse an ID of a segment; most of the work of a plan is here, so it is a short cut."""
    ms, _, seq = text.partition("-")
    if len(ms) < 20 and len(seq) < 20 and text.isascii() and ms.isdigit() and seq.isdigit():
        return StreamId(int(ms), int(seq))
    return StreamId.parse(text)


def _number(members: Mapping[str, Any], name: str) -> int:
    value = members[name]
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{name} is {value!r}, expected a number")
    return value


def _labels(members: Mapping[str, Any]) -> dict[str, str]:
    labels = members["labels"]
    if not isinstance(labels, dict) or not all(isinstance(one, str) for one in labels.values()):
        raise ValueError(f"labels are {labels!r}, expected texts by name")
    return labels
