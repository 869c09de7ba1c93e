"""Erasing entries: readers see them as deleted, and their bytes are removed from every file.

1. Bounded transactions remove the contents from all stored data: macro nodes (including tombstones
   of entries deleted or trimmed before), retired nodes, segments, and the messages of idempotent
   XADD. A row in `erasures` records each erased entry, so that a copy of it from elsewhere is
   recognized.
2. If another erasure is unfinished, its entries are erased from the segments, and their messages
   forgotten, too: it may have been killed. This is repeated until none has begun meanwhile.
3. `scrub` overwrites the old bytes that LMDB and the journal have left.

For readers, an erased entry is the same as one that XDEL has deleted. Streams are found by the
numbers that the key has at the beginning: another process may rename them in the meantime.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from streamkeep.engine.archive import garbage
from streamkeep.engine.archive.erase import (
    archived_under,
    erase_retired,
    erase_segments,
    find_strays,
    remove_leftovers,
    written_under,
)
from streamkeep.engine.archive.lock import ArchiveLock
from streamkeep.engine.archive.publish import publish, sealed_streams
from streamkeep.engine.commands.history import Live, Retired, Source, archived_of, ascending
from streamkeep.engine.commands.idempotency import Tracker, find_messages
from streamkeep.engine.commands.keys import find_numbered, names_from
from streamkeep.engine.commands.xtrim import store_marked
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.tables.manifest import erased_ids, put_erasure
from streamkeep.engine.tables.node_walk import NodeWalk, refresh_ends
from streamkeep.engine.tables.scan import stream_numbers
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.engine.whole_store.scrub import Mark, scrub
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, Id
from streamkeep.format.core.keys import ERASURES
from streamkeep.format.node.envelope import set_trimmed, trimmed_slots
from streamkeep.format.node.erase import emptied_ids, erase_slots
from streamkeep.format.node.node import SlotCursor, live_ids, read_header
from streamkeep.format.node.where import Where

Ids = list[Id]

log = logging.getLogger("streamkeep")

_STEP: Final = 512  # IDs per transaction, and so the limit for nodes, too


def erase(
    environment: Environment,
    name: bytes,
    ids: Iterable[tuple[int, int]],
    timeout: float,
    progress: Progress | None = None,
) -> int:
    """Erase entries of the stream `name`; return the number of erased entries.

    Args:
        timeout: how many seconds to wait for readers of old snapshots.

    Raises:
        ErasureBlockedError: see `scrub`. The entries are deleted; erasing again continues the work.
        CorruptionError: a segment cannot be read. If the manifest names it, erasing again continues
            the work; if not, everything else is done.
    """
    wanted = sorted(set(ids))
    mark = Mark(environment)
    unread: list[CorruptionError] = []
    count = 0
    living = environment.read(lambda txn: txn.stream_number(name))  # first: it may be deleted
    numbers = environment.read(archived_under, name) if wanted else set()
    # Also where nothing is archived yet: an archiver that was killed meanwhile would leave a file
    # with entries that no row, retired or archived, names any more.
    with ArchiveLock(environment):
        # Here: a publication that has the lock may just have sealed a stream that is gone by now.
        if wanted and (copied := _find_copied(environment, name, numbers)):
            mark.write(_note_copied, copied, wanted)
        remove_leftovers(environment, numbers)
        for start in range(0, len(wanted), _STEP):
            step = wanted[start : start + _STEP]
            count += mark.write(erase_step, numbers, step, living)
        if wanted:
            each = dict.fromkeys({0, *numbers}, wanted)
            count += erase_segments(environment, each, name, unread)
    for number in numbers:
        _forget_messages(mark, number, set(wanted))
    finished = {number: set(wanted) for number in numbers}
    scrubbed = False
    while not scrubbed:
        while mark.others:
            _finish_others(mark, finished, unread)
        garbage.remove_files(environment)
        publish(environment)  # removes what holds an erased entry from the object store
        failpoints.hit("erase:stored")
        scrubbed = scrub(mark, timeout, progress)
    if unread:
        raise unread[0]
    return count


def _finish_others(mark: Mark, finished: dict[int, set[Id]], unread: list[CorruptionError]) -> None:
    """Erase what segments and messages still have of the entries that any erasure has recorded.

    Args:
        finished: by stream number, the entries that segments have no more; this adds to them.
        unread: as of `find_strays`.
    """
    mark.others = False  # a transaction here may see the mark of one more
    environment = mark.environment
    for number, ids in environment.read(_recorded):
        _forget_messages(mark, number, ids)
    with ArchiveLock(environment):
        recorded = environment.read(_recorded)
        remove_leftovers(environment, {number for number, _ in recorded})
        left = {
            number: sorted(rest)
            for number, ids in recorded
            if (rest := ids - finished.get(number, set()))
        }
        erase_segments(environment, left, None, unread)
        for number, done in left.items():
            finished.setdefault(number, set()).update(done)


def _find_copied(environment: Environment, name: bytes, numbers: set[int]) -> set[int]:
    """Return the deleted streams that had a key, and have sealed segments; log what is not reached.

    Args:
        numbers: of the streams that have, or had, the key in the store.
    """
    sealed = sealed_streams(environment)
    others = {number for number, known in sealed.items() if name in known}
    others |= environment.read(written_under, name)
    keys = environment.read(lambda txn: dict(names_from(txn, 0)))
    for number in sorted(others - numbers):
        if number in keys:
            log.warning(
                "%s: the stream that was archived as %r is now %r, and keeps its entries; next: "
                "erase them under that key",
                environment.path,
                name,
                keys[number],
            )
    if not numbers and not others:
        log.warning(
            "%s: no stream is known that has or had the key %r; next: if it was renamed, erase "
            "under the keys that it had before and after",
            environment.path,
            name,
        )
    return (numbers | others) & sealed.keys() - keys.keys()


def _note_copied(txn: WriteTxn, numbers: set[int], ids: Ids) -> None:
    """Record erasures in deleted streams of which only sealed segments are left."""
    for number in sorted(numbers):
        for ms, seq in ids:
            put_erasure(txn, number, ms, seq)


def _recorded(txn: Txn) -> list[tuple[int, set[Id]]]:
    """Return (stream number, erased IDs) of all streams.

    The transaction that erases live and retired entries also records them; segments are rewritten
    later. So after an interrupted erasure, the recorded IDs are all that is left to do.
    """
    return [
        (number, erased_ids(txn, number, (0, 0), (MAX, MAX)))
        for number in stream_numbers(txn, ERASURES, "erasures")
    ]


def erase_step(txn: WriteTxn, numbers: set[int], ids: Ids, living: int) -> int:
    """Remove the contents of entries from live and retired nodes; return the number of entries.

    Args:
        numbers: of the streams that have, or had, the name.
        ids: in ascending order.
        living: the number that had the name at the beginning.
    """
    count = 0
    for number in sorted(numbers):
        found = erase_retired(txn, number, ids)
        count += found
        stream = find_numbered(txn, number)
        if stream is not None:
            count += _erase_in_nodes(txn, stream, ids)
            for ms, seq in ids[: bisect_right(ids, stream.record.last_id())]:
                put_erasure(txn, number, ms, seq)
        elif found or number == living:
            for ms, seq in ids:  # an archiver may be writing them; sealed segments may have them
                put_erasure(txn, number, ms, seq)
    return count


def _erase_in_nodes(txn: WriteTxn, stream: Stream, ids: Ids) -> int:
    """Erase entries in the live nodes of a stream; each node is written only once."""
    record = stream.record
    first = record.first_id()
    last = record.last_live_id()
    wanted = set(ids)
    gone: set[tuple[int, int]] = set()
    count = start = 0
    walk = NodeWalk(txn, stream)
    while start < len(ids) and walk.seek(*ids[start]):
        data = walk.load()
        trimmed = trimmed_slots(walk.trimmed)
        erased = erase_slots(data, walk.ms, walk.seq, wanted, trimmed)
        start = max(start + 1, bisect_right(ids, erased.last, start))
        shown = trimmed.intersection(erased.slots)
        if erased.data is data and not shown:
            continue
        count += len(erased.live_ids) + len(shown)
        gone.update(erased.live_ids)
        bitmap = set_trimmed(b"", sorted(trimmed.difference(erased.slots)))
        if erased.live == 0:
            walk.trimmed = bitmap
            walk.bury(erased.data)
        else:
            store_marked(walk, erased.data, erased.live, erased.deleted, bitmap)
    if gone:
        stream.deleted_up_to(max(gone))
        refresh_ends(txn, stream, first=first in gone, last=last in gone)
    return count


# --- idempotent XADD ----------------------------------------------------------------------------


def _forget_messages(mark: Mark, number: int, ids: set[Id]) -> None:
    """Forget the messages of erased entries: a message ID may be, or reveal, the contents."""
    messages = mark.environment.read(_find_messages, number, ids)
    for start in range(0, len(messages), _STEP):
        mark.write(_forget_step, number, messages[start : start + _STEP], ids)
        mark.environment.settle()


def _find_messages(txn: Txn, number: int, ids: set[Id]) -> Ids:
    stream = find_numbered(txn, number)
    return [] if stream is None else find_messages(txn, stream, ids)


def _forget_step(txn: WriteTxn, number: int, messages: Ids, ids: set[Id]) -> None:
    stream = find_numbered(txn, number)
    if stream is not None:
        tracker = Tracker(txn, stream)
        for producer, order in messages:
            tracker.forget(producer, order, ids)
        tracker.save()


# --- what there is to erase, and the proof afterwards ---------------------------------------------

_STEP_BYTES: Final = 8 << 20  # of nodes that are read in one snapshot


def find_remains(
    environment: Environment, name: bytes, wanted: dict[bytes, list[bytes]]
) -> list[Id]:
    """Return the IDs of the entries that match, ascending, each once.

    The search reads live nodes, retired nodes and the blocks of segments, with the slots that
    deletes and trims have left in them, also of deleted streams that had the key. So it finds
    entries that no command returns any more, as long as their bytes are in a node.
    """
    found: set[Id] = set()
    numbers = environment.read(archived_under, name)
    unread: list[CorruptionError] = []
    strays = find_strays(environment, numbers, name, unread)
    if unread:
        raise unread[0]
    for record in {one.path: one for one in chain(*strays.values())}.values():
        segment = environment.segments.open(record)
        for block in range(len(segment.index.blocks)):
            for node in segment.block(block):
                found.update(_matching(node.listpack, node.ms, node.seq, Where(wanted)))
    for number in numbers:
        start: Id | None = (0, 0)
        while start is not None:
            ids, start = environment.read_history(_find, number, start, wanted)
            found.update(ids)
    return sorted(found)


def _find(
    txn: Txn, number: int, start: Id, wanted: dict[bytes, list[bytes]]
) -> tuple[list[Id], Id | None]:
    """Search some megabytes of nodes; return what matches, and where the next search begins."""
    where = Where(wanted)
    found: list[Id] = []
    room = _STEP_BYTES
    sources: list[Source] = [Retired(txn, number), *archived_of(txn, number)]
    stream = find_numbered(txn, number)
    if stream is not None and stream.nodes():
        sources.append(Live(txn, stream))
    for source in ascending(sources, start, (MAX, MAX)):
        if room <= 0:
            return found, (source.ms, source.seq)
        data = source.raw()
        room -= len(data)
        matching = list(_matching(data, source.ms, source.seq, where))
        if matching:  # an erased slot has empty values, which may be what is wanted
            gone = emptied_ids(data, source.ms, source.seq, ())
            if gone and (shown := source.load()):  # a trimmed entry with empty values looks so, too
                gone.difference_update(live_ids(shown, source.ms, source.seq))
            found += [one for one in matching if one not in gone]
    return found, None


def _matching(data: bytes, ms: int, seq: int, where: Where) -> Iterator[Id]:
    cursor = SlotCursor(read_header(data, ms, seq))
    while cursor.next():
        if where.matches(cursor):
            yield cursor.id()
        cursor.skip_fields()
