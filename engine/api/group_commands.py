"""The commands of consumer groups as methods, with redis-py's names, parameters and shapes."""

from __future__ import annotations

from typing import Literal

from streamkeep.engine.api.command_base import (
    Id,
    Key,
    RefPolicy,
    Streams,
    free,
    id_texts,
    named_streams,
    read,
    remove,
    write,
)
from streamkeep.engine.api.read_commands import ReadCommands
from streamkeep.engine.blocking.calls import GroupCall
from streamkeep.engine.commands import (
    xack,
    xgroup,
    xinfo,
    xreadgroup,
)
from streamkeep.engine.commands.arguments import (
    as_given,
    check_block,
    check_count,
    check_not_negative,
    check_policy,
    no_arguments,
    range_start,
    to_bytes,
    to_id,
    to_id_text,
    to_optional_integer,
)
from streamkeep.engine.commands.help_texts import HELP
from streamkeep.engine.commands.reply_budget import Found, check_budget
from streamkeep.engine.commands.xinfo import Info
from streamkeep.engine.store.command import wait
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import (
    ArgumentError,
    InvalidIdError,
)
from streamkeep.format.core.id_codec import visible

NackMode = Literal["SILENT", "FAIL", "FATAL"]


_MODES = ("SILENT", "FAIL", "FATAL")


_MODE_DECIDES = -1  # no RETRYCOUNT was given


class GroupCommands(ReadCommands[Text]):
    """XGROUP, XREADGROUP, XACK and other commands on groups; a base of `StreamCommands`."""

    # --- groups and consumers ---------------------------------------------------------------------

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

    # --- deliver ----------------------------------------------------------------------------------

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

    # --- acknowledge ------------------------------------------------------------------------------

    def xack(self, name: Key, groupname: Key, *ids: Id) -> int:
        """Acknowledge entries: they are pending no more (XACK).

        Returns:
            How many were pending; 0 when stream or group do not exist.
        """
        if not ids:
            raise no_arguments("xack")
        group = to_bytes(groupname, "groupname")
        return self._run(free(xack.xack, (to_bytes(name, "name"), group, id_texts(ids))))

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
                (to_bytes(name, "name"), to_bytes(groupname, "groupname"), id_texts(ids), policy),
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
        return self._run(free(xack.xdelex, (to_bytes(name, "name"), id_texts(ids), policy)))

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
                    id_texts(ids),
                    count,
                    bool(force),
                ),
            )
        )

    # --- information ------------------------------------------------------------------------------

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


def _help(txn: Txn, command: str) -> list[str]:
    return list(HELP[command])


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
