"""The commands of consumer groups as methods, with redis-py's names, parameters and shapes."""

from __future__ import annotations

from typing import Any, Literal, overload

from streamkeep.engine.api.command_base import (
    Id,
    Key,
    Named,
    NamedClaimed,
    RangeId,
    RefPolicy,
    Streams,
    after_text,
    consumer_names,
    free,
    group_names,
    id_texts,
    listed,
    named_streams,
    read,
    remove,
    write,
)
from streamkeep.engine.api.read_commands import ReadCommands
from streamkeep.engine.blocking.calls import GroupCall
from streamkeep.engine.commands import xack, xgroup, xinfo, xreadgroup
from streamkeep.engine.commands.arguments import (
    check_block,
    check_count,
    check_not_negative,
    check_policy,
    no_arguments,
    to_bytes,
    to_optional_integer,
)
from streamkeep.engine.commands.reply_budget import check_budget
from streamkeep.engine.commands.xgroup import HELP
from streamkeep.engine.commands.xinfo import Info
from streamkeep.engine.store.command import wait
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given

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
        id: RangeId = "$",
        mkstream: bool = False,
        entries_read: int | None = None,
    ) -> bool:
        """Create a consumer group of a stream (XGROUP CREATE).

        Args:
            id: the last ID that the group counts as read: `$` for the last ID of the stream, 0 for
                none. A time, as in `xrange`, is the ID before the first of that time.
            mkstream: create an empty stream if it does not exist.
            entries_read: how many entries that is, if it is known; it makes the lag exact.

        Raises:
            GroupExistsError: the stream has a group of this name.
            NoSuchKeyError: the stream does not exist.
        """
        start = xgroup.start_id(after_text("id", id, self._now_ms), interval=False)
        read = to_optional_integer("entries_read", entries_read)
        args = *group_names(name, groupname), start, bool(mkstream), read
        return self._run(write(xgroup.xgroup_create, args))

    def xgroup_exists(self, name: Key, groupname: Key) -> bool:
        """Return whether the stream exists and has this group; cheaper than XINFO GROUPS."""
        return self._run(read(xgroup.group_exists, group_names(name, groupname)))

    def xgroup_setid(
        self, name: Key, groupname: Key, id: RangeId, entries_read: int | None = None
    ) -> bool:
        """Set the last ID that a group has read; pending entries stay (XGROUP SETID)."""
        last = xgroup.start_id(after_text("id", id, self._now_ms), interval=True)
        read = to_optional_integer("entries_read", entries_read)
        return self._run(write(xgroup.xgroup_setid, (*group_names(name, groupname), last, read)))

    def xgroup_destroy(self, name: Key, groupname: Key) -> bool:
        """Destroy a group with its consumers and its pending entries (XGROUP DESTROY).

        The group is removed at once. Its pages are freed in small steps.

        Returns:
            False if there was no such group.
        """
        return self._run(remove(xgroup.xgroup_destroy, group_names(name, groupname)))

    def xgroup_createconsumer(self, name: Key, groupname: Key, consumername: Key) -> int:
        """Create a consumer; return 0 if it exists (XGROUP CREATECONSUMER)."""
        names = consumer_names(name, groupname, consumername)
        return self._run(write(xgroup.xgroup_createconsumer, names))

    def xgroup_delconsumer(self, name: Key, groupname: Key, consumername: Key) -> int:
        """Delete a consumer; return how many entries it had pending (XGROUP DELCONSUMER).

        These are not delivered again, so claim them first.
        """
        names = consumer_names(name, groupname, consumername)
        return self._run(free(xgroup.xgroup_delconsumer, names))

    # --- deliver ----------------------------------------------------------------------------------

    @overload
    def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        claim_min_idle_time: None = None,
        max_count: int | None = None,
        max_size: int | None = None,
        *,
        claim_dead: Literal[False] = False,
    ) -> list[Named[Text]]: ...

    @overload
    def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        *,
        claim_min_idle_time: int,
        max_count: int | None = None,
        max_size: int | None = None,
        claim_dead: bool | Literal["owned"] = False,
    ) -> list[NamedClaimed[Text]]: ...

    @overload
    def xreadgroup(
        self,
        groupname: Key,
        consumername: Key,
        streams: Streams,
        count: int | None = None,
        block: int | None = None,
        noack: bool = False,
        claim_min_idle_time: None = None,
        max_count: int | None = None,
        max_size: int | None = None,
        *,
        claim_dead: Literal[True, "owned"],
    ) -> list[NamedClaimed[Text]]: ...

    @overload
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
        *,
        claim_dead: bool | Literal["owned"] = False,
    ) -> list[Named[Text]] | list[NamedClaimed[Text]]: ...

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
        *,
        claim_dead: bool | Literal["owned"] = False,
    ) -> list[Named[Text]] | list[NamedClaimed[Text]]:
        """Deliver entries to a consumer of a group, which is created if it is missing (XREADGROUP).

        Delivery, pending entries and counters change in one transaction. After a crash, an entry
        was delivered and is pending, or neither.

        Args:
            streams: for each stream, `>` for entries that the group has not read, or an ID for the
                pending entries of this consumer above it. A dict, or a list of (name, ID) pairs,
                which may name a stream several times.
            count: return at most this many entries of each stream.
            block: wait for entries for at most this many milliseconds; 0: without limit; None: do
                not wait. Of several waiting calls, the oldest is served first.
            noack: do not make new entries pending, so they are delivered at most once.
            claim_min_idle_time: first take over entries that any consumer has had pending for this
                many milliseconds. Entries then have four parts (`ClaimedEntry`): ID, fields,
                and the former idle time and delivery count. Both are 0 for new entries; entries
                returned by `xnack` have been idle since 1970.
            claim_dead: first take over what processes that have died had pending, and what `xnack`
                has returned, but never what a live process has, however long it works. A call
                that waits takes it within milliseconds of the death. Entries have four parts, as
                above. "owned": only what the dead had, not what `xnack` has returned; and a dead
                consumer with nothing pending is removed at once, instead of a day later.
                Not together with `claim_min_idle_time`. See `streamkeep.open(lease=...)`.
            max_count: return at most this many entries of all streams together.
            max_size: stop when the reply would have about this many bytes in Redis's protocol.

        Returns:
            `[name, [Entry, ...]]` of each stream that has entries. Among pending entries, one that
            was deleted from the stream has no fields.

        Raises:
            NoSuchGroupError: a stream, or the group in it, does not exist.
            StoreError: this process could not make its lease, such as on a full disk.
        """
        limit = check_count("XREADGROUP", "count", count)
        budget = check_budget("XREADGROUP", count, max_count, max_size)
        block_ms = None if block is None else check_block("XREADGROUP", block)
        min_idle = xreadgroup.check_claims(claim_min_idle_time, claim_dead)
        named = named_streams("XREADGROUP", streams)
        wanted = [(name, xreadgroup.parse_position(text)) for name, text in named]
        delivery = xreadgroup.Delivery(
            to_bytes(groupname, "groupname"),
            to_bytes(consumername, "consumername"),
            limit,
            bool(noack),
            min_idle,
            self._shape,
            bool(claim_dead),
            self._lease(),
            claim_dead == "owned",
        )
        if block_ms is None:
            run = xreadgroup.xreadgroup
            found: Any = self._run(write(run, (wanted, delivery, budget), self._named_text))
        else:
            call = GroupCall(wanted, delivery, budget.max_count, budget.max_size)
            found = self._run(wait(call, block_ms, self._named_text))
        return found  # type: ignore[no-any-return]  # or a coroutine, or a pipeline

    # --- acknowledge ------------------------------------------------------------------------------

    def xack(self, name: Key, groupname: Key, *ids: Id) -> int:
        """Acknowledge entries, which then are no longer pending (XACK).

        Returns:
            How many were pending; 0 if the stream or the group does not exist.
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
            ref_policy: "KEEPREF" leaves pending entries of other groups, "DELREF" removes them,
                "ACKED" deletes only what all groups have read and acknowledged.

        Returns:
            For each ID, -1 if it was not pending, 1 if it was deleted, 2 if it was kept.
        """
        if not ids:
            raise ArgumentError("XACKDEL requires at least one message ID")
        policy = check_policy("XACKDEL", ref_policy)
        return self._run(free(xack.xackdel, (*group_names(name, groupname), id_texts(ids), policy)))

    def xdelex(self, name: Key, *ids: Id, ref_policy: RefPolicy = "KEEPREF") -> list[int]:
        """Delete entries under a reference policy (XDELEX).

        Returns:
            For each ID, 1 if it was deleted, -1 if there is no such entry, 2 if it was kept.
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
        """Return pending entries to the group, for any consumer to claim (XNACK).

        Args:
            mode: what happens to the delivery count: "SILENT" takes one delivery off, "FAIL" leaves
                it, "FATAL" sets it to the maximum.
            retrycount: set the delivery count to this instead.
            force: also make entries pending that are not.

        Returns:
            How many were returned.
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
        number = _MODES.index(mode)
        args = *group_names(name, groupname), number, id_texts(ids), count, bool(force)
        return self._run(write(xack.xnack, args))

    # --- information ------------------------------------------------------------------------------

    def xinfo_groups(self, name: Key) -> list[Info]:
        """Return the groups of a stream, in redis-py's shape (XINFO GROUPS).

        `lag` is how many entries the group has not read, None if that cannot be known.
        """
        return self._run(read(xinfo.xinfo_groups, (to_bytes(name, "name"),), listed(self._text)))

    def xinfo_consumers(self, name: Key, groupname: Key, *, leases: bool = False) -> list[Info]:
        """Return the consumers of a group, in redis-py's shape (XINFO CONSUMERS).

        `idle` is the time in milliseconds since the consumer's last attempt, `inactive` since it
        last got an entry (-1: never).

        Args:
            leases: also say as `lease` whether the process that the consumer's newest entries were
                delivered to is "alive" or "dead"; "unknown" if it had no lease.
        """
        args = *group_names(name, groupname), bool(leases)
        return self._run(read(xinfo.xinfo_consumers, args, listed(self._text)))

    def xgroup_help(self) -> list[str]:
        """Return the subcommands of XGROUP, one per line (XGROUP HELP)."""
        return self._run(read(_help, ("XGROUP",)))

    def xinfo_help(self) -> list[str]:
        """Return the subcommands of XINFO, one per line (XINFO HELP)."""
        return self._run(read(_help, ("XINFO",)))


def _help(txn: Txn, command: str) -> list[str]:
    return list(HELP[command])
