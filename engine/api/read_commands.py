"""The commands that read entries of streams: XRANGE, XREAD, `scan`, XINFO STREAM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, Final

from streamkeep.engine.api.command_base import (
    CommandBase,
    Condition,
    Key,
    Named,
    RangeId,
    ReadStreams,
    Shape,
    check_lives,
    end_bound,
    facts,
    listed,
    named_streams,
    read,
    read_history,
    start_bound,
    to_condition,
    to_text,
)
from streamkeep.engine.blocking.calls import ReadCall
from streamkeep.engine.commands import history, xinfo, xrange, xread
from streamkeep.engine.commands.arguments import check_block, check_count, to_bytes, to_integer
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries, check_budget
from streamkeep.engine.commands.xinfo import Info
from streamkeep.engine.store.command import wait
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import Entry, StreamId, Text
from streamkeep.format.node.node import ENTRY
from streamkeep.format.node.ranges import Range
from streamkeep.format.node.where import Where

Delete = Callable[[bytes, Any], int]  # XDEL

_SCAN_BATCH = 256  # more live entries at once cost the garbage collector more than they save
_MOST_BATCH: Final = 4096  # of history, where each batch decompresses a block again
_BATCH_BYTES: Final = 1 << 20
_EXAMINED = 50_000  # entries that one batch of a scan with a condition reads


class ScanEntry(Entry[Text]):
    """The entry that `scan` has come to: an `Entry`, `(id, fields)`, with `delete`."""

    __slots__ = ()

    _of: ClassVar[tuple[Delete, bytes]]  # in a class for each stream

    def delete(self: Any) -> bool:  # mypy knows no subclasses of generic named tuples
        """Delete this entry (XDEL); return False if it was already deleted."""
        delete, name = self._of
        return bool(delete(name, self.id))

    def __reduce__(self: Any) -> tuple[object, ...]:
        """Copy and pickle as an `Entry`, which no store belongs to."""
        return Entry, tuple(self)


class ReadCommands(CommandBase[Text]):
    """The commands that read streams; a base of `StreamCommands`."""

    _scan_entry: type[ScanEntry[Any]] = ScanEntry
    _scan_kinds: Mapping[bytes, type] = MappingProxyType({})  # by stream; see `_scan_kind`

    # --- entries ----------------------------------------------------------------------------------

    def xlen(self, name: Key) -> int:
        """Return the number of entries of a stream, 0 if it is missing (XLEN)."""
        return self._run(read(_xlen, (to_bytes(name, "name"),)))

    def xrange(
        self,
        name: Key,
        min: RangeId = "-",
        max: RangeId = "+",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> list[Entry[Text]]:
        """Return entries with ascending IDs from `min` to `max`, both included (XRANGE).

        Args:
            min, max: an ID; `ms` without `seq` means all of that millisecond; `-` and `+` are the
                ends; `(id` excludes the ID itself. Or a time, which is its first millisecond: a
                datetime with a zone, a date, a text such as "2025-10-21T07:33:20Z" or "2025-10-21",
                in UTC without a zone, or an age such as "-2h". "(2025-10-22" excludes that
                millisecond, so that it is the end of the day before.
            count: return at most this many.
            history: also return entries that were trimmed while the stream archived: one ordered
                view of segments, retired nodes and live ones. Give a `count`, or use `scan`, if the
                archive is big.

        Returns:
            A list of `Entry`, each equal to redis-py's `(id, {field: value})`. It has the last
            value of a repeated field; `Entry.pairs` has all values.

        Raises:
            MissingSegmentError, CorruptionError: with `history`: a segment is lost or damaged.
        """
        limit = check_count("XRANGE", "count", count)
        low, high = start_bound("min", min, self._now_ms), end_bound("max", max, self._now_ms)
        return self._range(low, high, limit, False, name, history)

    def xrevrange(
        self,
        name: Key,
        max: RangeId = "+",
        min: RangeId = "-",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> list[Entry[Text]]:
        """Return entries with descending IDs from `max` to `min`, both included (XREVRANGE).

        Args:
            history: as with `xrange`.
        """
        limit = check_count("XREVRANGE", "count", count)
        low, high = start_bound("min", min, self._now_ms), end_bound("max", max, self._now_ms)
        return self._range(low, high, limit, True, name, history)

    def _range(
        self,
        start: tuple[int, int],
        end: tuple[int, int],
        count: int,
        newest_first: bool,
        name: Key,
        whole_history: bool,
        most_bytes: int = 0,
    ) -> list[Entry[Text]]:
        """Return entries of a range, up to the one with which they have `most_bytes` (if not 0)."""
        wanted = Range(*start, *end, count or NO_LIMIT, newest_first, self._shape)
        wanted.most_bytes = most_bytes
        shape = listed(self._entry_text)
        if whole_history:
            return self._run(read_history(_history, (to_bytes(name, "name"), wanted), shape))
        return self._run(read(xrange.xrange, (to_bytes(name, "name"), wanted), shape))

    def xread(
        self,
        streams: ReadStreams,
        count: int | None = None,
        block: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> list[Named[Text]]:
        """Return entries above the given IDs from several streams (XREAD).

        Args:
            streams: for each stream, the last ID that was seen; `$` is the last generated ID of the
                stream, `+` the ID before its last entry. A time, as in `xrange`, is the ID before
                the first of that time. A dict, or a list of (name, ID) pairs. A stream that is
                named several times is several times in the reply.
            count: return at most this many entries of each stream.
            block: wait for entries for at most this many milliseconds; 0: without limit; None: do
                not wait. `$` is then the last ID at the time when the wait began.
            max_count: return at most this many entries of all streams together.
            max_size: stop when the reply would have about this many bytes in Redis's protocol.

        Returns:
            `[name, [Entry, ...]]` of each stream that has entries; [] if none has.
        """
        block_ms = None if block is None else check_block("XREAD", block)
        limit = check_count("XREAD", "count", count)
        budget = check_budget("XREAD", count, max_count, max_size)
        named = named_streams("XREAD", streams, self._now_ms)
        wanted = [(name, xread.parse_read_id(text)) for name, text in named]
        if block_ms is None:
            args = wanted, limit, budget, self._shape
            found: Any = self._run(read(xread.xread, args, self._named_text))
        else:
            call = ReadCall(wanted, limit, budget.max_count, budget.max_size, self._shape)
            found = self._run(wait(call, block_ms, self._named_text))
        return found  # type: ignore[no-any-return]  # or a coroutine, or a pipeline

    @property
    def _named_text(self) -> Shape | None:
        """What turns the names in a reply of XREAD into text, and its entries if necessary."""
        if not self._decode or self._late_text:
            return self._entry_text
        return lambda result: [[name.decode(), entries] for name, entries in result]

    # --- iterators --------------------------------------------------------------------------------

    def scan(
        self,
        name: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        reverse: bool = False,
        history: bool = False,
        where: Condition | None = None,
    ) -> Iterator[ScanEntry[Text]]:
        """Iterate over the entries of a stream, as they were when the iteration began.

        The iterator holds one batch of entries in memory. It reads one snapshot, so a loop may
        delete its entry: `for entry in store.scan(key): entry.delete()`. While it runs, the store
        keeps every page of the snapshot, so close an iterator that you do not use up.

        In a transaction there is no snapshot. The iterator then reads batches of the stream as the
        transaction has changed it.

        Args:
            start, end: as `min` and `max` of `xrange`.
            reverse: from `end` to `start`.
            history: as with `xrange`. Each batch then has a snapshot of its own, so that an
                iteration over years of archive keeps no pages. Entries that are archived during
                the iteration are returned once.
            where: only entries with these fields: `{"user": 42, "kind": ["sale", "refund"]}` are
                those whose user is 42 and whose kind is one of the two. Values are compared as the
                bytes that `xadd` would store; of a repeated field any value may match. Compiled
                code tests it, and entries that do not match cost no objects.
        """
        low, high = start_bound("start", start, self._now_ms), end_bound("end", end, self._now_ms)
        wanted = None if where is None else to_condition(where)
        return self._scan(to_bytes(name, "name"), low, high, bool(reverse), history, wanted)

    def _scan(
        self,
        name: bytes,
        low: tuple[int, int],
        high: tuple[int, int],
        reverse: bool,
        whole_history: bool,
        condition: dict[bytes, list[bytes]] | None,
    ) -> Iterator[ScanEntry[Text]]:
        """Yield the entries of a range, in its order, read in batches of about a megabyte."""
        kind = self._scan_kind(name)
        shape, late = self._shape, self._entry_text
        most = _SCAN_BATCH
        with nullcontext() if whole_history else self._reading() as txn:
            while low <= high:
                wanted = Range(*low, *high, most, reverse, shape)
                where = None if condition is None else Where(condition, _EXAMINED)
                wanted.where = where
                if txn is not None:
                    check_lives(txn)
                try:
                    with translated():
                        batch: Entries = (
                            self._history_batch(name, wanted)
                            if txn is None
                            else xrange.xrange(txn, name, wanted)
                        )
                except UnicodeDecodeError:
                    # The entries before the one that is not UTF-8 are returned first.
                    shape, late = int(ENTRY), to_text
                    continue
                for one in batch if late is None else map(late, batch):
                    one.__class__ = kind
                    yield one
                if where is not None and where.last is not None:
                    last = StreamId(*where.last)
                elif len(batch) < most:
                    return
                else:
                    last = StreamId.parse(batch[-1].id)
                if last == (low if reverse else high):
                    return
                if reverse:
                    high = last.previous()
                else:
                    low = last.next()
                if batch:
                    most = _next_size(most, batch, _MOST_BATCH if txn is None else _SCAN_BATCH)

    def _scan_kind(self, name: bytes) -> Any:
        """Return the class of the entries of a stream, in which is what `delete` needs.

        To give an entry another class takes a fifth of the time of a second object with an
        attribute of its own.
        """
        kind = self._scan_kinds.get(name)
        if kind is None:
            base = self._scan_entry
            members = {"__slots__": (), "_of": (self._deleter(), name), "__doc__": base.__doc__}
            kind = type(base.__name__, (base,), members)
            self._scan_kinds = (
                {**self._scan_kinds, name: kind} if len(self._scan_kinds) < 64 else {}
            )
        return kind

    def _history_batch(self, name: bytes, wanted: Range) -> Entries:
        return self._run(read_history(_history, (name, wanted)))

    def _deleter(self) -> Delete:
        raise NotImplementedError

    # --- information ------------------------------------------------------------------------------

    def xinfo_stream(self, name: Key, full: bool = False, count: int = 10) -> Info:
        """Return the properties of a stream, in redis-py's shape (XINFO STREAM).

        Args:
            full: include entries and groups in detail (FULL).
            count: how many entries, and pending entries of each kind, `full` lists; 0 for all.

        Raises:
            NoSuchKeyError: the stream does not exist.
        """
        if full:
            most = to_integer("count", count)
            limit = 10 if most < 0 else most
            args = to_bytes(name, "name"), limit, self._shape
            return self._run(read(xinfo.xinfo_stream_full, args, facts(self._text)))
        shape = facts(self._text)
        return self._run(read(xinfo.xinfo_stream, (to_bytes(name, "name"), self._shape), shape))


def _next_size(size: int, batch: Entries, most: int) -> int:
    """Return how many entries the next batch of an iteration has, by the size of this one."""
    sample = batch[:: max(1, len(batch) // 16)]
    size_bytes = sum(
        100 + sum(len(field) + len(value) + 100 for field, value in one.pairs) for one in sample
    )
    fitting = _BATCH_BYTES * len(sample) // size_bytes
    return max(1, min(2 * size, fitting, most))


def _history(txn: Txn, name: bytes, wanted: Range) -> Entries:
    """Read history. Restore the range after an error, because the command may run again."""
    left, most_bytes = wanted.limit, wanted.most_bytes
    where = wanted.where
    budget = 0 if where is None else where.left
    try:
        return history.xrange(txn, name, wanted)
    except history.Unreadable:
        wanted.limit, wanted.most_bytes = left, most_bytes
        if where is not None:
            where.left, where.last = budget, None
        raise


def _xlen(txn: Txn, name: bytes) -> int:
    stream = txn.find_stream(name)
    return 0 if stream is None else int(stream.record.length)
