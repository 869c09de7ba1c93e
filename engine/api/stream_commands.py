"""The commands of Redis Streams as methods, with redis-py's names, parameters and return shapes.

`StreamCommands` only checks and converts arguments; its subclasses decide where a command runs
(see `command_base`). Arguments that redis-py refuses on the client side raise `ArgumentError` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, Literal, overload

from streamkeep.engine.api.command_base import (
    Fields,
    Id,
    Key,
    Pair,
    RefPolicy,
    Streams,
    free,
    named_streams,
    read,
    read_history,
    remove,
    to_text,
    write,
)
from streamkeep.engine.api.group_commands import GroupCommands
from streamkeep.engine.blocking.calls import ReadCall
from streamkeep.engine.commands import (
    dump,
    history,
    keys,
    load,
    retention,
    xadd,
    xdel,
    xinfo,
    xrange,
    xread,
    xtrim,
)
from streamkeep.engine.commands.arguments import (
    as_given,
    check_block,
    check_count,
    check_integer,
    check_policy,
    no_arguments,
    pairs_to_flat,
    range_end,
    range_start,
    refused,
    to_bytes,
    to_id,
    to_id_text,
    to_integer,
    to_optional_integer,
    to_pairs,
)
from streamkeep.engine.commands.glob import glob
from streamkeep.engine.commands.idempotency import check_idempotent
from streamkeep.engine.commands.reply_budget import NO_LIMIT, Entries, Found, check_budget
from streamkeep.engine.commands.xinfo import Info
from streamkeep.engine.store.command import wait
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import Entry, StreamId, Text
from streamkeep.format.core.errors import ArgumentError, CommandError, StoreClosedError
from streamkeep.format.node.node import PAIRS, Range
from streamkeep.format.redis.stream_dump import TARGETS
from streamkeep.format.rows.producers import content_iid
from streamkeep.format.rows.retention import Retention

_SCAN_BATCH = 256


class ScanEntry(Generic[Text]):
    """An entry that `scan` stands on: its ID, its pairs, and `delete`."""

    __slots__ = ("_commands", "_name", "id", "pairs")

    def __init__(
        self, commands: StreamCommands[Text], name: bytes, entry_id: StreamId, flat: list[Text]
    ) -> None:
        self._commands: StreamCommands[Text] = commands
        self._name = name
        self.id = entry_id
        self.pairs: list[tuple[Text, Text]] = list(zip(flat[0::2], flat[1::2], strict=True))

    @property
    def fields(self) -> dict[Text, Text]:
        """The pairs as a dict; of a field that is repeated, the last value."""
        return dict(self.pairs)

    def delete(self) -> bool:
        """Delete this entry (XDEL); False when it was gone already."""
        return bool(self._commands.xdel(self._name, self.id))

    def __repr__(self) -> str:
        return f"ScanEntry({self.id}, {self.pairs!r})"


class StreamCommands(GroupCommands[Text]):
    """Every stream command; see the subclasses for how each runs.

    `Text` is bytes, or str with decode_responses=True.
    """

    # --- append -----------------------------------------------------------------------------

    @overload
    def xadd(
        self,
        name: Key,
        fields: Fields,
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: Literal[False] = False,
        minid: Id | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text: ...

    @overload
    def xadd(
        self,
        name: Key,
        fields: Fields,
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: bool = False,
        minid: Id | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text | None: ...

    def xadd(
        self,
        name: Key,
        fields: Fields,
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: bool = False,
        minid: Id | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text | None:
        """Append an entry to a stream, which is created when missing (XADD).

        The entry and all counters change in one transaction: a reader or a crash sees all or
        nothing. Durable on return as the store's `sync` says.

        Args:
            fields: at least one field and its value.
            id: `*` for one from the clock, `ms-*` for the next in that millisecond, or an ID
                above the stream's last one.
            maxlen, minid: trim the stream afterwards to this many entries, or to IDs from this
                one on; not both.
            approximate: trim whole macro nodes only, which is cheaper and may leave more.
            nomkstream: do nothing when the stream is missing.
            limit: trim at most about this many entries; only with `approximate`. By default 10,000
                (100 times node_max_entries, where that is set); 0: no limit.
            ref_policy: what trimming means to groups: "KEEPREF" leaves what is pending, "DELREF"
                removes it, "ACKED" trims only what every group has read and acknowledged.
            idmp: (producer, message ID): an entry that this producer sent before under this ID is
                not added again; the ID of the first one is returned.
            idmpauto: a producer; the message ID is made from the fields.

        Returns:
            The ID as bytes `b"ms-seq"` (str with decode_responses); None when `nomkstream` applied.

        Raises:
            IdTooSmallError: the ID is not above the stream's last ID.
            ArgumentError, InvalidIdError: an argument is not valid.
            StoreFullError: no room on the disk; the store still reads and deletes.
        """
        flat = to_pairs(fields)
        message = None
        if idmpauto is not None or idmp is not None:
            message = _message(flat, id, idmpauto, idmp)
        trim_spec = None
        if maxlen is not None or minid is not None or limit is not None or ref_policy is not None:
            trim_spec = _trim_spec("XADD", maxlen, approximate, minid, limit, ref_policy)
        new_id = xadd.ANY_ID if id == "*" else xadd.parse_new_id(to_id_text(id))
        stay = bool(nomkstream)
        return self._run(
            write(
                xadd.xadd,
                (to_bytes(name, "name"), flat, new_id, stay, trim_spec, message),
                self._id_text,
            )
        )

    @overload
    def xadd_pairs(
        self,
        name: Key,
        pairs: Iterable[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: Literal[False] = False,
        minid: Id | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text: ...

    @overload
    def xadd_pairs(
        self,
        name: Key,
        pairs: Iterable[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: bool = False,
        minid: Id | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text | None: ...

    def xadd_pairs(
        self,
        name: Key,
        pairs: Iterable[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: bool = False,
        minid: Id | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text | None:
        """Append an entry given as (field, value) pairs (XADD).

        Their order and duplicate fields are kept. All else is as with `xadd`.
        """
        flat = pairs_to_flat(list(pairs))
        message = _message(flat, id, idmpauto, idmp)
        spec = _trim_spec("XADD", maxlen, approximate, minid, limit, ref_policy)
        new_id = xadd.parse_new_id(to_id_text(id))
        stay = bool(nomkstream)
        return self._run(
            write(
                xadd.xadd,
                (to_bytes(name, "name"), flat, new_id, stay, spec, message),
                self._id_text,
            )
        )

    def xadd_many(
        self,
        name: Key,
        entries: Iterable[Fields | Iterable[Pair]],
        ids: Iterable[Id] | None = None,
    ) -> list[Text]:
        """Append many entries in one transaction: all of them or none.

        Args:
            entries: each a dict, or a list of (field, value) pairs.
            ids: an ID for each entry, as `xadd` takes them; None for `*`.

        Returns:
            The IDs, in order.

        Raises:
            IdTooSmallError: an ID is not above the one before; `error.entry_index` says which.
        """
        flats = [
            to_pairs(entry) if isinstance(entry, dict) else pairs_to_flat(_listed(entry))
            for entry in entries
        ]
        new_ids = None
        if ids is not None:
            new_ids = [xadd.parse_new_id(to_id_text(one)) for one in ids]
            if len(new_ids) != len(flats):
                raise ArgumentError(f"{len(flats)} entries, but {len(new_ids)} ids")
        if not flats:
            raise ArgumentError("XADD needs at least one entry")
        return self._run(
            write(xadd.xadd_many, (to_bytes(name, "name"), flats, new_ids), self._text)
        )

    def xsetid(
        self,
        name: Key,
        id: Id,
        entries_added: int | None = None,
        max_deleted_id: Id | None = None,
    ) -> bool:
        """Set the stream's last generated ID, and two of its counters where given (XSETID).

        Raises:
            NoSuchKeyError: the stream does not exist.
            CommandError: the ID is below what the stream holds or has deleted.
        """
        last = to_id(id)
        added = to_optional_integer("entries_added", entries_added)
        deleted = None if max_deleted_id is None else to_id(max_deleted_id)
        return self._run(write(xinfo.xsetid, (to_bytes(name, "name"), last, added, deleted)))

    # --- read -------------------------------------------------------------------------------

    def xlen(self, name: Key) -> int:
        """Return the number of entries of a stream, 0 when it is missing (XLEN)."""
        return self._run(read(_xlen, (to_bytes(name, "name"),)))

    def xrange(
        self,
        name: Key,
        min: Id = "-",
        max: Id = "+",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> list[Entry[Text]]:
        """Return entries with ascending IDs from `min` to `max`, both included (XRANGE).

        Args:
            min, max: an ID; `ms` alone stands for all of that millisecond; `-` and `+` for the
                ends; `(id` excludes the ID itself.
            count: at most this many.
            history: also what was trimmed while the stream archived: one ordered view across
                segments, retired nodes and live ones. Give a `count`, or use `scan`, where the
                archive is big.

        Returns:
            A list of `Entry`, each equal to redis-py's `(id, {field: value})`. Of a repeated field
            that has the last value; `Entry.pairs` has all.

        Raises:
            MissingSegmentError, CorruptionError: the archive is not whole (`history`).
        """
        limit = check_count("XRANGE", "count", count)
        return self._range(range_start(min), range_end(max), limit, False, name, history)

    def xrevrange(
        self,
        name: Key,
        max: Id = "+",
        min: Id = "-",
        count: int | None = None,
        *,
        history: bool = False,
    ) -> list[Entry[Text]]:
        """Return entries with descending IDs from `max` to `min`, both included (XREVRANGE).

        Args:
            history: as with `xrange`.
        """
        limit = check_count("XREVRANGE", "count", count)
        return self._range(range_start(min), range_end(max), limit, True, name, history)

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
        return self._run(read(xrange.xrange, (to_bytes(name, "name"), wanted), self._entry_text))

    def xread(
        self,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> Found:
        """Return entries above the given IDs from several streams (XREAD).

        Args:
            streams: for each stream the last ID that was seen; `$` stands for the stream's last
                generated ID, `+` for the ID before its last entry. A dict, or a list of (name, ID)
                pairs, which may name a stream again: the reply has it as often.
            count: at most this many of each stream.
            block: wait for entries, at most as many milliseconds, 0 for ever; None does not. `$`
                then means the last ID as it was when the wait began.
            max_count: at most this many of all streams together.
            max_size: stop when the reply would have about this many bytes in Redis's protocol.

        Returns:
            `[name, [Entry, ...]]` of each stream that has entries; [] when none has or none came.
        """
        block_ms = None if block is None else check_block("XREAD", block)
        limit = check_count("XREAD", "count", count)
        budget = check_budget("XREAD", count, max_count, max_size)
        named = named_streams("XREAD", streams)
        wanted = [(name, xread.parse_read_id(text)) for name, text in named]
        if block_ms is None:
            return self._run(
                read(xread.xread, (wanted, limit, budget, self._shape), self._named_text)
            )
        call = ReadCall(wanted, limit, budget.max_count, budget.max_size, self._shape)
        return self._run(wait(call, block_ms, self._named_text))

    def scan(
        self,
        name: Key,
        start: Id = "-",
        end: Id = "+",
        *,
        reverse: bool = False,
        history: bool = False,
    ) -> Iterator[ScanEntry[Text]]:
        """Iterate over the entries of a stream, as they were when the iteration began.

        Memory stays bounded by a batch. The iterator reads one snapshot, so a loop may delete the
        entry it stands on: `for entry in store.scan(key): entry.delete()`. While it runs, the
        store keeps every page of the snapshot; close iterators that are not used up.

        In a transaction there is no snapshot to read: the iterator goes on in what the
        transaction has made of the stream, a batch of entries at a time.

        Args:
            start, end: as `min` and `max` of `xrange`.
            reverse: from `end` to `start`.
            history: as with `xrange`. Each batch is then read from a snapshot of its own, so that
                an iteration over years of archive keeps no pages: what is archived meanwhile is
                neither missed nor seen twice.
        """
        low, high = range_start(start), range_end(end)
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
                    yield ScanEntry(self._writer(), name, StreamId(ms, seq), pairs)
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

    def _writer(self) -> StreamCommands[Text]:
        """Return what deletes a scanned entry."""
        return self

    # --- remove -----------------------------------------------------------------------------

    def xdel(self, name: Key, *ids: Id) -> int:
        """Delete entries; return how many there were (XDEL)."""
        if not ids:
            raise no_arguments("xdel")
        return self._run(
            free(xdel.xdel, (to_bytes(name, "name"), [to_id_text(one) for one in ids]))
        )

    def xtrim(
        self,
        name: Key,
        maxlen: int | None = None,
        approximate: bool = True,
        minid: Id | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
    ) -> int:
        """Remove the oldest entries of a stream; return how many went (XTRIM).

        Args:
            maxlen: how many entries stay; or
            minid: the lowest ID that stays.
            approximate: remove whole macro nodes only; up to one node more than asked for stays.
            limit: remove at most about this many; only with `approximate`. By default 10,000 (100
                times node_max_entries, where that is set), so call again while something goes; 0:
                no limit.
            ref_policy: "KEEPREF" leaves what groups have pending, "DELREF" removes it, "ACKED"
                trims only what every group has read and acknowledged. With the latter two, entries
                go one by one, and of `approximate` only the limit is left.
        """
        if maxlen is None and minid is None:
            raise ArgumentError("One of ``maxlen`` or ``minid`` must be specified")
        spec = _trim_spec("XTRIM", maxlen, approximate, minid, limit, ref_policy)
        assert spec is not None
        return self._run(free(xtrim.xtrim, (to_bytes(name, "name"), spec)))

    def trim_range(self, name: Key, start: Id, end: Id) -> int:
        """Trim the entries from `start` to `end`, anywhere in a stream; return how many went.

        What is trimmed under archiving goes to the archive, as with `xtrim`. Macro nodes that lie
        in the range go as nodes. last_generated_id and entries_added stay; entries that others
        stay before count as deleted in max_deleted_id, so that the lag of a group which has yet to
        come to the range is unknown (None), and not wrong.

        Args:
            start, end: as `min` and `max` of `xrange`, both included.
        """
        low, high = range_start(start), range_end(end)
        return self._run(free(xtrim.trim_range, (to_bytes(name, "name"), low, high)))

    # --- retention --------------------------------------------------------------------------

    def set_retention(
        self,
        name: Key,
        *,
        maxlen: int | None = None,
        max_age_ms: int | None = None,
        max_bytes: int | None = None,
        archive: bool | None = None,
        keep_unacknowledged: bool | None = None,
        approximate: bool | None = None,
        archive_max_age_ms: int | None = None,
        keep_max_bytes: int | None = None,
        when_full: Literal["refuse", "trim"] | None = None,
    ) -> Retention:
        """Say how much of a stream stays, and what becomes of the rest; return all settings.

        Appends keep the stream within its limits from now on; what is beyond them already goes in
        small steps with the next appends, or at once with `Store.maintain`, which also sees to
        the age of streams that nobody appends to. A stream that does not exist is created empty.
        A setting that is None stays as it is; -1 removes a limit.

        Args:
            maxlen: how many entries stay.
            max_age_ms: how old entries get, by the time in their IDs.
            max_bytes: how much their macro nodes take. Whole nodes go; the newest always stays.
            archive: whether what is trimmed goes to the archive instead of away, by whatever
                command: XTRIM, XADD with MAXLEN or MINID, `trim_range`, retention. XDEL deletes.
            keep_unacknowledged: retention waits until every group has read and acknowledged.
            approximate: `maxlen` and `max_age_ms` remove whole macro nodes only, which costs a
                fraction and leaves up to one node more.
            archive_max_age_ms: how old archived entries get; `Store.maintain` drops segments whose
                last entry is older.
            keep_max_bytes: with keep_unacknowledged, how much the nodes may take while groups are
                waited for. None: until the store itself is full.
            when_full: what happens beyond that. "refuse": appends raise StreamFullError until
                groups acknowledge. "trim": the oldest entries go all the same.
        """
        change = retention.RetentionChange(
            maxlen,
            max_age_ms,
            max_bytes,
            archive,
            keep_unacknowledged,
            approximate,
            archive_max_age_ms,
            keep_max_bytes,
            when_full,
        )
        change.check()
        return self._run(write(retention.set_retention, (to_bytes(name, "name"), change)))

    def retention(self, name: Key) -> Retention:
        """Return the settings of `set_retention`; without limits where nothing was set.

        Raises:
            NoSuchKeyError: the stream does not exist.
        """
        return self._run(read(retention.retention, (to_bytes(name, "name"),)))

    def delete(self, *names: Key) -> int:
        """Delete streams with all they hold; return how many there were (DEL).

        The streams are gone at once; what they take on the disk is freed in bounded steps.
        """
        return self._delete("del", names)

    def unlink(self, *names: Key) -> int:
        """As `delete`: removal is always deferred (UNLINK)."""
        return self._delete("unlink", names)

    def _delete(self, command: str, names: tuple[Key, ...]) -> int:
        if not names:
            raise no_arguments(command)
        return self._run(remove(keys.delete, ([to_bytes(name, "a name") for name in names],)))

    # --- keys -------------------------------------------------------------------------------

    def exists(self, *names: Key) -> int:
        """Return how many of the names are streams (EXISTS)."""
        if not names:
            raise no_arguments("exists")
        return self._run(read(keys.exists, ([to_bytes(name, "a name") for name in names],)))

    def type(self, name: Key) -> Text:
        """Return `stream`, or `none` when there is no such key (TYPE)."""
        return self._run(read(_type, (to_bytes(name, "name"),), self._one_text))

    def keys(self, pattern: Key = "*") -> list[Text]:
        """Return the names of all streams that match a glob pattern, ascending (KEYS)."""
        return self._run(read(_keys, (to_bytes(pattern, "pattern"),), self._text))

    def scan_iter(self, match: Key | None = None, count: int | None = None) -> Iterator[Text]:
        """Iterate over the names of streams, ascending, on one snapshot (SCAN).

        Args:
            match: a glob pattern.
            count: a hint in Redis, without effect here.
        """
        pattern = None if match is None else glob(to_bytes(match, "match"))
        txn, must_close = self._begin_scan()
        try:
            with translated():
                for name, _ in keys.iter_keys(txn):
                    if pattern is None or pattern.fullmatch(name):
                        yield self._as_text(name)
        finally:
            if must_close:
                txn.close()

    def rename(self, src: Key, dst: Key) -> bool:
        """Rename a stream; a stream of the new name is deleted (RENAME).

        Raises:
            NoSuchKeyError: there is no stream `src`.
        """
        return self._run(remove(keys.rename, (to_bytes(src, "src"), to_bytes(dst, "dst"), False)))

    def renamenx(self, src: Key, dst: Key) -> bool:
        """Rename a stream unless the new name is taken; say whether it was renamed (RENAMENX)."""
        return self._run(write(keys.rename, (to_bytes(src, "src"), to_bytes(dst, "dst"), True)))

    # --- to and from Redis ------------------------------------------------------------------

    def dump(self, name: Key, server: str = "7.2") -> bytes | None:
        """Return a stream as Redis's RESTORE takes it, groups included; None when missing (DUMP).

        Costs memory for the whole stream; `streamkeep dump` and RDB files do not.

        Args:
            server: the oldest Redis that is to read it: "5.0", "7.0", "7.2" (also every Valkey),
                "8.6", "8.8" or "8.10". Older ones have no place for all that a stream holds; only
                "8.8" and later lose nothing.
        """
        if server not in TARGETS:
            raise ArgumentError(f"server must be one of {', '.join(TARGETS)}, not {server!r}")
        return self._run(read(dump.dump, (to_bytes(name, "name"), server)))

    def restore(self, name: Key, ttl: int, value: bytes, replace: bool = False) -> bool:
        """Create a stream from what DUMP of a Redis, a Valkey or a store returned (RESTORE).

        Every byte is checked; the macro nodes are taken over as they are.

        Args:
            ttl: must be 0: streams of a store do not expire.
            replace: delete a stream of that name first; otherwise it is an error.

        Raises:
            KeyExistsError: the key exists.
            CommandError: the payload is damaged, is of no stream, or of a newer version; the
                CorruptionError that caused it says more. Nothing was changed.
        """
        if ttl != 0:
            raise ArgumentError(f"ttl must be 0, not {ttl!r}: streams of a store do not expire")
        return self._run(
            remove(load.restore, (to_bytes(name, "name"), to_bytes(value, "value"), replace))
        )

    # --- observe ----------------------------------------------------------------------------

    def xinfo_stream(self, name: Key, full: bool = False, count: int = 10) -> Info:
        """Return what the store knows of a stream, in redis-py's shape (XINFO STREAM).

        Args:
            full: with entries and groups in detail (FULL).
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
            read(xinfo.xinfo_stream, (to_bytes(name, "name"), self._shape), self._text)
        )


def _history(txn: Txn, name: bytes, wanted: Range) -> Entries:
    """Read history; reading uses the range up, and this may run again."""
    left = wanted.limit
    try:
        return history.xrange(txn, name, wanted)
    except history.Unreadable:
        wanted.limit = left
        raise


def _xlen(txn: Txn, name: bytes) -> int:
    stream = txn.find_stream(name)
    return 0 if stream is None else int(stream.record.length)


def _type(txn: Txn, name: bytes) -> bytes:
    return b"none" if txn.find_stream(name) is None else b"stream"


def _keys(txn: Txn, pattern: bytes) -> list[bytes]:
    if pattern == b"*":
        return [name for name, _ in keys.iter_keys(txn)]
    matcher = glob(pattern)
    return [name for name, _ in keys.iter_keys(txn) if matcher.fullmatch(name)]


def _message(
    flat: list[bytes], id: Id, idmpauto: Key | None, idmp: tuple[Key, Key] | None
) -> xadd.Message | None:
    """Check the options IDMP and IDMPAUTO with the words of redis-py and Redis."""
    if idmpauto is None and idmp is None:
        return None
    if idmpauto is not None and idmp is not None:
        raise ArgumentError("Only one of ``idmpauto`` or ``idmp`` may be specified")
    if to_id_text(id) != b"*":
        raise ArgumentError(f"IDMPAUTO and IDMP can only be used with id='*', not {as_given(id)}")
    if idmp is None:
        producer = to_bytes(idmpauto, "idmpauto")
        check_idempotent(producer, None, True)
        return xadd.Message(producer, content_iid(flat))
    if not isinstance(idmp, tuple) or len(idmp) != 2:
        raise ArgumentError(
            f"XADD idmp must be a tuple of (producer_id, idempotent_id), not {as_given(idmp)}"
        )
    producer, iid = to_bytes(idmp[0], "idmp[0]"), to_bytes(idmp[1], "idmp[1]")
    check_idempotent(producer, iid, True)
    return xadd.Message(producer, iid)


def _listed(entry: Iterable[object]) -> object:
    return entry if isinstance(entry, (list, tuple, Mapping)) else list(entry)


def _trim_spec(
    command: str,
    maxlen: int | None,
    approximate: bool,
    minid: Id | None,
    limit: int | None,
    ref_policy: str | None,
) -> xtrim.TrimSpec | None:
    """Check the trimming options in the order and with the words of redis-py and Redis."""
    if maxlen is not None and minid is not None:
        raise ArgumentError("Only one of ``maxlen`` or ``minid`` may be specified")
    policy = 0 if ref_policy is None else check_policy(command, ref_policy)
    stay = 0
    if maxlen is not None and command == "XADD":
        stay = check_integer("XADD maxlen must be non-negative integer", "maxlen", maxlen, 0)
    elif maxlen is not None:
        stay = to_integer("maxlen", maxlen)
        if stay < 0:
            problem = "The MAXLEN argument must be >= 0."
            raise refused(problem, "maxlen", maxlen, "a number of entries is expected")
    ms, seq = (0, 0) if minid is None else to_id(minid)
    chosen = xtrim.DEFAULT_LIMIT
    if limit is not None:
        chosen = to_integer("limit", limit)
        if chosen < 0:
            problem = "The LIMIT argument must be >= 0."
            raise refused(problem, "limit", limit, "a number of entries is expected")
        if maxlen is None and minid is None and chosen > 0:
            raise CommandError(
                "syntax error, LIMIT cannot be used without specifying a trimming strategy"
            )
        if not approximate or (maxlen is None and minid is None):
            raise CommandError("syntax error, LIMIT cannot be used without the special ~ option")
    if maxlen is None and minid is None:
        return None
    strategy = xtrim.MAXLEN if maxlen is not None else xtrim.MINID
    return xtrim.TrimSpec(strategy, stay, ms, seq, bool(approximate), chosen, policy)
