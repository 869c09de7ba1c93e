"""The commands that read entries of streams: XRANGE, XREAD, `scan`, XINFO STREAM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic

from streamkeep.engine.api.command_base import (
    CommandBase,
    Key,
    RangeId,
    ReadStreams,
    Shape,
    end_bound,
    named_streams,
    read,
    read_briefly,
    read_history,
    start_bound,
    to_text,
)
from streamkeep.engine.blocking.calls import ReadCall
from streamkeep.engine.commands import (
    history,
    xinfo,
    xrange,
    xread,
)
from streamkeep.engine.commands.arguments import (
    check_block,
    check_count,
    to_bytes,
    to_integer,
)
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries, Found, check_budget
from streamkeep.engine.commands.xinfo import Info
from streamkeep.engine.store.command import wait
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import Entry, StreamId, Text
from streamkeep.format.core.errors import (
    StoreClosedError,
)
from streamkeep.format.node.node import PAIRS
from streamkeep.format.node.ranges import Range

Delete = Callable[[bytes, StreamId], int]  # XDEL

_SCAN_BATCH = 256
_FEW = 128  # entries for which writers may wait


class ScanEntry(Generic[Text]):
    """The entry that `scan` has come to: its ID, its pairs, and `delete`."""

    __slots__ = ("_delete", "_name", "id", "pairs")

    def __init__(self, delete: Delete, name: bytes, entry_id: StreamId, flat: list[Text]) -> None:
        self._delete = delete
        self._name = name
        self.id = entry_id
        self.pairs: list[tuple[Text, Text]] = list(zip(flat[0::2], flat[1::2], strict=True))

    @property
    def fields(self) -> dict[Text, Text]:
        """The pairs as a dict, with the last value of a repeated field."""
        return dict(self.pairs)

    def delete(self) -> bool:
        """Delete this entry (XDEL); return False if it was already deleted."""
        return bool(self._delete(self._name, self.id))

    def __repr__(self) -> str:
        return f"ScanEntry({self.id}, {self.pairs!r})"


class ReadCommands(CommandBase[Text]):
    """The commands that read streams; a base of `StreamCommands`."""

    # --- entries ----------------------------------------------------------------------------------

    def xlen(self, name: Key) -> int:
        """Return the number of entries of a stream, 0 if it is missing (XLEN)."""
        return self._run(read_briefly(_xlen, (to_bytes(name, "name"),)))

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
    ) -> list[Entry[Text]]:
        wanted = Range(*start, *end, count or NO_LIMIT, newest_first, self._shape)
        if whole_history:
            return self._run(
                read_history(_history, (to_bytes(name, "name"), wanted), self._entry_text)
            )
        kind = read_briefly if 0 < count <= _FEW else read
        return self._run(kind(xrange.xrange, (to_bytes(name, "name"), wanted), self._entry_text))

    def xread(
        self,
        streams: ReadStreams,
        count: int | None = None,
        block: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> Found:
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
            kind = read_briefly if 0 < limit * len(wanted) <= _FEW else read
            return self._run(
                kind(xread.xread, (wanted, limit, budget, self._shape), self._named_text)
            )
        call = ReadCall(wanted, limit, budget.max_count, budget.max_size, self._shape)
        return self._run(wait(call, block_ms, self._named_text))

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
        """
        low, high = start_bound("start", start, self._now_ms), end_bound("end", end, self._now_ms)
        return self._scan(to_bytes(name, "name"), low, high, bool(reverse), history)

    def _scan(
        self,
        name: bytes,
        low: tuple[int, int],
        high: tuple[int, int],
        reverse: bool,
        whole_history: bool,
    ) -> Iterator[ScanEntry[Text]]:
        txn, must_close = (None, False) if whole_history else self._begin_scan()
        delete = self._deleter()
        try:
            while low <= high:
                wanted = Range(*low, *high, _SCAN_BATCH, reverse, int(PAIRS))
                if txn is not None and not txn.open:
                    raise StoreClosedError("the transaction or snapshot of the iterator has ended")
                with translated():
                    batch: Entries = (
                        self._history_batch(name, wanted)
                        if txn is None
                        else xrange.xrange(txn, name, wanted)
                    )
                for ms, seq, flat in batch:
                    pairs: list[Text] = to_text(flat) if self._decode else flat
                    yield ScanEntry(delete, name, StreamId(ms, seq), pairs)
                last = StreamId(batch[-1][0], batch[-1][1]) if batch else low
                if len(batch) < _SCAN_BATCH or last == (low if reverse else high):
                    return
                if reverse:
                    high = StreamId(*last).previous()
                else:
                    low = StreamId(*last).next()
        finally:
            if must_close and txn is not None:
                txn.close()

    def _history_batch(self, name: bytes, wanted: Range) -> Entries:
        """Return the next entries of an iteration over history."""
        return self._run(read_history(_history, (name, wanted)))

    def _deleter(self) -> Delete:
        """Return what deletes a scanned entry."""
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
            return self._run(
                read(
                    xinfo.xinfo_stream_full,
                    (to_bytes(name, "name"), limit, self._shape),
                    self._text,
                )
            )
        return self._run(
            read_briefly(xinfo.xinfo_stream, (to_bytes(name, "name"), self._shape), self._text)
        )


def _history(txn: Txn, name: bytes, wanted: Range) -> Entries:
    """Read history. Restore the range after an error, because the command may run again."""
    left = wanted.limit
    try:
        return history.xrange(txn, name, wanted)
    except history.Unreadable:
        wanted.limit = left
        raise


def _xlen(txn: Txn, name: bytes) -> int:
    stream = txn.find_stream(name)
    return 0 if stream is None else int(stream.record.length)
