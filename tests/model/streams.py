"""A plain in-memory model of Redis Streams: what every command answers, and what it changes.

The semantics are those of Redis 8.10. The model is the yardstick for the engine, so it shares no
code with it, and is obvious before it is fast: it derives what it can, and copies what it must
not change. Arguments are explicit values, never text: IDs are pairs of numbers, time is handed
in. Where Redis answers with an error line, `ModelError` carries that line. Blocking is left out.

Replies are Redis's, with IDs as pairs of numbers, entries as (id, pairs) and maps as dicts; nil
is None.
"""

from __future__ import annotations

from itertools import dropwhile
from typing import Any

from model import values
from model.group_commands import GroupCommands
from model.idempotency import IdempotencyCommands, content_iid
from model.nodes import GIB, Stream
from model.replies import ReplyBudget, check_budget

NewId = tuple[int, int | None] | None  # None for `*`, (ms, None) for `ms-*`
ReadFrom = values.Id | str  # an ID, or `$`, or `+`

_TOO_SMALL = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
_WITHOUT_TILDE = "ERR syntax error, LIMIT cannot be used without the special ~ option"


class ModelStore(GroupCommands, IdempotencyCommands):
    """A store of streams in memory, with one method per command.

    Here are the commands that know nothing of groups; the others are in the base classes.
    """

    def xadd(
        self,
        key: bytes,
        pairs: values.Pairs,
        new_id: NewId = None,
        *,
        now_ms: int,
        nomkstream: bool = False,
        maxlen: int | None = None,
        minid: values.Id | None = None,
        approximate: bool = False,
        limit: int | None = None,
        policy: str = "KEEPREF",
        producer: bytes | None = None,
        iid: bytes | None = None,
    ) -> values.Id | None:
        """XADD.

        Args:
            producer, iid: IDMP; a producer without `iid` is IDMPAUTO.
        """
        self._check_trim(maxlen, minid, approximate, limit)
        if producer is not None:
            _check_idempotent(producer, iid, new_id)
        if not pairs:
            raise values.ModelError("ERR wrong number of arguments for 'xadd' command")
        if new_id == values.ZERO:
            raise values.ModelError("ERR The ID specified in XADD must be greater than 0-0")
        if nomkstream and key not in self.streams:
            return None
        stream = self.created(key)
        if producer is not None:
            iid = content_iid(pairs) if iid is None else iid
            known = stream.producers.get(producer, {}).get(iid)
            if known is not None:
                stream.iids_duplicates += 1
                return known
        entry_id = _choose_id(stream, new_id, now_ms)
        if sum(len(name) + len(value) for name, value in pairs) > GIB:
            raise values.ModelError("ERR Elements are too large to be stored")
        stream.append(entry_id, pairs, self.node_max_bytes, self.node_max_entries)
        if producer is not None and iid is not None:
            self.track(stream, producer, iid, entry_id)
            stream.iids_added += 1
        if maxlen is not None or minid is not None:
            self._trim(stream, maxlen, minid, approximate, limit, policy)
        return entry_id

    def xtrim(
        self,
        key: bytes,
        *,
        maxlen: int | None = None,
        minid: values.Id | None = None,
        approximate: bool = False,
        limit: int | None = None,
        policy: str = "KEEPREF",
    ) -> int:
        self._check_trim(maxlen, minid, approximate, limit, required=True)
        if key not in self.streams:
            return 0
        return self._trim(self.streams[key], maxlen, minid, approximate, limit, policy)

    def xdel(self, key: bytes, *ids: values.Id) -> int:
        return self.streams[key].delete(list(ids)) if key in self.streams else 0

    def xdelex(self, key: bytes, *ids: values.Id, policy: str = "KEEPREF") -> list[int]:
        """XDELEX: for each ID 1 deleted, -1 not there, 2 kept because a group refers to it."""
        if not ids:
            raise values.ModelError("ERR Number of IDs must be a positive integer")
        if key not in self.streams:
            return [-1] * len(ids)
        return self.streams[key].delete_by_policy(list(ids), policy)

    def _check_trim(
        self,
        maxlen: int | None,
        minid: values.Id | None,
        approximate: bool,
        limit: int | None,
        *,
        required: bool = False,
    ) -> None:
        if maxlen is not None and maxlen < 0:
            raise values.ModelError("ERR The MAXLEN argument must be >= 0.")
        if maxlen is not None and minid is not None:
            raise values.ModelError(
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
            )
        if limit is not None and limit < 0:
            raise values.ModelError("ERR The LIMIT argument must be >= 0.")
        if maxlen is None and minid is None:
            if limit:
                raise values.ModelError(
                    "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
                )
            if required:
                raise values.ModelError(
                    "ERR syntax error, XTRIM must be called with a trimming strategy"
                )
        if limit is not None and not (approximate and (maxlen is not None or minid is not None)):
            raise values.ModelError(_WITHOUT_TILDE)

    def _trim(
        self,
        stream: Stream,
        maxlen: int | None,
        minid: values.Id | None,
        approximate: bool,
        limit: int | None,
        policy: str,
    ) -> int:
        if limit is None:
            per_node = self.node_max_entries
            limit = (min(100 * per_node, 1_000_000) if per_node else 10_000) if approximate else 0
        return stream.trim(
            maxlen=maxlen,
            minid=values.ZERO if minid is None else minid,
            approximate=approximate,
            limit=limit,
            policy=policy,
        )

    def xlen(self, key: bytes) -> int:
        return self.streams[key].length if key in self.streams else 0

    def xrange(
        self,
        key: bytes,
        start: values.Id = values.ZERO,
        end: values.Id = values.HIGHEST,
        count: int | None = None,
        *,
        after_start: bool = False,
        before_end: bool = False,
    ) -> list[values.Entry] | None:
        """XRANGE; `after_start` and `before_end` leave out the end itself, as `(` does."""
        if after_start:
            if start == values.HIGHEST:
                raise values.ModelError("ERR invalid start ID for the interval")
            start = values.next_id(start)
        if before_end:
            if end == values.ZERO:
                raise values.ModelError("ERR invalid end ID for the interval")
            end = values.previous_id(end)
        if key not in self.streams:
            return []
        if count is not None and count <= 0:
            return None
        entries = [entry for entry in self.streams[key].entries() if start <= entry[0] <= end]
        return entries if count is None else entries[:count]

    def xrevrange(
        self,
        key: bytes,
        end: values.Id = values.HIGHEST,
        start: values.Id = values.ZERO,
        count: int | None = None,
        *,
        after_start: bool = False,
        before_end: bool = False,
    ) -> list[values.Entry] | None:
        entries = self.xrange(key, start, end, after_start=after_start, before_end=before_end)
        if count is not None and count <= 0 and key in self.streams:
            return None
        return [] if not entries else entries[::-1][:count]

    def xread(
        self,
        streams: list[tuple[bytes, ReadFrom]],
        *,
        count: int | None = None,
        maxcount: int | None = None,
        maxsize: int | None = None,
    ) -> list[tuple[bytes, list[values.Entry]]] | None:
        """XREAD without BLOCK: entries above an ID, of each stream that has some."""
        check_budget(count, maxcount, maxsize)
        budget = ReplyBudget(maxcount, maxsize)
        reply = []
        for key, position in streams:
            after = self._position(key, position)
            entries = [entry for entry in self.xrange(key) or [] if entry[0] > after]
            if not entries or not budget.admits_entry():
                continue
            budget.begin_stream(key)
            taken = []
            for entry in entries[:count] if count and count > 0 else entries:
                if not budget.admits_entry():
                    break
                budget.add_entry(*entry)
                taken.append(entry)
            budget.end_stream(len(taken))
            reply.append((key, taken))
        return reply or None

    def _position(self, key: bytes, position: ReadFrom) -> values.Id:
        """Return the ID that entries must be above."""
        if not isinstance(position, str):
            return position
        stream = self.streams.get(key)
        if stream is None:
            return values.ZERO
        if position == "$":
            return stream.last_id
        return values.previous_id(stream.last_live_id) if stream.length else values.ZERO

    def xinfo_stream(self, key: bytes, now_ms: int = 0) -> dict[str, Any]:
        """XINFO STREAM, without radix-tree-nodes, which is any positive number."""
        stream = self.existing(key)
        entries = stream.entries()
        return {
            **_summary(stream, now_ms),
            "groups": len(stream.groups),
            "first-entry": entries[0] if entries else None,
            "last-entry": entries[-1] if entries else None,
        }

    def xinfo_stream_full(self, key: bytes, count: int = 10, now_ms: int = 0) -> dict[str, Any]:
        """XINFO STREAM FULL; a COUNT of 0 is for all, a negative one for 10."""
        stream = self.existing(key)
        most = {0: None}.get(count, 10 if count < 0 else count)
        return {
            **_summary(stream, now_ms),
            "entries": stream.entries()[:most],
            "groups": self.full_groups(stream, most),
        }

    def xsetid(
        self,
        key: bytes,
        last_id: values.Id,
        *,
        entries_added: int | None = None,
        max_deleted_id: values.Id | None = None,
    ) -> bool:
        if entries_added is not None and entries_added < 0:
            raise values.ModelError("ERR entries_added must be positive")
        if max_deleted_id is not None and last_id < max_deleted_id:
            raise values.ModelError(
                "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
            )
        stream = self.existing(key)
        if last_id < stream.max_deleted_id:
            raise values.ModelError(
                "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
            )
        if stream.length:
            if last_id < stream.last_live_id:
                raise values.ModelError(
                    "ERR The ID specified in XSETID is smaller than the target stream top item"
                )
            if entries_added is not None and entries_added < stream.length:
                raise values.ModelError(
                    "ERR The entries_added specified in XSETID is smaller than "
                    "the target stream length"
                )
        stream.last_id = last_id
        if entries_added is not None:
            stream.entries_added = entries_added
            for group in stream.groups.values():
                group.entries_read = min(group.entries_read, entries_added)
        if max_deleted_id is not None and max_deleted_id != values.ZERO:
            stream.max_deleted_id = max_deleted_id
        return True


def _choose_id(stream: Stream, new_id: NewId, now_ms: int) -> values.Id:
    """Return the ID of the next entry."""
    last = stream.last_id
    if last == values.HIGHEST:
        raise values.ModelError(
            "ERR The stream has exhausted the last possible ID, unable to add more items"
        )
    if new_id is None:
        return (now_ms, 0) if now_ms > last[0] else values.next_id(last)
    ms, seq = new_id
    if seq is None:
        seq = last[1] + 1 if ms == last[0] else 0
    if seq > values.MAX or (ms, seq) <= last:
        raise values.ModelError(_TOO_SMALL)
    return ms, seq


def _check_idempotent(producer: bytes, iid: bytes | None, new_id: NewId) -> None:
    """Check the options IDMP and IDMPAUTO."""
    name = "IDMPAUTO" if iid is None else "IDMP"
    if not producer:
        raise values.ModelError(f"ERR syntax error, {name} requires a non-empty producer ID")
    if iid == b"":
        raise values.ModelError("ERR syntax error, IDMP requires a non-empty idempotent ID")
    if new_id is not None:
        raise values.ModelError(
            "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
        )


def _summary(stream: Stream, now_ms: int) -> dict[str, Any]:
    """Return the fields that both forms of XINFO STREAM begin with."""
    oldest = now_ms - stream.idmp_duration * 1000
    lasting = [
        len(list(dropwhile(lambda one: one[0] <= oldest, iids.values())))
        for iids in stream.producers.values()
    ]
    return {
        "length": stream.length,
        "radix-tree-keys": len(stream.nodes),
        "last-generated-id": stream.last_id,
        "max-deleted-entry-id": stream.max_deleted_id,
        "entries-added": stream.entries_added,
        "recorded-first-entry-id": stream.first_id,
        "idmp-duration": stream.idmp_duration,
        "idmp-maxsize": stream.idmp_maxsize,
        "pids-tracked": sum(map(bool, lasting)),
        "iids-tracked": sum(lasting),
        "iids-added": stream.iids_added,
        "iids-duplicates": stream.iids_duplicates,
    }
