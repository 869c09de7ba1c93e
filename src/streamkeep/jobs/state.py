"""One transaction of a queue: its settings, its counters, and its rows.

A `Step` is made for each transaction. `save` writes the counters, and is called once at its end.
What each job needs, it takes from the engine's functions themselves, since the checks of the public
methods would cost as much as the work: names and keys here are known to be right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.engine.commands.rows import row_delete, row_get, row_put, row_range
from streamkeep.engine.notify import wait_table
from streamkeep.engine.notify.wait_table import Event
from streamkeep.engine.tables.group import Group, find_group
from streamkeep.engine.tables.lag import lag
from streamkeep.engine.tables.lease_rows import Deliveries
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.txn.context import CachedRow
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.id_codec import id_text
from streamkeep.format.core.values import utf8
from streamkeep.jobs import layout

Reader = Transaction[Any] | Snapshot[Any]

SOON_MS: Final = 1000  # a waiting worker looks at the schedule this often, as at the store
EVERYONE: Final = wait_table.EVERYONE
JOB_PREFIX: Final = "job-"
_AT_ONCE: Final = 1000
_MINUTES_KEPT: Final = 1440
_MOST_DIGITS: Final = 24  # of a number below 2**64, and some zeros
_PRIORITY_PREFIXES: Final = ("high-", "", "low-")


class Settings(NamedTuple):
    """The settings of a queue, which all of its programs share."""

    paused: bool = False
    draining: bool = False
    max_length: int = 0
    concurrency: int = 0
    streams: tuple[int, ...] = (1,)  # the priorities that have a stream


@lru_cache(256)
def parse_settings(data: bytes) -> Settings:
    """Return the settings in their row. What a later version has added is ignored."""
    known = {name: value for name, value in json.loads(data).items() if name in Settings._fields}
    known["streams"] = tuple(known.get("streams", (1,)))
    return Settings(**known)


def load_settings(reader: Reader, names: layout.Names) -> Settings:
    data = row_get(reader.txn, names.prefix + layout.SETTINGS)
    return Settings() if data is None else parse_settings(data)


class KnownRows(CachedRow):
    """What a process knows of a queue, until another process commits or a transaction is undone.

    All processes change these rows by a `Step` only. So nearly all transactions read none of them.

    Attributes:
        counters: the value of their row.
        first_due_ms: no row of the schedule has a time before this one.
    """

    def __init__(self, settings: Settings, counters: bytes) -> None:
        self.settings = settings
        self.counters = counters
        self.first_due_ms = 0

    def save(self) -> None:
        """Write nothing: a step writes what it changes."""


def _known_rows(reader: Reader, names: layout.Names) -> KnownRows:
    txn = reader.txn
    key = (0, names.prefix)  # no stream has the number 0
    found = txn.find_attached(key) if isinstance(txn, WriteTxn) else None
    if isinstance(found, KnownRows):
        return found
    counters = row_get(txn, names.prefix + layout.COUNTERS)
    known = KnownRows(load_settings(reader, names), counters or b"")
    if isinstance(txn, WriteTxn):
        txn.attach(key, known)
    return known


class Step:
    """What a transaction does with one queue; on a snapshot, it can only read."""

    def __init__(self, txn: Reader, names: layout.Names) -> None:
        self.txn = cast("Transaction[Any]", txn)
        self.raw: Txn = txn.txn
        self.names = names
        self.space = names.space
        self.now_ms: int = self.raw.now_ms()
        self.deaths: dict[bytes, int] = {}  # that this step counts: marks, and their leases
        self.looked_at = 0  # jobs; a take that has refused them all may find others
        self._work_of_the_dead: dict[bytes, int] | None = None
        self._known = _known_rows(txn, names)
        self.settings = self._known.settings
        self._counters: layout.Counters | None = None

    # --- settings and counters ------------------------------------------------------------------

    @property
    def counters(self) -> layout.Counters:
        """The counters; `save` writes what changed."""
        if self._counters is None:
            self._counters = layout.Counters(self._known.counters)
        return self._counters

    def left_over(self) -> tuple[int, int]:
        """Return the counters that each take needs: `retrying` and `parked`."""
        counters = self._counters
        if counters is None:  # to decode and encode all takes 8 % of a take
            return layout.left_over(self._known.counters)
        return counters.retrying, counters.parked

    def save(self) -> None:
        """Write the counters if they changed."""
        counters, self._counters = self._counters, None  # a second save has nothing to do
        if counters is not None:
            data = counters.pack()
            if data != self._known.counters:
                self.put_row(layout.COUNTERS, data)
                self._known.counters = data
            if over := counters.over:
                minute, data = over
                self.put_row(layout.MINUTE + layout.pack_time(minute), data)
                last = layout.MINUTE + layout.pack_time(max(0, minute - _MINUTES_KEPT))
                for key, _ in self.rows(layout.MINUTE, last, 2):  # older than a day
                    self.delete_row(key)

    def change_settings(self, **changes: Any) -> None:
        self.settings = self._known.settings = self.settings._replace(**changes)
        self.put_row(layout.SETTINGS, json.dumps(self.settings._asdict()).encode())

    # --- rows of the queue ----------------------------------------------------------------------

    def writer(self) -> WriteTxn:
        """Return the transaction, which must be one that writes."""
        raw = self.raw
        assert isinstance(raw, WriteTxn)
        return raw

    def row(self, key: bytes) -> bytes | None:
        return row_get(self.raw, self.names.prefix + key)

    def put_row(self, key: bytes, value: bytes) -> None:
        row_put(self.writer(), self.names.prefix + key, value)

    def delete_row(self, key: bytes) -> bool:
        return row_delete(self.writer(), self.names.prefix + key)

    def rows(self, first: bytes, last: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return key and value of the rows from `first` to `last`, at most `count`."""
        return row_range(self.raw, self.names.prefix, first, last, count, False)

    # --- streams --------------------------------------------------------------------------------

    def dead_worker(self, place: layout.Place, deliveries: int) -> str | None:
        """Return which worker that is dead was running a delivery; note that this counts.

        None if none was; an empty text if its name is not known.
        """
        leases = self.raw.context.leases
        if leases is None:
            return None
        if self._work_of_the_dead is None:
            self._work_of_the_dead = leases.work_of_the_dead()
        mark = self.names.mark_of(place, deliveries)
        if mark not in self._work_of_the_dead:
            return None
        lease = self.deaths[mark] = self._work_of_the_dead[mark]
        found = find_group_of(self.txn, self.stream(place.priority))
        if found is not None:
            for one in found[1].consumers():
                if found[1].newest_lease(one) == lease:
                    return one.name.decode("utf-8", "replace")
        return ""

    def has_died(self, place: layout.Place) -> bool:
        """Return whether the process is dead that an entry was delivered to."""
        found = find_group_of(self.txn, self.stream(place.priority))
        if found is None:
            return False
        pel = found[1].pel
        nack = pel.get(place.ms, place.seq)
        return nack is not None and Deliveries(self.raw, pel).is_dead(nack)

    def past(self, place: layout.Place) -> layout.Past:
        """Return what is kept of the former runs of a job."""
        return layout.parse_past(self.row(layout.PAST + place.pack()))

    def keep_past(self, place: layout.Place, past: layout.Past) -> None:
        self.put_row(layout.PAST + place.pack(), past.pack())

    def stream(self, priority: int) -> bytes:
        return self.names.streams[priority]

    def make_stream(self, priority: int) -> None:
        name = self.names.streams[priority]
        if find_group_of(self.txn, name) is None:
            self.txn.xgroup_create(name, layout.GROUP, 0, mkstream=True)
        if priority not in self.settings.streams:
            self.change_settings(streams=tuple(sorted({*self.settings.streams, priority})))

    def set_up(self) -> None:
        """Make the streams and the row of the queue, unless they exist."""
        for priority, name in enumerate(self.names.streams):
            # Another program may have added an entry to a priority that had none.
            if priority in self.settings.streams or self.raw.find_stream(name) is not None:
                self.make_stream(priority)
        if self.txn.row_get(layout.QUEUES_SPACE, self.names.name) is None:
            self.txn.row_put(layout.QUEUES_SPACE, self.names.name, b'{"version":1}')

    def count_waiting(self) -> int:
        """Return how many jobs could start, as `QueueStats.waiting` says it."""
        waiting = self.counters.held + self.counters.parked
        for name in [self.stream(one) for one in self.settings.streams]:
            found = find_group_of(self.txn, name)
            if found is None:  # another program may have made the stream
                waiting += self.txn.xlen(name)
                continue
            stream, group = found
            unread = lag(stream.record, group.record)
            if unread is None:  # entries were deleted that the group had not read
                # Up to its position there are only jobs that run, retry or have just ended, in few
                # nodes, of which this reads the headers. What waits may be a million jobs.
                upto, _ = NodeWalk(self.raw, stream).count((0, 0), group.record.last_id(), False)
                unread = stream.record.length - upto
            waiting += unread
        return waiting

    def count_running(self, *, alive: bool = False) -> int:
        """Return how many entries a worker has; with `alive`, one that is not known to be dead.

        Others that are pending wait for a retry, or for a worker that knows their task.
        """
        running = 0
        for _, group in self._groups():
            if not group.record.pending:
                continue
            running += sum(one.pending for one in group.consumers())
            if alive:
                deliveries = Deliveries(self.raw, group.pel)
                for consumer in deliveries.dead_consumers():
                    running -= sum([len(its) for its in deliveries.dead_of(consumer)])
        return running

    def _groups(self) -> list[tuple[Stream, Group]]:
        found = [find_group_of(self.txn, self.stream(one)) for one in self.settings.streams]
        return [one for one in found if one is not None]

    def remove(self, place: layout.Place) -> None:
        """Acknowledge an entry and delete it."""
        name = self.stream(place.priority)
        self.txn.xackdel(name, layout.GROUP, place.entry_id, ref_policy="ACKED")

    def wake_workers(self, count: int = 1) -> None:
        """Wake waiting workers after the commit; a new entry does so by itself."""
        self.writer().events.append(Event(self.names.name, layout.GROUP, wait_table.GROUP, count))

    def ring(self, bell: bytes) -> None:
        """Wake the callers that wait for a key of the queue, after the commit."""
        self.writer().events.append(wait_table.replaced(bell))

    # --- the schedule ---------------------------------------------------------------------------

    def schedule(self, due_ms: int, kind: bytes, reference: bytes, value: bytes = b"") -> None:
        """Add a row to the schedule, and wake workers that would sleep too long."""
        self.put_row(layout.due_key(due_ms, kind, reference), value)
        self._known.first_due_ms = min(self._known.first_due_ms, due_ms)
        if due_ms <= self.now_ms:
            self.wake_workers()
        elif due_ms <= self.now_ms + SOON_MS:
            self.wake_workers(EVERYONE)

    def due(self, count: int) -> list[tuple[layout.Due, bytes]]:
        """Return rows of the schedule whose time has come, the oldest first, with their values."""
        known = self._known
        if self.now_ms < known.first_due_ms:
            return []
        last = layout.SCHEDULE + layout.pack_time(self.now_ms) + b"\xff"
        found = self.rows(layout.SCHEDULE, last, count)
        if not found:
            first = self.rows(layout.SCHEDULE, layout.SCHEDULE + b"\xff" * 8, 1)
            known.first_due_ms = layout.parse_due(first[0][0]).due_ms if first else layout.MOST_DUE
        return [(layout.parse_due(key), value) for key, value in found]

    # --- numbered jobs --------------------------------------------------------------------------

    def put_numbered(self, number: int, fields: layout.Fields) -> None:
        """Store a job that is in no stream."""
        self.put_row(layout.NUMBERED + layout.pack_time(number), layout.pack_fields(fields))

    def take_numbered(self, number: int) -> layout.Fields | None:
        """Remove a job that is in no stream, and return its fields; None if it is gone."""
        key = layout.NUMBERED + layout.pack_time(number)
        data = self.row(key)
        if data is None:
            return None
        self.delete_row(key)
        return layout.unpack_fields(data)

    def take_number(self) -> int:
        number = self.counters.next_number
        self.counters.next_number += 1
        return number


def rows_below(reader: Reader, space: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of the rows of a queue whose keys begin so, a thousand at a time."""
    first, last = prefix, prefix + b"\xff" * 130
    while rows := reader.row_range(space, first, last, _AT_ONCE):
        yield from rows
        first = rows[-1][0] + b"\0"


def find_group_of(reader: Reader, name: bytes) -> tuple[Stream, Group] | None:
    """Return a stream of a queue and its group; None if one of them is missing."""
    stream = reader.txn.find_stream(name)
    group = None if stream is None else find_group(reader.txn, stream, layout.GROUP)
    return None if stream is None or group is None else (stream, group)


def delivered_up_to(reader: Reader, name: bytes) -> bytes:
    """Return the ID of the last entry that workers have taken from a stream."""
    found = find_group_of(reader, name)
    return b"0-0" if found is None else id_text(*found[1].record.last_id())


# --- IDs of jobs --------------------------------------------------------------------------------


def job_id_of(place: layout.Place, fields: layout.Fields) -> str:
    own = fields.get(b"id")
    if own is None:
        return _PRIORITY_PREFIXES[place.priority] + place.entry_id
    return own.decode(errors="replace")  # of another program, it may be any bytes


def number_in(job_id: object) -> int:
    """Return the number in the ID of a numbered job; 0 for any other ID."""
    text = _text_of(job_id)
    digits = text[len(JOB_PREFIX) :]
    if not text.startswith(JOB_PREFIX) or not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        return 0
    return number if (number := int(digits)) < 1 << 64 else 0


def place_in(job_id: object) -> layout.Place | None:
    """Return the place that an ID names; None for a numbered job, and for what is no ID."""
    text = _text_of(job_id)
    if len(text) > 2 * _MOST_DIGITS:  # an int of 5,000 digits would be an error of Python
        return None
    for priority, prefix in ((0, "high-"), (2, "low-"), (1, "")):
        ms, dash, seq = text.removeprefix(prefix).partition("-")
        if text.startswith(prefix) and dash and ms.isdecimal() and seq.isdecimal():
            place = layout.Place(priority, int(ms), int(seq))
            return place if max(place.ms, place.seq) < 1 << 64 else None
    return None


def _text_of(job_id: object) -> str:
    """Return the ID of a job; raise ArgumentError for what cannot be one."""
    return utf8(job_id, "the ID of a job").decode()


def place_key(job_id: object) -> bytes:
    return layout.PLACE + layout.part_of(job_id, "the ID of a job")


def pending_row(reader: Reader, names: layout.Names, place: layout.Place) -> dict[str, Any] | None:
    """Return how an entry is pending, as XPENDING says it; None if it is not."""
    name, entry_id = names.streams[place.priority], place.entry_id
    if find_group_of(reader, name) is None:
        return None
    rows = reader.xpending_range(name, layout.GROUP, entry_id, entry_id, 1)
    return dict(rows[0]) if rows else None


def fields_at(reader: Reader, names: layout.Names, place: layout.Place) -> layout.Fields | None:
    """Return the fields of an entry; None if it was deleted."""
    name, entry_id = names.streams[place.priority], place.entry_id
    found = reader.xrange(name, entry_id, entry_id, 1)
    return found[0].fields if found else None


def numbered_fields(reader: Reader, names: layout.Names, number: bytes) -> layout.Fields:
    data = reader.row_get(names.space, layout.NUMBERED + number)
    return {} if data is None else layout.unpack_fields(data)
