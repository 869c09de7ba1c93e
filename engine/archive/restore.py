"""Restoring archived entries into a stream: the same IDs, in order, exactly once.

Whole nodes are written, several per transaction. Entries cannot be inserted before existing ones.
If the stream already has IDs of the range, it usually has them from the same restore, which was
interrupted, or done by a job that its scheduler runs again. So they are compared with what is to be
restored, ID by ID and field by field, one node at a time; what the stream has trimmed and archived
counts as present, and what it has below the first entry to restore or above the last one does not
matter. If it has exactly the first of these entries, the call writes the others; if it has all of
them, nothing is changed; otherwise the restore is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from streamkeep.engine.archive.iterate import ArchivedNode, archived_nodes, entries_of
from streamkeep.engine.commands.history import xrange
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.progress import Progress
from streamkeep.engine.tables.manifest import erased_ids, overlapping
from streamkeep.engine.tables.node_walk import append_node, seal_tail
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, CommandError, IdTooSmallError
from streamkeep.format.core.id_codec import MAX, Id, next_id
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range, has_live

_STEP_BYTES: Final = 1 << 20  # of listpacks per transaction, which then takes a few milliseconds
_STEP_NODES: Final = 256


class RestoreReport(NamedTuple):
    """The result of a restore."""

    entries: int  # the number of entries that this call has written
    first_id: StreamId | None
    last_id: StreamId | None
    resumed: bool  # the stream had the first of the entries; this call went on after them
    already: int = 0  # the number of entries, if the stream had all of them and was not changed


def restore(
    source: Environment,
    number: int,
    target: Environment,
    name: bytes,
    start: Id,
    end: Id,
    *,
    wait: bool,
    progress: Progress | None = None,
) -> RestoreReport:
    """Write the archived entries of the stream `number` of `source` into the stream `name`.

    Args:
        start, end: the range of IDs, both included.
        wait: return only after all entries are on disk.

    Raises:
        IdTooSmallError: the target has the first ID or a higher one, and not the same entries.
        CommandError: the target was appended to during the restore.
        CorruptionError: a segment is missing or damaged. The entries before it are restored, and
            the same call goes on there.
    """
    checked = number if source.uuid == target.uuid else None
    if source is target and target.read(lambda txn: txn.stream_number(name)) == number:
        raise ArgumentError(
            f"stream {name!r} cannot be restored into itself; next: name another stream"
        )

    def erased(store_uuid: bytes, stream: int, first: Id, last: Id) -> set[Id]:
        """Return the entries that were erased from the target but are in a segment."""
        here = store_uuid == target.uuid.bytes
        return target.read(erased_ids, stream, first, last) if here else set()

    def nodes_from(at: Id) -> Iterator[ArchivedNode]:
        return archived_nodes(source, number, at, end, erased)

    return restore_nodes(
        target,
        name,
        start,
        nodes_from,
        lambda at: source.read(_count, number, at, end),
        lambda at: next((node.ids.first_live for node in nodes_from(at)), None),
        checked,
        wait=wait,
        progress=progress,
    )


def restore_nodes(
    target: Environment,
    name: bytes,
    start: Id,
    nodes_from: Callable[[Id], Iterator[ArchivedNode]],
    count_from: Callable[[Id], int],
    first_from: Callable[[Id], Id | None],
    checked: int | None,
    *,
    wait: bool,
    progress: Progress | None = None,
) -> RestoreReport:
    """Write nodes into the stream `name`, in steps; go on after those that it has.

    Args:
        start: the first ID that is asked for.
        nodes_from: yields the nodes with entries from an ID on, ascending, without lower IDs.
        count_from: returns about how many entries those are; called only with `progress`.
        first_from: returns, quickly, their first ID or a lower one; None if there are none.
        checked: a stream of the target's store; entries that were erased from it are left out.

    Raises:
        IdTooSmallError: the target has the first ID or a higher one, and not the same entries.
        CommandError: the target was appended to during the restore.
    """
    newest = target.read(_last_id, name)
    at, resumed = start, False
    if newest is not None and newest >= start:
        lowest = first_from(start)
        if lowest is not None and lowest <= newest:
            there = _compare(target, name, newest, nodes_from(start))
            if there.already and not there.resumed:
                return there
            if there.resumed:
                at, resumed = next_id(*newest), True
    total = count_from(at) if progress else 0
    done = 0
    first: Id | None = None
    last: Id | None = None
    going = True
    while going:
        going = False
        for step in _steps(nodes_from(at)):
            written = target.write(_write_step, name, last, step, checked)
            if not written:
                going = True  # an entry was erased since it was read; read the nodes again
                break
            first = first or step[0].ids.first_live
            last = step[-1].ids.last_live
            at = next_id(*last)
            done += written
            failpoints.hit("restore:step")
            target.settle()
            if progress is not None:
                progress(done, max(done, total))
    if wait:
        target.sync()
    return RestoreReport(
        done,
        None if first is None else StreamId(*first),
        None if last is None else StreamId(*last),
        resumed,
    )


def _steps(nodes: Iterator[ArchivedNode]) -> Iterator[list[ArchivedNode]]:
    """Yield lists of nodes, each for one transaction."""
    step: list[ArchivedNode] = []
    size = 0
    for node in nodes:
        step.append(node)
        size += len(node.data)
        if size >= _STEP_BYTES or len(step) >= _STEP_NODES:
            yield step
            step, size = [], 0
    if step:
        yield step


def _write_step(
    txn: WriteTxn, name: bytes, after: Id | None, step: list[ArchivedNode], number: int | None
) -> int:
    """Append nodes; return the number of entries.

    Args:
        after: the last ID that this restore has written; None before its first step.
        number: a stream of this store; if one of the entries was erased from it, nothing is
            written.
    """
    if number is not None:
        for ms, seq in erased_ids(txn, number, step[0].ids.first_live, step[-1].ids.last_live):
            if any(has_live(node.data, node.ms, node.seq, ms, seq) for node in step):
                return 0
    stream = txn.find_stream(name)
    if stream is None:
        stream = txn.create_stream(name)
    record = stream.record
    last = record.last_id()
    if after is not None and last != after:
        raise CommandError(
            f"{name!r} was appended to during the restore: entries between {StreamId(*after)} and "
            f"{StreamId(*last)} can no longer be added; next: delete the stream, or restore into "
            "another one"
        )
    first = step[0].ids.first_live
    if first <= last:
        raise IdTooSmallError(
            f"the last ID of {name!r} is {StreamId(*last)}, and IDs must rise: entries from "
            f"{StreamId(*first)} on cannot be restored into it; next: restore into another stream"
        )
    if after is None:
        seal_tail(txn, stream)
    for node in step:
        append_node(txn, stream, node.ms, node.seq, node.data, node.ids)
    count = sum(int(node.ids.live) for node in step)
    txn.note_added(name, count)
    return count


def _count(txn: Txn, number: int, start: Id, end: Id) -> int:
    """Return about how many entries segments have in a range; for progress bars."""
    return sum(record.entries for record in overlapping(txn, number, start, end))


# --- what the stream has already ----------------------------------------------------------------


def _last_id(txn: Txn, name: bytes) -> Id | None:
    stream = txn.find_stream(name)
    return None if stream is None else stream.record.last_id()


def _compare(
    target: Environment, name: bytes, last: Id, nodes: Iterable[ArchivedNode]
) -> RestoreReport:
    """Compare the nodes of a restore with the stream; say as `already` how much of them it has.

    Args:
        last: the last generated ID of the stream.

    Returns:
        `resumed` if the stream has some of the entries and lacks others.

    Raises:
        IdTooSmallError: it lacks some of the entries below its last ID, or has others.
    """
    count = 0
    first: Id | None = None
    at = newest = (0, 0)
    for node in nodes:
        if first is None:
            if node.ids.first_live > last:
                break  # all entries are above the last ID
            first = at = node.ids.first_live
        wanted = entries_of(node.ms, node.seq, node.data)
        within = [entry for entry in wanted if entry[:2] <= last]
        part = Range(*at, *min(node.ids.last_live, last), NO_LIMIT, False, int(PAIRS))
        there = target.read_history(xrange, name, part)
        if within != there:
            raise IdTooSmallError(_difference(name, first, last, wanted, there))
        count += len(within)
        if within != wanted:
            return RestoreReport(0, None, None, count > 0, count)
        newest = node.ids.last_live
        if newest == (MAX, MAX):
            break
        at = next_id(*newest)
    if first is None:
        return RestoreReport(0, None, None, False)
    return RestoreReport(0, StreamId(*first), StreamId(*newest), False, count)


def _difference(name: bytes, first: Id, last: Id, wanted: Entries, there: Entries) -> str:
    """Return a message that names the first difference and what to do."""
    same = 0
    while same < min(len(wanted), len(there)) and wanted[same] == there[same]:
        same += 1
    expected = StreamId(*wanted[same][:2]) if same < len(wanted) else None
    found = StreamId(*there[same][:2]) if same < len(there) else None
    if expected is not None and expected == found:
        difference = f"entry {expected} has other fields there"
    elif expected is not None and (found is None or expected < found):
        difference = f"entry {expected} is missing there"
    else:
        difference = f"there is an entry {found}, which is not one of them"
    return (
        f"the last ID of {name!r} is {StreamId(*last)}, and IDs must rise: entries from "
        f"{StreamId(*first)} on cannot be restored into it, and its entries differ: {difference}; "
        "next: delete the stream, or restore into another one"
    )
