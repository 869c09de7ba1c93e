"""The commands on pending entries: XPENDING, XCLAIM, XAUTOCLAIM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, overload

from streamkeep.engine.api.command_base import (
    Claimed,
    ClaimedIds,
    CommandBase,
    Id,
    Key,
    RangeId,
    consumer_names,
    end_bound,
    group_names,
    id_texts,
    read,
    start_bound,
    to_text,
    write,
)
from streamkeep.engine.commands import xclaim, xpending
from streamkeep.engine.commands.arguments import (
    check_integer,
    check_not_negative,
    to_bytes,
    to_id_text,
)
from streamkeep.engine.commands.reply_budget import Entries
from streamkeep.engine.commands.xinfo import Info
from streamkeep.format.core.entry import Entry, Text
from streamkeep.format.core.errors import ArgumentError, CommandError
from streamkeep.format.core.id_codec import id_text
from streamkeep.format.core.values import as_given


class PendingCommands(CommandBase[Text]):
    """The commands on pending entries; a base of `StreamCommands`."""

    def xpending(self, name: Key, groupname: Key) -> Info:
        """Return number, range and consumers of the pending entries of a group (XPENDING)."""

        def shape(found: xpending.PendingSummary) -> Info:
            consumers = [{"name": one, "pending": count} for one, count in found.consumers]
            return {
                "pending": found.total,
                "min": self._id(found.lowest),
                "max": self._id(found.highest),
                "consumers": to_text(consumers) if self._decode else consumers,
            }

        return self._run(read(xpending.xpending, group_names(name, groupname), shape))

    def xpending_range(
        self,
        name: Key,
        groupname: Key,
        min: RangeId,
        max: RangeId,
        count: int,
        consumername: Key | None = None,
        idle: int | None = None,
    ) -> list[Info]:
        """Return pending entries by ID (XPENDING with a range).

        Args:
            min, max: as in `xrange`.
            consumername: only entries of this consumer.
            idle: only entries that were delivered at least this many milliseconds ago.

        Returns:
            Dicts with message_id, consumer, time_since_delivered (milliseconds) and
            times_delivered. An entry without a consumer has an empty name and -1.
        """
        if (min, max, count, consumername, idle) == (None,) * 5:
            return cast(list[Info], self.xpending(name, groupname))  # as redis-py does
        if min is None or max is None or count is None:
            raise ArgumentError(
                "XPENDING must be provided with min, max and count parameters, or none of them: "
                f"min={as_given(min)}, max={as_given(max)}, count={as_given(count)}"
            )
        least = 0
        if idle is not None:
            least = check_not_negative("XPENDING idle must be a integer >= 0", "idle", idle)
        most = check_not_negative("XPENDING count must be a integer >= 0", "count", count)

        def shape(rows: list[xpending.PendingEntry]) -> list[Info]:
            return [
                {
                    "message_id": self._id(row.id),
                    "consumer": to_text(row.consumer) if self._decode else row.consumer,
                    "time_since_delivered": row.idle_ms,
                    "times_delivered": row.delivery_count,
                }
                for row in rows
            ]

        low, high = start_bound("min", min, self._now_ms), end_bound("max", max, self._now_ms)
        consumer = None if consumername is None else to_bytes(consumername, "consumername")
        args = *group_names(name, groupname), low, high, most, consumer, least
        return self._run(read(xpending.xpending_range, args, shape))

    @overload
    def xclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        message_ids: Sequence[Id],
        idle: int | None = None,
        time: int | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: Literal[False] = False,
        last_id: Id | None = None,
    ) -> list[Entry[Text]]: ...

    @overload
    def xclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        message_ids: Sequence[Id],
        idle: int | None = None,
        time: int | None = None,
        retrycount: int | None = None,
        force: bool = False,
        *,
        justid: Literal[True],
        last_id: Id | None = None,
    ) -> list[Text]: ...

    @overload
    def xclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        message_ids: Sequence[Id],
        idle: int | None = None,
        time: int | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: Id | None = None,
    ) -> list[Entry[Text]] | list[Text]: ...

    def xclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        message_ids: Sequence[Id],
        idle: int | None = None,
        time: int | None = None,
        retrycount: int | None = None,
        force: bool = False,
        justid: bool = False,
        last_id: Id | None = None,
    ) -> list[Entry[Text]] | list[Text]:
        """Give pending entries to a consumer (XCLAIM).

        Args:
            min_idle_time: only entries that were delivered at least this many milliseconds ago.
            idle, time: set the delivery time to this many milliseconds ago, or to a time in Unix
                milliseconds; by default to now.
            retrycount: set the delivery count to this; by default it rises by one.
            force: also make entries pending that are not.
            justid: return IDs only, and do not count this as a delivery.
            last_id: advance the group's last delivered ID to this one, if it is higher.

        Returns:
            The entries that were claimed, or their IDs. Entries that were deleted from the stream
            are no longer pending.
        """
        for label, flag in (("force", force), ("justid", justid)):
            if flag and not isinstance(flag, bool):  # as redis-py does, here only
                raise ArgumentError(f"XCLAIM {label} must be a boolean, not {as_given(flag)}")
        if not isinstance(message_ids, (list, tuple)) or not message_ids:
            raise ArgumentError(
                "XCLAIM message_ids must be a non empty list or tuple of message IDs to claim, "
                f"not {as_given(message_ids)}"
            )
        last = None if last_id is None else to_id_text(last_id)
        least = 0
        try:
            least = check_integer(
                "XCLAIM min_idle_time must be a non negative integer",
                "min_idle_time",
                min_idle_time,
                0,
                "Invalid min-idle-time argument for XCLAIM",
            )
            since = _claim_option("idle", idle), _claim_option("time", time)
            count = _claim_option("retrycount", retrycount)
            least_count = -1 if count is None else count
            options = xclaim.ClaimOptions(*since, least_count, bool(force), last, self._lease())
        except CommandError as error:
            options = xclaim.ClaimOptions(None, None, -1, False, None)
            options.problem = error
        names: tuple[bytes, bytes, bytes] = consumer_names(name, groupname, consumername)
        args = *names, least, id_texts(message_ids), options, self._shape, bool(justid)
        shape = self._ids if justid else self._entry_text
        found: Any = self._run(write(xclaim.xclaim, args, shape))
        return found  # type: ignore[no-any-return]  # or a coroutine, or a pipeline

    @overload
    def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        justid: Literal[False] = False,
        *,
        whole: bool = False,
        dead: bool = False,
    ) -> Claimed[Text]: ...

    @overload
    def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        *,
        justid: Literal[True],
        whole: Literal[False] = False,
        dead: bool = False,
    ) -> list[Text]: ...

    @overload
    def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        *,
        justid: Literal[True],
        whole: Literal[True],
        dead: bool = False,
    ) -> ClaimedIds[Text]: ...

    @overload
    def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        justid: bool = False,
        *,
        whole: bool = False,
        dead: bool = False,
    ) -> Claimed[Text] | ClaimedIds[Text] | list[Text]: ...

    def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: RangeId = "0-0",
        count: int | None = None,
        justid: bool = False,
        *,
        whole: bool = False,
        dead: bool = False,
    ) -> Claimed[Text] | ClaimedIds[Text] | list[Text]:
        """Claim entries that have been pending too long, from an ID on (XAUTOCLAIM).

        Args:
            min_idle_time: only entries that were delivered at least this many milliseconds ago.
            count: claim at most this many, and examine ten times as many; 100 by default.
            justid: return IDs only, and do not count this as a delivery.
            dead: of entries that have an owner, only claim those that were delivered to a process
                that has died, even if another process uses the name of its consumer.
            whole: with `justid`, return the whole reply, of which redis-py keeps only the IDs.

        Returns:
            [ID to continue from (0-0 at the end), entries, IDs of entries that were deleted from
            the stream and are no longer pending]. With `justid` only the list of IDs, as redis-py
            does; if `whole`, the three parts with IDs instead of entries.
        """
        least = check_not_negative(
            "XAUTOCLAIM min_idle_time must be a nonnegative integer",
            "min_idle_time",
            min_idle_time,
            "Invalid min-idle-time argument for XAUTOCLAIM",
        )
        most = 100
        if count is not None:
            problem = "XAUTOCLAIM count must be an integer >= 0"
            most = check_not_negative(problem, "count", count, "COUNT must be > 0")

        def shape(found: xclaim.Claimed) -> Entries:
            text = self._ids if justid else self._entry_text
            entries = found.entries if text is None else text(found.entries)
            if justid and not whole:
                return entries
            return [self._id(found.cursor), entries, self._ids(found.gone)]

        names: tuple[bytes, bytes, bytes] = consumer_names(name, groupname, consumername)
        low = start_bound("start_id", start_id, self._now_ms)
        dead, lease = bool(dead), self._lease()
        args = *names, least, low, most, self._shape, bool(justid), dead, lease
        found: Any = self._run(write(xclaim.xautoclaim, args, shape))
        return found  # type: ignore[no-any-return]  # or a coroutine, or a pipeline

    # --- IDs --------------------------------------------------------------------------------------

    def _id(self, entry_id: tuple[int, int] | None) -> Text | None:
        if entry_id is None:
            return None
        return self._as_text(id_text(*entry_id))

    def _ids(self, ids: Entries) -> Entries:
        return [self._id(one) for one in ids]


def _claim_option(name: str, value: object) -> int | None:
    """Return an option of XCLAIM, which redis-py accepts as an int only."""
    if value is None:
        return None
    server = f"Invalid {name.upper()} option argument for XCLAIM"
    return check_integer(f"XCLAIM {name} must be an integer", name, value, None, server)
