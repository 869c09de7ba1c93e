"""Writing a stream to the store in parts: for RESTORE, and for loading files.

See `format/redis/stream_parts.py` for the parts. `Loader` takes them one after the other, each in
the transaction of the caller. So a stream of any size is loaded in transactions of bounded size.
Until the last one it has a temporary name (`transfer/loading/staged.py`).

All parts are checked as if they were hostile: nodes byte by byte unless `stream_dump` has done it,
counters against nodes, names and IDs against each other. Data that can be derived is derived.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamkeep.engine.commands.dump import stream_parts
from streamkeep.engine.commands.idempotency import Tracker
from streamkeep.engine.commands.keys import delete
from streamkeep.engine.notify.wait_table import replaced
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.group import Group, create_group, find_group
from streamkeep.engine.tables.lag import estimate_read
from streamkeep.engine.tables.node_walk import append_node
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, CorruptionError, KeyExistsError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.check import validate
from streamkeep.format.redis.stream_dump import check_stream_type, open_payload, read_value
from streamkeep.format.redis.stream_parts import (
    NOBODY,
    Counters,
    GroupPart,
    Messages,
    Node,
    Part,
    Pending,
    problem_of_counters,
    problem_of_group,
    problem_of_messages,
)
from streamkeep.format.rows.group_records import Consumer


class Loader:
    """One stream that is being loaded, under the name `name`.

    Args:
        in_order: pending entries come in the order of delivery, which is kept; otherwise they are
            sorted by time.
    """

    def __init__(self, name: bytes, where: str, *, in_order: bool = False) -> None:
        self.name = name
        self.where = where
        self._in_order = in_order
        self._last_slot: Id | None = None

    def begin(self, txn: WriteTxn) -> None:
        """Create the stream, which must not exist."""
        txn.create_stream(self.name)

    def take(self, txn: WriteTxn, part: Part) -> None:
        stream = self.stream(txn)
        if isinstance(part, Node):
            ids = part.ids
            if ids is None:
                ids = validate(part.data, part.ms, part.seq)
            if self._last_slot is not None and (part.ms, part.seq) <= self._last_slot:
                raise self._fail(f"macro node {part.ms}-{part.seq} is not above the one before it")
            self._last_slot = ids.last_slot
            append_node(txn, stream, part.ms, part.seq, part.data, ids)
        elif isinstance(part, Counters):
            self.set_counters(txn, part)
        elif isinstance(part, GroupPart):
            self.begin_group(txn, part)
            self.add_pending(txn, part, part.pending)
            self.end_group(txn, part)
        else:
            self.set_messages(txn, part)

    def stream(self, txn: WriteTxn) -> Stream:
        stream = txn.find_stream(self.name)
        if stream is None:
            raise CommandError("the stream was deleted while it was being loaded")
        return stream

    def _fail(self, problem: str) -> CorruptionError:
        return CorruptionError(self.where, problem)

    def set_counters(self, txn: WriteTxn, counters: Counters) -> None:
        """Set the counters, after all entries were added."""
        stream = self.stream(txn)
        record = stream.record
        if counters.length != record.length:
            raise self._fail(
                f"the length is {counters.length}, but {record.length} entries were loaded"
            )
        problem = problem_of_counters(counters, record.last_id())
        if problem:
            raise self._fail(problem)
        stream.set_last_id(counters.last_id)
        stream.set_max_deleted(counters.max_deleted_id or (0, 0))
        added = counters.entries_added
        stream.set_entries_added(record.length if added is None else added)

    def begin_group(self, txn: WriteTxn, part: GroupPart) -> None:
        """Add a group with its consumers and the pending entries without an owner."""
        stream = self.stream(txn)
        problem = problem_of_group(part)
        if not problem and find_group(txn, stream, part.name) is not None:
            problem = "the group is there twice"
        if problem:
            raise self._fail(f"group {part.name!r}: {problem}")
        group = create_group(txn, stream, part.name, part.last_id)
        read = part.entries_read
        if read is None:
            read = estimate_read(stream.record, part.last_id)
        group.set_entries_read(read)
        for given in part.consumers:
            if group.find_consumer(given.name) is not None:
                raise self._fail(f"group {part.name!r}: consumer {given.name!r} twice")
            consumer = group.make_consumer(given.name, given.seen_time)
            group.was_active(consumer, given.active_time)
        counts = {
            (one.ms, one.seq): one.delivery_count for one in part.pending if one.consumer == NOBODY
        }
        for ms, seq in part.zone:
            group.give_back(ms, seq, counts.pop((ms, seq), 0))

    def add_pending(self, txn: WriteTxn, part: GroupPart, pending: Iterable[Pending]) -> None:
        """Add pending entries that have owners; sorted by time, later ones come after equal."""
        group = self._group(txn, part.name)
        owners: list[Consumer] = [
            group.make_consumer(given.name, given.seen_time) for given in part.consumers
        ]
        for one in pending:
            if one.consumer != NOBODY:
                group.give(
                    one.ms,
                    one.seq,
                    owners[one.consumer],
                    delivery_time=one.delivery_time,
                    delivery_count=one.delivery_count,
                    sort_by_time=not self._in_order,
                )

    def end_group(self, txn: WriteTxn, part: GroupPart) -> None:
        record = self._group(txn, part.name).record
        found = record.pending, record.nacked
        if found != (len(part.pending), len(part.zone)):
            raise self._fail(f"group {part.name!r}: a pending entry is there twice")

    def _group(self, txn: WriteTxn, name: bytes) -> Group:
        group = find_group(txn, self.stream(txn), name)
        if group is None:
            raise self._fail(f"group {name!r} was destroyed while it was being loaded")
        return group

    def set_messages(self, txn: WriteTxn, messages: Messages) -> None:
        problem = problem_of_messages(messages)
        if problem:
            raise self._fail(problem)
        tracker = Tracker(txn, self.stream(txn))
        state = tracker.state
        state.duration, state.maxsize = messages.duration, messages.maxsize
        for producer in messages.producers:
            for iid, ms, seq in producer.messages:
                tracker.track(producer.name, iid, ms, seq)
        state.added, state.duplicates = messages.added, messages.duplicates
        tracker.save()


def restore(txn: WriteTxn, name: bytes, payload: bytes, replace: bool) -> bool:
    """Create a stream from a DUMP payload (RESTORE).

    Raises:
        CommandError: with Redis's text; its cause is a CorruptionError with place and problem.
    """
    if not replace and txn.find_stream(name) is not None:
        raise KeyExistsError("BUSYKEY Target key name already exists.")
    try:
        kind, source = open_payload(payload, "payload")
    except CorruptionError as error:
        raise CommandError("DUMP payload version or checksum are wrong") from error
    try:
        check_stream_type(kind, "payload")
        parts = list(read_value(source, kind))  # all of it, before anything changes
        if not source.ends():
            source.fail("bytes after the end of the stream")
    except CorruptionError as error:
        raise CommandError("Bad data format") from error
    _replace(txn, Loader(name, "payload"), parts)
    return True


def copy(txn: WriteTxn, source: bytes, target: bytes) -> None:
    """Put a copy of a stream in the place of a key, with the order of delivery (COPY)."""
    parts: list[Part] = []  # all of them, before the transaction changes what is being read
    for part in stream_parts(txn, existing_stream(txn, source), in_order=True):
        if isinstance(part, GroupPart):
            part = part._replace(pending=list(part.pending))
        parts.append(part)
    _replace(txn, Loader(target, "copy", in_order=True), parts)


def _replace(txn: WriteTxn, loader: Loader, parts: list[Part]) -> None:
    delete(txn, [loader.name])
    loader.begin(txn)
    for part in parts:
        loader.take(txn, part)
    txn.events.append(replaced(loader.name))
