"""The commands of Redis Streams as methods, with redis-py's names, parameters and return shapes.

`StreamCommands` only checks and converts arguments; its subclasses decide where a command runs
(see `command_base`). Arguments that redis-py refuses on the client side raise `ArgumentError` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, overload

from streamkeep.engine.api.command_base import (
    Fields,
    Id,
    Key,
    Now,
    Pair,
    RangeId,
    RefPolicy,
    end_bound,
    free,
    id_texts,
    minid_bound,
    start_bound,
    write,
)
from streamkeep.engine.api.group_commands import GroupCommands
from streamkeep.engine.api.key_commands import KeyCommands
from streamkeep.engine.api.pending_commands import PendingCommands
from streamkeep.engine.api.read_commands import Delete
from streamkeep.engine.api.row_commands import RowCommands
from streamkeep.engine.commands import idempotency, xadd, xdel, xinfo, xtrim
from streamkeep.engine.commands.arguments import (
    check_integer,
    check_policy,
    no_arguments,
    refused,
    to_bytes,
    to_flat,
    to_id,
    to_id_text,
    to_integer,
    to_optional_integer,
)
from streamkeep.engine.commands.idempotency import check_idempotent
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError, CommandError
from streamkeep.format.core.values import as_given
from streamkeep.format.humanize import count_text, entries_text
from streamkeep.format.rows.producers import content_iid


class StreamCommands(
    RowCommands[Text], KeyCommands[Text], GroupCommands[Text], PendingCommands[Text]
):
    """All commands on streams. The subclasses decide how each runs.

    `Text` is bytes, or str with decode_responses=True.
    """

    # --- append -----------------------------------------------------------------------------------

    @overload
    def xadd(
        self,
        name: Key,
        fields: Fields | Sequence[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: Literal[False] = False,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text: ...

    @overload
    def xadd(
        self,
        name: Key,
        fields: Fields | Sequence[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: bool = False,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text | None: ...

    def xadd(
        self,
        name: Key,
        fields: Fields | Sequence[Pair],
        id: Id = "*",
        maxlen: int | None = None,
        approximate: bool = True,
        nomkstream: bool = False,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
        idmpauto: Key | None = None,
        idmp: tuple[Key, Key] | None = None,
    ) -> Text | None:
        """Append an entry to a stream, which is created if it is missing (XADD).

        The entry and all counters change in one transaction, so that readers see all of it or
        nothing, also after a crash. The store's `sync` mode says when it is durable.

        Args:
            fields: a dict, or (field, value) pairs, which may repeat fields; at least one.
            id: `*` for an ID from the clock, `ms-*` for the next one in that millisecond, or an ID
                above the last one of the stream.
            maxlen, minid: then trim the stream to this many entries, or to IDs from this one, or
                this time, on (see `xrange`); not both.
            approximate: trim whole macro nodes only, which is cheaper and may leave more.
            nomkstream: do nothing if the stream is missing.
            limit: trim at most about this many entries; only with `approximate`. By default 10,000
                (100 times node_max_entries, if that is set); 0: no limit.
            ref_policy: what trimming does to pending entries of groups: "KEEPREF" leaves them,
                "DELREF" removes them, "ACKED" trims only what all groups have read and
                acknowledged.
            idmp: (producer, message ID). If this producer sent a message with this ID before, no
                entry is added, and the ID of the first entry is returned.
            idmpauto: a producer; the message ID is computed from the fields.

        Returns:
            The ID as bytes `b"ms-seq"` (str with decode_responses); None if `nomkstream` applied.

        Raises:
            IdTooSmallError: the ID is not above the last ID of the stream.
            ArgumentError, InvalidIdError: an argument is not valid.
            StoreFullError: no room on the disk; reading and deleting still work.
        """
        flat = to_flat(fields)
        message = None
        if idmpauto is not None or idmp is not None:
            message = _message(flat, id, idmpauto, idmp)
        trim_spec = None
        if maxlen is not None or minid is not None or limit is not None or ref_policy is not None:
            now = self._now_ms
            trim_spec = _trim_spec("XADD", maxlen, approximate, minid, now, limit, ref_policy)
        new_id = xadd.ANY_ID if id == "*" else xadd.parse_new_id(to_id_text(id))
        args = to_bytes(name, "name"), flat, new_id, bool(nomkstream), trim_spec, message
        return self._run(write(xadd.xadd, args, self._id_text))

    @overload
    def xadd_many(
        self, name: Key, entries: Iterable[Fields], ids: Iterable[Id] | None = None
    ) -> list[Text]: ...

    @overload
    def xadd_many(
        self, name: Key, entries: Iterable[Fields | Iterable[Pair]], ids: Iterable[Id] | None = None
    ) -> list[Text]: ...

    def xadd_many(
        self, name: Key, entries: Iterable[Fields | Iterable[Pair]], ids: Iterable[Id] | None = None
    ) -> list[Text]:
        """Append many entries in one transaction, all or none.

        Args:
            entries: the fields of each, as `xadd` takes them.
            ids: an ID for each entry, as `xadd` takes them; None for `*`.

        Returns:
            The IDs, in order.

        Raises:
            IdTooSmallError: an ID is not above the one before; `error.entry_index` is its index.
        """
        flats = [to_flat(entry) for entry in entries]
        new_ids = None
        if ids is not None:
            new_ids = [xadd.parse_new_id(to_id_text(one)) for one in ids]
            if len(new_ids) != len(flats):
                raise ArgumentError(
                    f"{entries_text(len(flats))}, but {count_text(len(new_ids), 'ID')}"
                )
        if not flats:
            raise ArgumentError("XADD needs at least one entry")
        args = to_bytes(name, "name"), flats, new_ids
        return self._run(write(xadd.xadd_many, args, self._text))

    # --- remove -----------------------------------------------------------------------------------

    def xdel(self, name: Key, *ids: Id) -> int:
        """Delete entries; return how many existed (XDEL)."""
        if not ids:
            raise no_arguments("xdel")
        return self._run(free(xdel.xdel, (to_bytes(name, "name"), id_texts(ids))))

    def _deleter(self) -> Delete:
        return self.xdel

    def xtrim(
        self,
        name: Key,
        maxlen: int | None = None,
        approximate: bool = True,
        minid: RangeId | None = None,
        limit: int | None = None,
        ref_policy: RefPolicy | None = None,
    ) -> int:
        """Remove the oldest entries of a stream; return how many were removed (XTRIM).

        Args:
            maxlen: how many entries stay; or
            minid: the lowest ID that stays, or a time as in `xrange`: "-30d" keeps thirty days.
            approximate: remove whole macro nodes only; up to one more node stays.
            limit: remove at most about this many; only with `approximate`. By default 10,000 (100
                times node_max_entries, if that is set), so repeat the call until it returns 0. 0:
                no limit.
            ref_policy: "KEEPREF" leaves pending entries of groups, "DELREF" removes them, "ACKED"
                trims only what all groups have read and acknowledged. With the latter two, entries
                are removed one by one, and `approximate` has no effect other than the limit.
        """
        if maxlen is None and minid is None:
            raise ArgumentError("One of ``maxlen`` or ``minid`` must be specified")
        spec = _trim_spec("XTRIM", maxlen, approximate, minid, self._now_ms, limit, ref_policy)
        assert spec is not None
        return self._run(free(xtrim.xtrim, (to_bytes(name, "name"), spec)))

    def trim_range(self, name: Key, start: RangeId, end: RangeId) -> int:
        """Trim the entries from `start` to `end`, anywhere in a stream; return how many there were.

        If the stream archives, the entries go to the archive, as with `xtrim`. Macro nodes in the
        range are removed as a whole. last_generated_id and entries_added stay. If older entries
        stay, the removed ones count as deleted in max_deleted_id. The lag of a group that has not
        reached the range is then unknown (None), instead of wrong.

        Args:
            start, end: as `min` and `max` of `xrange`, both included.
        """
        low, high = start_bound("start", start, self._now_ms), end_bound("end", end, self._now_ms)
        return self._run(free(xtrim.trim_range, (to_bytes(name, "name"), low, high)))

    # --- settings of a stream ---------------------------------------------------------------------

    def xsetid(
        self, name: Key, id: Id, entries_added: int | None = None, max_deleted_id: Id | None = None
    ) -> bool:
        """Set the last generated ID of a stream, and two counters if they are given (XSETID).

        Raises:
            NoSuchKeyError: the stream does not exist.
            CommandError: the ID is below an entry that the stream holds or has deleted.
        """
        last = to_id(id)
        added = to_optional_integer("entries_added", entries_added)
        deleted = None if max_deleted_id is None else to_id(max_deleted_id)
        return self._run(write(xinfo.xsetid, (to_bytes(name, "name"), last, added, deleted)))

    def xcfgset(
        self, name: Key, idmp_duration: int | None = None, idmp_maxsize: int | None = None
    ) -> Text:
        """Set how long a stream remembers messages, and how many of each producer (XCFGSET).

        Args:
            idmp_duration: 1 to 86,400 seconds.
            idmp_maxsize: 1 to 10,000 messages.

        If a value changes, the stream forgets all messages.
        """
        if idmp_duration is None and idmp_maxsize is None:
            raise ArgumentError("XCFGSET requires at least one of idmp_duration or idmp_maxsize")
        duration = _setting("idmp_duration", idmp_duration)
        most = _setting("idmp_maxsize", idmp_maxsize)
        args = to_bytes(name, "name"), duration, most
        return self._run(write(idempotency.xcfgset, args, self._one_text))

    def xidmprecord(self, name: Key, producer: Key, iid: Key, id: Id) -> Text:
        """Record that a message of a producer became an existing entry (XIDMPRECORD)."""
        sender, message = to_bytes(producer, "producer"), to_bytes(iid, "iid")
        args = to_bytes(name, "name"), sender, message, to_id(id)
        return self._run(write(idempotency.xidmprecord, args, self._one_text))


def _message(
    flat: list[bytes], id: Id, idmpauto: Key | None, idmp: tuple[Key, Key] | None
) -> xadd.Message:
    """Check the options IDMP and IDMPAUTO with the words of redis-py and Redis."""
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


def _trim_spec(
    command: str,
    maxlen: int | None,
    approximate: bool,
    minid: RangeId | None,
    now: Now,
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
    ms, seq = (0, 0) if minid is None else minid_bound(minid, now)
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
    if minid is not None:
        return xtrim.TrimSpec.from_id(ms, seq, bool(approximate), chosen, policy)
    return xtrim.TrimSpec.to_length(stay, bool(approximate), chosen, policy)


def _setting(name: str, value: object) -> int | None:
    """Return a setting of XCFGSET. `idempotency.xcfgset` checks the upper limits."""
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise ArgumentError(f"XCFGSET {name} must be a positive integer, not {as_given(value)}")
    return to_integer(name, value)
