"""The commands of consumer groups, all but blocking."""

from __future__ import annotations

from typing import Any

from model.groups import MOST_DELIVERIES, NEVER, UNKNOWN, Consumer, Group, Nack
from model.keyspace import Keyspace
from model.nodes import Stream
from model.replies import ReplyBudget, check_budget
from model.values import HIGHEST, ZERO, Entry, Id, ModelError, Pairs, next_id, previous_id

# (id, pairs); (id, None) for one that is gone; (id, pairs, idle, deliveries) with CLAIM
GroupEntry = tuple[Id, Pairs | None] | tuple[Id, Pairs, int, int]
GroupFrom = Id | str  # an ID for the consumer's history, or `>`
Pending = tuple[Id, bytes, int, int]  # ID, consumer (empty: nobody), idle, deliveries

_KEY_REQUIRED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to "
    "use the MKSTREAM option to create an empty stream automatically."
)


class GroupCommands(Keyspace):
    """XGROUP, XREADGROUP, XACK and their kin."""

    def xgroup_create(
        self,
        key: bytes,
        group: bytes,
        last_id: Id | None,
        *,
        mkstream: bool = False,
        entries_read: int | None = None,
    ) -> bool:
        _check_entries_read(entries_read)
        if key not in self.streams and not mkstream:
            raise ModelError(_KEY_REQUIRED)
        stream = self.created(key)
        if group in stream.groups:
            raise ModelError("BUSYGROUP Consumer Group name already exists")
        read = UNKNOWN if entries_read is None else min(entries_read, stream.entries_added)
        stream.groups[group] = Group(stream.last_id if last_id is None else last_id, read)
        return True

    def xgroup_setid(
        self, key: bytes, group: bytes, last_id: Id | None, *, entries_read: int | None = None
    ) -> bool:
        _check_entries_read(entries_read)
        stream, found = self._group(key, group)
        found.last_id = stream.last_id if last_id is None else last_id
        found.entries_read = (
            UNKNOWN if entries_read is None else min(entries_read, stream.entries_added)
        )
        return True

    def xgroup_destroy(self, key: bytes, group: bytes) -> int:
        stream = self._stream_of_group(key)
        return int(stream.groups.pop(group, None) is not None)

    def xgroup_createconsumer(
        self, key: bytes, group: bytes, consumer: bytes, *, now_ms: int
    ) -> int:
        """XGROUP CREATECONSUMER; an existing consumer was not seen by this."""
        _, found = self._group(key, group)
        if consumer in found.consumers:
            return 0
        found.consumers[consumer] = Consumer(now_ms)
        return 1

    def xgroup_delconsumer(self, key: bytes, group: bytes, consumer: bytes) -> int:
        """XGROUP DELCONSUMER: what was pending for the consumer is pending for nobody."""
        _, found = self._group(key, group)
        if found.consumers.pop(consumer, None) is None:
            return 0
        return sum(found.forget(nack.id) for nack in found.by_id(consumer))

    def _stream_of_group(self, key: bytes) -> Stream:
        if key not in self.streams:
            raise ModelError(_KEY_REQUIRED)
        return self.streams[key]

    def _group(self, key: bytes, group: bytes) -> tuple[Stream, Group]:
        """Return a group for XGROUP."""
        stream = self._stream_of_group(key)
        if group not in stream.groups:
            raise ModelError(no_such_group(key, group))
        return stream, stream.groups[group]

    def _group_or_key(self, key: bytes, group: bytes, ending: str = "") -> tuple[Stream, Group]:
        """Return a group for the commands that miss key and group alike."""
        stream = self.streams.get(key)
        if stream is None or group not in stream.groups:
            raise ModelError(
                f"NOGROUP No such key '{_shown(key)}' or consumer group '{_shown(group)}'{ending}"
            )
        return stream, stream.groups[group]

    def xreadgroup(
        self,
        group: bytes,
        consumer: bytes,
        streams: tuple[tuple[bytes, GroupFrom], ...],
        *,
        now_ms: int,
        count: int | None = None,
        maxcount: int | None = None,
        maxsize: int | None = None,
        claim: int | None = None,
        noack: bool = False,
    ) -> list[tuple[bytes, list[GroupEntry]]] | None:
        """XREADGROUP without BLOCK."""
        check_budget(count, maxcount, maxsize)
        if claim is not None and claim < 0:
            raise ModelError("ERR min-idle-time must be a positive integer")
        for key, _ in streams:
            self._group_or_key(key, group, " in XREADGROUP with GROUP option")
        budget = ReplyBudget(maxcount, maxsize)
        most = count if count and count > 0 else None
        reply: list[tuple[bytes, list[GroupEntry]]] = []
        for key, position in streams:
            if not budget.admits_entry():
                break  # the consumer is not even created there
            stream, found = self._group_or_key(key, group)
            found.consumer(consumer, now_ms)
            if not isinstance(position, str) and position != HIGHEST:  # Redis keeps `>` as that
                claim = None  # for the streams that follow, too
                budget.begin_stream(key)
                history = _history(stream, found, consumer, position, most, now_ms, budget)
                reply.append((key, history))
                continue
            due = [] if claim is None else _claimable(stream, found, claim, now_ms)
            fresh = [entry for entry in stream.entries() if entry[0] > found.last_id]
            if not (due or fresh):
                continue
            budget.begin_stream(key)
            taken: list[GroupEntry] = []
            for nack in due[:most]:
                if not budget.admits_entry():
                    break
                taken.append(_claim(stream, found, consumer, nack, now_ms))
                budget.add_entry(*taken[-1])
            for entry in fresh[: None if most is None else most - len(taken)]:
                if not budget.admits_entry():
                    break
                _deliver(stream, found, consumer, entry[0], now_ms, noack)
                taken.append(entry if claim is None else (*entry, 0, 0))
                budget.add_entry(*taken[-1])
            budget.end_stream(len(taken))
            reply.append((key, taken))
        return reply or None

    def xack(self, key: bytes, group: bytes, *ids: Id) -> int:
        if key not in self.streams or group not in self.streams[key].groups:
            return 0
        return sum(self.streams[key].groups[group].forget(one) for one in ids)

    def xackdel(self, key: bytes, group: bytes, *ids: Id, policy: str = "KEEPREF") -> list[int]:
        """XACKDEL: for each ID 1 acknowledged and deleted, -1 not pending, 2 not deleted."""
        if not ids:
            raise ModelError("ERR Number of IDs must be a positive integer")
        if key not in self.streams or group not in self.streams[key].groups:
            return [-1] * len(ids)
        stream = self.streams[key]
        pending = [one for one in ids if stream.groups[group].forget(one)]
        deleted = dict(zip(pending, stream.delete_by_policy(pending, policy), strict=True))
        reply = []
        for one in ids:  # the same ID may be given again
            answer = deleted.pop(one, None)
            reply.append(-1 if answer is None else 2 if answer == 2 else 1)
        return reply

    def xnack(
        self,
        key: bytes,
        group: bytes,
        mode: str,
        *ids: Id,
        retrycount: int | None = None,
        force: bool = False,
    ) -> int:
        """XNACK: give entries back, so that the next XREADGROUP CLAIM takes them."""
        stream, found = self._group_or_key(key, group)
        if mode not in ("SILENT", "FAIL", "FATAL"):
            raise ModelError("ERR mode must be SILENT, FAIL, or FATAL")
        if not ids:
            raise ModelError("ERR numids must be a positive integer")
        if retrycount is not None and retrycount < 0:
            raise ModelError("ERR Invalid RETRYCOUNT value, must be >= 0")
        given_back = 0
        for one in ids:
            if one in found.pending:
                before = found.pending[one].delivery_count
            elif force and stream.get(one) is not None:
                before = 0
            else:
                continue
            by_mode = {"SILENT": max(0, before - 1), "FAIL": before, "FATAL": MOST_DELIVERIES}
            found.give_back(one, by_mode[mode] if retrycount is None else retrycount)
            given_back += 1
        return given_back

    def xpending(
        self, key: bytes, group: bytes
    ) -> tuple[int, Id | None, Id | None, list[tuple[bytes, bytes]] | None]:
        """XPENDING: how many, the lowest and the highest ID, and how many of each consumer."""
        _, found = self._group_or_key(key, group)
        ids = sorted(found.pending)
        if not ids:
            return 0, None, None, None
        counts = [(name, len(found.by_id(name))) for name in sorted(found.consumers)]
        return len(ids), ids[0], ids[-1], [(name, b"%d" % count) for name, count in counts if count]

    def xpending_range(
        self,
        key: bytes,
        group: bytes,
        start: Id,
        end: Id,
        count: int,
        consumer: bytes | None = None,
        *,
        now_ms: int,
        idle: int = 0,
        after_start: bool = False,
        before_end: bool = False,
    ) -> list[Pending]:
        """XPENDING with a range: each entry, its consumer, idle time and deliveries."""
        if after_start:
            if start == HIGHEST:
                raise ModelError("ERR invalid start ID for the interval")
            start = next_id(start)
        if before_end:
            if end == ZERO:
                raise ModelError("ERR invalid end ID for the interval")
            end = previous_id(end)
        _, found = self._group_or_key(key, group)
        rows: list[Pending] = []
        for nack in found.by_id(consumer):
            idle_ms = nack.idle(now_ms)
            if not start <= nack.id <= end or (nack.owner is not None and idle_ms < idle):
                continue
            if nack.owner is None:
                rows.append((nack.id, b"", -1, nack.delivery_count))
            else:
                rows.append((nack.id, nack.owner, idle_ms, nack.delivery_count))
        return rows[: max(0, count)]

    def xclaim(
        self,
        key: bytes,
        group: bytes,
        consumer: bytes,
        min_idle: int,
        ids: tuple[Id, ...],
        *,
        now_ms: int,
        idle: int | None = None,
        time: int | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        lastid: Id | None = None,
    ) -> list[Entry] | list[Id]:
        """XCLAIM; of `idle` and `time` only one may be given."""
        stream, found = self._group_or_key(key, group)
        if lastid is not None and lastid > found.last_id:
            found.last_id = lastid
        since = now_ms
        if idle is not None:
            since = now_ms - idle
        if time is not None:
            since = time
        if not 0 <= since <= now_ms:
            since = now_ms
        found.consumer(consumer, now_ms)
        claimed: list[Entry] = []
        for one in ids:
            pairs = stream.get(one)
            if pairs is None:
                found.forget(one)
                continue
            nack = found.pending.get(one)
            if nack is None:
                if not force:
                    continue
                nack = Nack(one, None, now_ms, 1, now_ms)
            elif nack.owner is not None and nack.idle(now_ms) < min_idle:
                continue
            count = nack.delivery_count if justid else _one_more(nack.delivery_count)
            count = count if retrycount is None or retrycount < 0 else retrycount
            if idle is None and time is None:
                found.give_now(one, consumer, now_ms, count)
            else:
                found.give_at(one, consumer, since, count)
            found.consumers[consumer].active_time = now_ms
            claimed.append((one, pairs))
        return [one for one, _ in claimed] if justid else claimed

    def xautoclaim(
        self,
        key: bytes,
        group: bytes,
        consumer: bytes,
        min_idle: int,
        start: Id,
        *,
        now_ms: int,
        count: int | None = None,
        justid: bool = False,
    ) -> tuple[Id, list[Entry] | list[Id], list[Id]]:
        """XAUTOCLAIM: where to go on, what was claimed, what is gone from the stream."""
        count = 100 if count is None else count
        if count <= 0:
            raise ModelError("ERR COUNT must be > 0")
        stream, found = self._group_or_key(key, group)
        found.consumer(consumer, now_ms)
        waiting = [nack for nack in found.by_id() if nack.id >= start]
        claimed: list[Entry] = []
        gone: list[Id] = []
        visited = 0
        while waiting and visited < 10 * count and len(claimed) + len(gone) < count:
            nack = waiting.pop(0)
            visited += 1
            pairs = stream.get(nack.id)
            if pairs is None:
                found.forget(nack.id)
                gone.append(nack.id)
            elif nack.owner is None or nack.idle(now_ms) >= min_idle:
                again = nack.delivery_count if justid else _one_more(nack.delivery_count)
                found.give_now(nack.id, consumer, now_ms, again)
                found.consumers[consumer].active_time = now_ms
                claimed.append((nack.id, pairs))
        cursor = waiting[0].id if waiting else ZERO
        return cursor, [one for one, _ in claimed] if justid else claimed, gone

    def xinfo_groups(self, key: bytes) -> list[dict[str, Any]]:
        stream = self.existing(key)
        return [
            {
                "name": name,
                "consumers": len(group.consumers),
                "pending": len(group.pending),
                "last-delivered-id": group.last_id,
                "entries-read": None if group.entries_read == UNKNOWN else group.entries_read,
                "lag": group.lag(stream),
            }
            for name, group in sorted(stream.groups.items())
        ]

    def xinfo_consumers(self, key: bytes, group: bytes, *, now_ms: int) -> list[dict[str, Any]]:
        stream = self.existing(key)
        if group not in stream.groups:
            raise ModelError(no_such_group(key, group))
        found = stream.groups[group]
        return [
            {
                "name": name,
                "pending": len(found.by_id(name)),
                "idle": max(0, now_ms - consumer.seen_time),
                "inactive": (
                    NEVER
                    if consumer.active_time == NEVER
                    else max(0, now_ms - consumer.active_time)
                ),
            }
            for name, consumer in sorted(found.consumers.items())
        ]

    def full_groups(self, stream: Stream, most: int | None) -> list[dict[str, Any]]:
        """Return the groups of XINFO STREAM FULL."""
        return [
            {
                "name": name,
                "last-delivered-id": group.last_id,
                "entries-read": None if group.entries_read == UNKNOWN else group.entries_read,
                "lag": group.lag(stream),
                "pel-count": len(group.pending),
                "nacked-count": group.unowned(),
                "pending": [
                    (nack.id, nack.owner or b"", nack.delivery_time, nack.delivery_count)
                    for nack in group.by_id()[:most]
                ],
                "consumers": [
                    {
                        "name": consumer_name,
                        "seen-time": consumer.seen_time,
                        "active-time": consumer.active_time,
                        "pel-count": len(group.by_id(consumer_name)),
                        "pending": [
                            (nack.id, nack.delivery_time, nack.delivery_count)
                            for nack in group.by_id(consumer_name)[:most]
                        ],
                    }
                    for consumer_name, consumer in sorted(group.consumers.items())
                ],
            }
            for name, group in sorted(stream.groups.items())
        ]


def no_such_group(key: bytes, group: bytes) -> str:
    """Return the error of XGROUP and XINFO for a group that is not there."""
    return f"NOGROUP No such consumer group '{_shown(group)}' for key name '{_shown(key)}'"


def _shown(name: bytes) -> str:
    """Return a name as redis-py makes it of Redis's error line."""
    line = name.split(b"\0")[0].translate(bytes.maketrans(b"\r\n", b"  "))
    return line.decode(errors="replace")


def _check_entries_read(entries_read: int | None) -> None:
    if entries_read is not None and entries_read < UNKNOWN:
        raise ModelError("ERR value for ENTRIESREAD must be positive or -1")


def _one_more(count: int) -> int:
    return min(count + 1, MOST_DELIVERIES)


def _history(
    stream: Stream,
    group: Group,
    consumer: bytes,
    after: Id,
    most: int | None,
    now_ms: int,
    budget: ReplyBudget,
) -> list[GroupEntry]:
    """Deliver again what the consumer has pending above an ID; what is gone shows as None."""
    taken: list[GroupEntry] = []
    for nack in [nack for nack in group.by_id(consumer) if nack.id > after][:most]:
        if not budget.admits_entry():
            break
        pairs = stream.get(nack.id)
        if pairs is not None:
            group.give_now(nack.id, consumer, now_ms, _one_more(nack.delivery_count))
        taken.append((nack.id, pairs))
        budget.add_entry(nack.id, pairs)
    budget.end_stream(len(taken))
    return taken


def _claimable(stream: Stream, group: Group, min_idle: int, now_ms: int) -> list[Nack]:
    """Return what CLAIM may take, oldest first, up to the first entry that is too young."""
    due: list[Nack] = []
    for entry_id in group.order:
        nack = group.pending[entry_id]
        if nack.idle(now_ms) < min_idle:
            break
        if stream.get(entry_id) is not None:
            due.append(nack)
    return due


def _claim(stream: Stream, group: Group, consumer: bytes, nack: Nack, now_ms: int) -> GroupEntry:
    """Claim one entry; it is shown as it was pending before."""
    pairs = stream.get(nack.id)
    assert pairs is not None
    group.give_now(nack.id, consumer, now_ms, _one_more(nack.delivery_count))
    group.consumers[consumer].active_time = now_ms
    return nack.id, pairs, nack.idle(now_ms), nack.delivery_count


def _deliver(
    stream: Stream, group: Group, consumer: bytes, entry_id: Id, now_ms: int, noack: bool
) -> None:
    """Deliver an entry that the group has not read; a pending one begins again."""
    group.advance(stream, entry_id)
    if not noack:
        group.give_now(entry_id, consumer, now_ms, 1)
        group.consumers[consumer].active_time = now_ms
