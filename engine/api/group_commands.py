"""The commands of consumer groups as methods, with redis-py's names, parameters and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, cast

from streamkeep.engine.api.command_base import (
    CommandBase,
    Id,
    Key,
    RefPolicy,
    Shape,
    Streams,
    free,
    named_streams,
    read,
    remove,
    to_text,
    write,
)
from streamkeep.engine.blocking.calls import GroupCall
from streamkeep.engine.commands import (
    idempotency,
    xack,
    xclaim,
    xgroup,
    xinfo,
    xpending,
    xreadgroup,
)
from streamkeep.engine.commands.arguments import (
    as_given,
    check_block,
    check_count,
    check_integer,
    check_not_negative,
    check_policy,
    no_arguments,
    range_end,
    range_start,
    to_bytes,
    to_id,
    to_id_text,
    to_integer,
    to_optional_integer,
)
from streamkeep.engine.commands.help_texts import HELP
from streamkeep.engine.commands.reply_budget import Entries, Found, check_budget
from streamkeep.engine.commands.xinfo import Info
from streamkeep.engine.store.command import wait
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError, CommandError, InvalidIdError
from streamkeep.format.core.id_codec import id_text, visible

NackMode = Literal["SILENT", "FAIL", "FATAL"]
_MODES = ("SILENT", "FAIL", "FATAL")
_MODE_DECIDES = -1  # no RETRYCOUNT was given


class GroupCommands(CommandBase[Text]):
    """XGROUP, XREADGROUP, XACK and all else that concerns consumer groups."""

    # --- groups and consumers ---------------------------------------------------------------

    def xgroup_create(
        self,
        name: Key,
        groupname: Key,
        id: Id = "$",
        mkstream: bool = False,
        entries_read: int | None = None,
    ) -> bool:
        """Create a consumer group of a stream (XGROUP CREATE).

        Args:
            id: the group has read up to here: `$` for the stream's last ID, 0 for nothing.
            mkstream: create the stream, empty, when it does not exist.
            entries_read: how many entries that is, where it is known; it makes the lag exact.

        Raises:
            GroupExistsError: the stream has a group of this name.
            NoSuchKeyError: the stream does not exist.
        """
        return self._run(
            write(
                xgroup.xgroup_create,
                (
                    to_bytes(name, "name"),
                    to_bytes(groupname, "groupname"),
                    _group_start(id),
                    bool(mkstream),
                    to_optional_integer("entries_read", entries_read),
                ),
            )
        )

    def xgroup_setid(
        self, name: Key, groupname: Key, id: Id, entries_read: int | None = None
    ) -> bool:
        """Set up to which ID a group has read; what is pending stays (XGROUP SETID)."""
        last = _setid_start(id)
        read = to_optional_integer("entries_read", entries_read)
        return self._run(
            write(
                xgroup.xgroup_setid,
                (to_bytes(name, "name"), to_bytes(groupname, "groupname"), last, read),
            )
        )

    def xgroup_destroy(self, name: Key, groupname: Key) -> bool:
        """Destroy a group with its consumers and all that is pending (XGROUP DESTROY).

        The group is gone at once; what it took on the disk is freed in bounded steps.

        Returns:
            False when there was no such group.
        """
        return self._run(
            remove(
                xgroup.xgroup_destroy, (to_bytes(name, "name"), to_bytes(groupname, "groupname"))
            )
        )

    def xgroup_createconsumer(self, name: Key, groupname: Key, consumername: Key) -> int:
        """Create a consumer; 0 when it exists (XGROUP CREATECONSUMER)."""
        return self._run(
            write(
                xgroup.xgroup_createconsumer,
                (
                    to_bytes(name, "name"),
                    to_bytes(groupname, "groupname"),
                    to_bytes(consumername, "consumername"),
                ),
            )
        )

    def xgroup_delconsumer(self, name: Key, groupname: Key, consumername: Key) -> int:
        """Delete a consumer; return how many entries it had pending (XGROUP DELCONSUMER).

        Those are forgotten, and never delivered again: claim them first.
        """
        return self._run(
            free(
                xgroup.xgroup_delconsumer,
                (
                    to_bytes(name, "name"),
                    to_bytes(groupname, "groupname"),
                    to_bytes(consumername, "consumername"),
                ),
            )
        )

    # --- deliver ----------------------------------------------------------------------------

    def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        claim_min_idle_time: int | None = None,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> Found:
        """Deliver entries to a consumer of a group, which is created when missing (XREADGROUP).

        Delivery, pending entries and counters change in one transaction: what a crash lets
        through was delivered and is pending, or neither.

        Args:
            streams: for each stream `>` for entries that the group has not read, or an ID for the
                consumer's own pending entries above it. A dict, or a list of (name, ID) pairs,
                which may name a stream again.
            count: at most this many of each stream.
            block: wait for entries, at most as many milliseconds, 0 for ever; None does not. Of
                several that wait, the one that has waited longest is served first.
            noack: do not make new entries pending: delivered at most once.
            claim_min_idle_time: take over, first, what has been pending for as many milliseconds,
                whoever has it; entries have four parts then: ID, fields, idle time and delivery
                count as they were before (0 and 0 for new entries; what `xnack` gave back has been
                idle since 1970).
            max_count: at most this many of all streams together.
            max_size: stop when the reply would have about this many bytes in Redis's protocol.

        Returns:
            `[name, [Entry, ...]]` of each stream that has something. In the consumer's history, an
            entry that was deleted meanwhile has no fields.

        Raises:
            NoSuchGroupError: a stream, or the group in it, does not exist.
        """
        limit = check_count("XREADGROUP", "count", count)
        budget = check_budget("XREADGROUP", count, max_count, max_size)
        block_ms = None if block is None else check_block("XREADGROUP", block)
        min_idle = xreadgroup.check_idle(claim_min_idle_time)
        named = named_streams("XREADGROUP", streams)
        wanted = [(name, xreadgroup.parse_position(text)) for name, text in named]
        delivery = xreadgroup.Delivery(
            to_bytes(groupname, "groupname"),
            to_bytes(consumername, "consumername"),
            limit,
            bool(noack),
            min_idle,
            self._shape,
        )
        if block_ms is None:
            run = xreadgroup.xreadgroup
            return self._run(write(run, (wanted, delivery, budget), self._named_text))
        call = GroupCall(wanted, delivery, budget.max_count, budget.max_size)
        return self._run(wait(call, block_ms, self._named_text))

    @property
    def _named_text(self) -> Shape | None:
        """What turns the names of an XREAD result into text, and its entries if need be."""
        if not self._decode or self._late_text:
            return self._entry_text
        return lambda result: [[name.decode(), entries] for name, entries in result]

    # --- acknowledge ------------------------------------------------------------------------

    def xack(self, name: Key, groupname: Key, *ids: Id) -> int:
        """Acknowledge entries: they are pending no more (XACK).

        Returns:
            How many were pending; 0 when stream or group do not exist.
        """
        if not ids:
            raise no_arguments("xack")
        return self._run(
            free(xack.xack, (to_bytes(name, "name"), to_bytes(groupname, "groupname"), _texts(ids)))
        )

    def xackdel(
        self, name: Key, groupname: Key, *ids: Id, ref_policy: RefPolicy = "KEEPREF"
    ) -> list[int]:
        """Acknowledge entries and delete them from the stream (XACKDEL).

        Args:
            ref_policy: "KEEPREF" leaves what other groups have pending, "DELREF" removes it,
                "ACKED" deletes only what every group has read and acknowledged.

        Returns:
            For each ID -1 when it was not pending, 1 when it was deleted, 2 when it was kept.
        """
        if not ids:
            raise ArgumentError("XACKDEL requires at least one message ID")
        policy = check_policy("XACKDEL", ref_policy)
        return self._run(
            free(
                xack.xackdel,
                (to_bytes(name, "name"), to_bytes(groupname, "groupname"), _texts(ids), policy),
            )
        )

    def xdelex(self, name: Key, *ids: Id, ref_policy: RefPolicy = "KEEPREF") -> list[int]:
        """Delete entries under a reference policy (XDELEX).

        Returns:
            For each ID 1 when it was deleted, -1 when there is no such entry, 2 when it was kept.
        """
        if not ids:
            raise ArgumentError("XDELEX requires at least one message ID")
        policy = check_policy("XDELEX", ref_policy)
        return self._run(free(xack.xdelex, (to_bytes(name, "name"), _texts(ids), policy)))

    def xnack(
        self,
        name: Key,
        groupname: Key,
        mode: NackMode,
        *ids: Id,
        retrycount: int | None = None,
        force: bool = False,
    ) -> int:
        """Give pending entries back, for any consumer to claim (XNACK).

        Args:
            mode: what happens to the delivery count: "SILENT" takes the delivery back, "FAIL"
                leaves it, "FATAL" makes it the highest there is.
            retrycount: set the delivery count to this instead.
            force: make entries of the stream pending that are not.

        Returns:
            How many were given back.
        """
        if not ids:
            raise ArgumentError("XNACK requires at least one message ID")
        if mode not in _MODES:
            raise ArgumentError(
                f"XNACK mode must be one of: SILENT, FAIL, FATAL, not {as_given(mode)}"
            )
        count = _MODE_DECIDES
        if retrycount is not None:
            problem = "XNACK retrycount must be >= 0"
            server = "Invalid RETRYCOUNT value, must be >= 0"
            count = check_not_negative(problem, "retrycount", retrycount, server)
        return self._run(
            write(
                xack.xnack,
                (
                    to_bytes(name, "name"),
                    to_bytes(groupname, "groupname"),
                    _MODES.index(mode),
                    _texts(ids),
                    count,
                    bool(force),
                ),
            )
        )

    # --- pending entries --------------------------------------------------------------------

    def xpending(self, name: Key, groupname: Key) -> Info:
        """Return number and range of a group's pending entries, and who has them (XPENDING)."""

        def shape(found: xpending.PendingSummary) -> Info:
            consumers = [{"name": one, "pending": count} for one, count in found.consumers]
            return {
                "pending": found.total,
                "min": self._id(found.lowest),
                "max": self._id(found.highest),
                "consumers": to_text(consumers) if self._decode else consumers,
            }

        return self._run(
            read(
                xpending.xpending, (to_bytes(name, "name"), to_bytes(groupname, "groupname")), shape
            )
        )

    def xpending_range(
        self,
        name: Key,
        groupname: Key,
        min: Id,
        max: Id,
        count: int,
        consumername: Key | None = None,
        idle: int | None = None,
    ) -> list[Info]:
        """Return pending entries by ID (XPENDING with a range).

        Args:
            min, max: as in `xrange`.
            consumername: only what this consumer has.
            idle: only what was delivered at least as many milliseconds ago.

        Returns:
            Dicts with message_id, consumer, time_since_delivered (milliseconds) and
            times_delivered. An entry that nobody owns has an empty consumer and -1.
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

        return self._run(
            read(
                xpending.xpending_range,
                (
                    to_bytes(name, "name"),
                    to_bytes(groupname, "groupname"),
                    range_start(min),
                    range_end(max),
                    most,
                    None if consumername is None else to_bytes(consumername, "consumername"),
                    least,
                ),
                shape,
            )
        )

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
    ) -> Entries:
        """Make pending entries those of a consumer (XCLAIM).

        Args:
            min_idle_time: only what was delivered at least as many milliseconds ago.
            idle, time: what to set as the delivery time: so many milliseconds ago, or Unix
                milliseconds; by default now.
            retrycount: what to set as the delivery count; by default one more.
            force: make entries of the stream pending that are not.
            justid: return IDs only, and do not count this as a delivery.
            last_id: advance the group's last delivered ID to this one, if it is higher.

        Returns:
            The entries that were claimed, or their IDs. What was deleted from the stream is
            pending no more.
        """
        for label, flag in (("force", force), ("justid", justid)):
            if flag and not isinstance(flag, bool):  # alone among the methods of redis-py
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
            options = xclaim.ClaimOptions(*since, -1 if count is None else count, bool(force), last)
        except CommandError as error:
            options = xclaim.ClaimOptions(None, None, -1, False, None)
            options.problem = error
        return self._run(
            write(
                xclaim.xclaim,
                (
                    to_bytes(name, "name"),
                    to_bytes(groupname, "groupname"),
                    to_bytes(consumername, "consumername"),
                    least,
                    _texts(message_ids),
                    options,
                    self._shape,
                    bool(justid),
                ),
                self._ids if justid else self._entry_text,
            )
        )

    def xautoclaim(
        self,
        name: Key,
        groupname: Key,
        consumername: Key,
        min_idle_time: int,
        start_id: Id = "0-0",
        count: int | None = None,
        justid: bool = False,
        *,
        whole: bool = False,
    ) -> Entries:
        """Claim what has been pending too long, from an ID on (XAUTOCLAIM).

        Args:
            min_idle_time: only what was delivered at least as many milliseconds ago.
            count: claim at most this many, and look at ten times as many; 100 by default.
            justid: return IDs only, and do not count this as a delivery.
            whole: with `justid`, return the whole reply, of which redis-py drops all but the IDs.

        Returns:
            [ID to go on from (0-0 at the end), entries, IDs that were deleted from the stream and
            are pending no more]; with `justid` only the list of IDs, as redis-py does, or, if
            `whole`, the three parts with IDs instead of entries.
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

        return self._run(
            write(
                xclaim.xautoclaim,
                (
                    to_bytes(name, "name"),
                    to_bytes(groupname, "groupname"),
                    to_bytes(consumername, "consumername"),
                    least,
                    range_start(start_id),
                    most,
                    self._shape,
                    bool(justid),
                ),
                shape,
            )
        )

    # --- observe ----------------------------------------------------------------------------

    def xinfo_groups(self, name: Key) -> list[Info]:
        """Return the groups of a stream, in redis-py's shape (XINFO GROUPS).

        `lag` is how many entries the group has yet to read, None when nobody can know.
        """
        return self._run(read(xinfo.xinfo_groups, (to_bytes(name, "name"),), self._text))

    def xinfo_consumers(self, name: Key, groupname: Key) -> list[Info]:
        """Return the consumers of a group, in redis-py's shape (XINFO CONSUMERS).

        `idle` are the milliseconds since the consumer last tried, `inactive` those since it last
        got something (-1: never).
        """
        return self._run(
            read(
                xinfo.xinfo_consumers,
                (to_bytes(name, "name"), to_bytes(groupname, "groupname")),
                self._text,
            )
        )

    def xgroup_help(self) -> list[str]:
        """Return what XGROUP can do, a line each (XGROUP HELP)."""
        return self._run(read(_help, ("XGROUP",)))

    def xinfo_help(self) -> list[str]:
        """Return what XINFO can do, a line each (XINFO HELP)."""
        return self._run(read(_help, ("XINFO",)))

    # --- idempotent XADD --------------------------------------------------------------------

    def xcfgset(
        self, name: Key, idmp_duration: int | None = None, idmp_maxsize: int | None = None
    ) -> Text:
        """Set how long, and how many messages of each producer, a stream remembers (XCFGSET).

        Args:
            idmp_duration: 1 to 86,400 seconds.
            idmp_maxsize: 1 to 10,000 messages.

        When a value really changes, everything remembered is forgotten.
        """
        if idmp_duration is None and idmp_maxsize is None:
            raise ArgumentError("XCFGSET requires at least one of idmp_duration or idmp_maxsize")
        return self._run(
            write(
                idempotency.xcfgset,
                (
                    to_bytes(name, "name"),
                    _setting("idmp_duration", idmp_duration),
                    _setting("idmp_maxsize", idmp_maxsize),
                ),
                self._one_text,
            )
        )

    def xidmprecord(self, name: Key, producer: Key, iid: Key, id: Id) -> Text:
        """Remember that a producer's message became an entry that exists (XIDMPRECORD)."""
        return self._run(
            write(
                idempotency.xidmprecord,
                (
                    to_bytes(name, "name"),
                    to_bytes(producer, "producer"),
                    to_bytes(iid, "iid"),
                    to_id(id),
                ),
                self._one_text,
            )
        )

    # --- IDs --------------------------------------------------------------------------------

    def _id(self, entry_id: tuple[int, int] | None) -> Text | None:
        if entry_id is None:
            return None
        return self._as_text(id_text(*entry_id))

    def _ids(self, ids: Entries) -> Entries:
        return [self._id(one) for one in ids]


def _help(txn: Txn, command: str) -> list[str]:
    return list(HELP[command])


def _texts(ids: Iterable[Id]) -> list[bytes]:
    return [to_id_text(one) for one in ids]


def _claim_option(name: str, value: object) -> int | None:
    """Return an option of XCLAIM, which redis-py takes as an int only."""
    if value is None:
        return None
    server = f"Invalid {name.upper()} option argument for XCLAIM"
    return check_integer(f"XCLAIM {name} must be an integer", name, value, None, server)


def _setting(name: str, value: object) -> int | None:
    """Return a setting of XCFGSET; that it is too large is said with the server's limits."""
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise ArgumentError(f"XCFGSET {name} must be a positive integer, not {as_given(value)}")
    return to_integer(name, value)


def _group_start(value: Id) -> xgroup.StartId:
    """Parse the ID of XGROUP CREATE."""
    try:
        return xgroup.LAST if visible(to_id_text(value)) == b"$" else to_id(value)
    except InvalidIdError as error:
        return error  # raised when there are a key and a group


def _setid_start(value: Id) -> xgroup.StartId:
    """Parse the ID of XGROUP SETID, which may be `-` or `+`, but not `(id`."""
    text = to_id_text(value)
    if visible(text) == b"$":
        return xgroup.LAST
    try:
        return to_id(text) if text[:1] == b"(" else range_start(text)
    except InvalidIdError as error:
        return error
