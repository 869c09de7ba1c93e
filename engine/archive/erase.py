"""Erasing trimmed entries, in retired nodes and in the segments of the archive.

Segments are immutable. So a segment with an erased entry is rewritten into a file of another name.
Nodes without such an entry are copied; the others are encoded from their remaining entries, so that
not even the field names of an erased entry remain in a master entry. A dictionary consists of
pieces of entries. So the new file gets one that is trained from its own contents, or none, and so
does every other segment of the stream with the same dictionary.

One transaction then replaces the row of the manifest, records the erasures, and makes the old file
garbage. A process that is killed before leaves a file without a row and without the erased entries;
one that is killed after leaves a garbage file.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Final
from urllib.parse import quote

from streamkeep.engine.archive import archiver
from streamkeep.engine.archive.garbage import discard, doomed_files
from streamkeep.engine.archive.iterate import has_pieces, nodes_of
from streamkeep.engine.archive.segment_output import write_segment
from streamkeep.engine.commands.keys import forget_name, former_name
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables import manifest
from streamkeep.engine.tables.node_walk import encode_node
from streamkeep.engine.tables.scan import at_or_below, stream_numbers
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER, open_stored
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import (
    CorruptionError,
    FormatVersionError,
    MissingSegmentError,
    StoreError,
)
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import RETIRED, STREAMS, node_key, pack_number, unpack_node_key
from streamkeep.format.node.envelope import decode_envelope, set_trimmed, trimmed_slots
from streamkeep.format.node.erase import erase_slots
from streamkeep.format.node.tombstones import history_form
from streamkeep.format.rows.records import encode_file_garbage
from streamkeep.format.segment.manifest import (
    ADOPTED,
    ARCHIVED,
    REWRITTEN,
    SegmentRecord,
    record_of,
)
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, SUFFIX, Segment

Ids = list[Id]

log = logging.getLogger("streamkeep")

_LEVEL: Final = 9  # a file is rewritten once and read often


_Plan = tuple[SegmentRecord, Ids]  # a segment to rewrite, and the entries to leave out

# --- retired nodes ------------------------------------------------------------------------------


def erase_retired(txn: WriteTxn, number: int, ids: Ids) -> int:
    """Erase entries in the retired nodes of a stream; return the number of erased entries.

    Args:
        ids: in ascending order.
    """
    wanted = set(ids)
    count = start = 0
    cursor = txn.cursor(RETIRED)
    while start < len(ids):
        found = at_or_below(cursor, node_key(number, *ids[start]))
        start += 1
        if not found:
            continue
        db_key = cursor.key()
        owner, ms, seq = unpack_node_key(db_key)
        if owner != number or (ms, seq) == (0, 0):  # 0-0 is the row with a deleted stream's name
            continue
        where = f"retired node {ms}-{seq} of stream {number}"
        envelope = decode_envelope(cursor.value(), where)
        trimmed = trimmed_slots(envelope.trimmed)
        erased = erase_slots(envelope.listpack, ms, seq, wanted, trimmed)
        start = max(start, bisect_right(ids, erased.last))
        shown = trimmed.intersection(erased.slots)  # also where their values are empty anyway
        if erased.data is envelope.listpack and not shown:
            continue
        count += len(erased.live_ids) + len(shown)
        bitmap = set_trimmed(b"", sorted(trimmed.difference(erased.slots)))
        if not history_form(erased.data, ms, seq, bitmap):
            txn.delete(RETIRED, db_key)
            continue
        txn.put(RETIRED, db_key, encode_node(txn, number, ms, seq, erased.data, bitmap))
    return count


# --- segments -----------------------------------------------------------------------------------


def archived_under(txn: Txn, name: bytes) -> set[int]:
    """Return the numbers of the streams, including deleted ones, whose archive belongs to a key.

    A live stream belongs to its present key. A deleted one belongs to its last key, and to each
    under which one of its segments was written.
    """
    numbers = written_under(txn, name)
    for one in stream_numbers(txn, RETIRED, "retired nodes"):
        if former_name(txn, one) == name:
            numbers.add(one)
    number = txn.stream_number(name)
    gone = {one for one in numbers if txn.get(STREAMS, pack_number(one)) is None}
    return gone | {number} if number else gone


def written_under(txn: Txn, name: bytes) -> set[int]:
    """Return the numbers of the streams of which a segment was written under a key."""
    return {record.stream_number for record in manifest.iter_segments(txn) if record.key == name}


def remove_leftovers(environment: Environment, numbers: set[int]) -> None:
    """Remove files that a killed archiver or erasure has left, since they may hold erased entries.

    If a file of this store has no row, and its IDs lie within a segment that has one, then it holds
    nothing that the segment lacks. The caller has the archive's lock.
    """
    store = environment.folder
    archiver.clean(environment)
    leftovers: list[str] = []
    streams = archiver.segments_by_stream(store.files_below(ARCHIVE_FOLDER))
    for number in sorted(numbers):
        rows = environment.read(manifest.list_segments, number)
        named = {row.path for row in rows}
        leftovers += [
            path
            for path in streams.get(str(number), ())
            if path not in named and _is_leftover(environment, path, rows)
        ]
    discard(environment, leftovers)


def _is_leftover(environment: Environment, path: str, rows: list[SegmentRecord]) -> bool:
    try:
        segment = open_stored(environment.folder, path)
    except (CorruptionError, FormatVersionError):
        return False  # incomplete, foreign or damaged; fsck reports it
    first, last = segment.trailer.first_id, segment.trailer.last_id
    return segment.index.store_uuid == environment.uuid.bytes and any(
        row.first_id <= first and last <= row.last_id for row in rows
    )


def find_strays(
    environment: Environment, numbers: Set[int], name: bytes | None, unread: list[CorruptionError]
) -> dict[int, list[SegmentRecord]]:
    """Return the segments below `archive/` that no row names, and that may have a stream's entries.

    A killed adoption has left them, or another program. They may be adopted, so they are not simply
    removed.

    Args:
        numbers: of streams to which they may belong.
        name: a key that they may have; None for any of these streams.
        unread: gets what is wrong with each that may have such entries and cannot be read.

    Returns:
        rows that they could have, by the number of each stream to which they may belong; by 0 if
        only the key is known.
    """
    folder = environment.folder
    paths = {one for one in folder.files_below(ARCHIVE_FOLDER) if one.endswith(SUFFIX)}
    if paths:
        paths -= environment.read(lambda txn: {one.path for one in manifest.iter_segments(txn)})
        paths -= {path for _, path in environment.read(doomed_files)}
    found: dict[int, list[SegmentRecord]] = {}
    for path in sorted(paths):
        segment: Segment | None = None
        problem: Exception | None = None
        try:
            segment = open_stored(folder, path, max_block_bytes=MAX_BLOCK_BYTES)
            problem = next(iter(segment.check()), None)
        except MissingSegmentError:
            continue
        except (CorruptionError, StoreError) as error:
            problem = error
        top = path.rpartition("/")[0].partition("/")[0]
        place, _, quoted = top.partition("-")
        at_home = {one for one in numbers if str(one) == place}
        known = set(at_home)
        has_key = name is not None and quoted == quote(name[:40], "")
        if segment is not None:
            if segment.index.store_uuid == environment.uuid.bytes:
                known |= numbers & {segment.index.stream_number}
            has_key = has_key or segment.index.key == name
        if problem is not None:
            if known or has_key or (segment is None and not place.isdecimal()):
                what = (
                    f"it cannot be read, and may hold what was to be erased ({problem}); next: put "
                    "a sound copy in its place and erase again, or remove it"
                )
                unread.append(CorruptionError(f"{ARCHIVE_FOLDER}/{path}", what))
            elif segment is None:
                log.warning("%s; nothing in it is erased: its folder is of another stream", problem)
        elif segment is not None and (known or has_key):
            key = segment.index.key if known or name is None else name
            # If it is rewritten, it stays in its folder, which may be all that says whose it is.
            number = min(at_home or known, default=0)
            record = record_of(segment, path, ADOPTED)._replace(stream_number=number, key=key)
            for one in known or {0}:
                found.setdefault(one, []).append(record)
    return found


def erase_segments(
    environment: Environment,
    wanted: Mapping[int, Ids],
    name: bytes | None,
    unread: list[CorruptionError],
) -> int:
    """Erase entries in the segments of streams, and in strays; return their number.

    The caller has the archive's lock.

    Args:
        wanted: by stream number; by 0 those of strays of which only the key `name` is known. In
            ascending order.
        unread: as of `find_strays`.

    Raises:
        CorruptionError, StoreFullError: see `erase_archived`.
    """
    count = 0
    strays = find_strays(environment, wanted.keys() - {0}, name, unread)
    for number in sorted(wanted):
        count += erase_archived(environment, number, wanted[number], strays.get(number, ()))
        if number in strays:  # they may have other names now, and belong to another stream, too
            strays = find_strays(environment, wanted.keys() - {0}, name, [])
    return count


def erase_archived(
    environment: Environment, number: int, ids: Ids, strays: Sequence[SegmentRecord] = ()
) -> int:
    """Erase entries in the segments of a stream; return their number.

    The caller has the archive's lock.

    Args:
        ids: in ascending order.
        number: 0 for strays alone.
        strays: of `find_strays`; their entries do not count.

    Raises:
        CorruptionError: a segment that may hold an entry is missing or damaged. The segments
            before it are rewritten.
        StoreFullError: there is no room for a new file.
    """
    count = 0
    for plan in environment.read(_plans, environment, number, ids, strays):
        erased = _rewrite(environment, number, plan)
        count += 0 if plan[0] in strays else erased
    return count


def _plans(
    txn: Txn, environment: Environment, number: int, ids: Ids, strays: Sequence[SegmentRecord]
) -> list[_Plan]:
    """Return the segments to rewrite: those with one of the entries, or with pieces of one."""
    plans: list[_Plan] = []
    others: list[tuple[SegmentRecord, int]] = []
    dictionaries: set[int] = set()
    passed = 0  # of `ids`, by segments of the stream's own archiver
    for record in chain(manifest.iter_segments(txn, number), strays):
        segment = environment.segments.open(record)
        end = bisect_right(ids, record.last_id)
        mine = ids[:end]
        if record.origin == ARCHIVED:  # its nodes come after those of the one before
            mine, passed = ids[passed:end], end
        if mine and mine[0] < record.first_id:
            # Field names of the first node may come from an entry before its first one, also where
            # a segment was adopted into that gap.
            head = segment.block(0)[0]
            mine = mine[bisect_left(mine, (head.ms, head.seq)) :]
        dictionary = segment.trailer.dictionary_checksum
        if has_pieces(segment, mine):
            plans.append((record, mine))
            dictionaries.add(dictionary)
        elif dictionary:
            others.append((record, dictionary))
    return plans + [(record, []) for record, one in others if one in dictionaries]


def _rewrite(environment: Environment, number: int, plan: _Plan) -> int:
    """Replace a segment of a stream by one without some entries; return their number."""
    record, ids = plan
    segment = environment.segments.open(record)
    written = write_segment(
        environment,
        record.stream_number,
        record.key,
        environment.write(manifest.take_file_number, frees=True),
        segment.index,
        nodes_of(segment, without=ids),
        record.where,
        raw_bytes=segment.trailer.raw_size if segment.trailer.dictionary_size else 0,
        level=_LEVEL,
    )
    failpoints.hit("erase:written")
    count = record.entries - (0 if written is None else written[1].trailer.entries)
    environment.write(_replace, number, plan, written, count, wait=True, frees=True)
    environment.segments.forget(record.path)
    failpoints.hit("erase:segment")
    return count


def _replace(
    txn: WriteTxn, number: int, plan: _Plan, written: tuple[str, Segment] | None, count: int
) -> None:
    record, ids = plan
    txn.add_garbage(encode_file_garbage(record.path))
    for ms, seq in ids if number else ():
        manifest.put_erasure(txn, number, ms, seq)
    if not manifest.is_named(txn, record):
        return  # a stray
    manifest.delete_segment(txn, record)
    if written is not None:
        manifest.put_segment(
            txn,
            record_of(written[1], written[0], REWRITTEN)._replace(
                stream_number=record.stream_number, key=record.key, erased=record.erased + count
            ),
        )
    forget_name(txn, record.stream_number)
