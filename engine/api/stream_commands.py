"""The commands of Redis Streams as methods, with redis-py's names, parameters and return shapes.

`StreamCommands` only checks and converts arguments; its subclasses decide where a command runs
(see `command_base`). Arguments that redis-py refuses on the client side raise `ArgumentError` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, overload

from streamkeep.engine.api.command_base import (
    Fields,
    Id,
    Key,
    Pair,
    RefPolicy,
    free,
    write,
)
from streamkeep.engine.api.group_commands import GroupCommands
from streamkeep.engine.api.key_commands import KeyCommands
from streamkeep.engine.api.pending_commands import PendingCommands
from streamkeep.engine.api.read_commands import Delete
from streamkeep.engine.commands import (
    idempotency,
    xadd,
    xdel,
    xinfo,
    xtrim,
)
from streamkeep.engine.commands.arguments import (
    as_given,
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
from streamkeep.engine.commands.idempotency import check_idempotent
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import (
    ArgumentError,
    CommandError,
)
from streamkeep.format.rows.producers import content_iid


class StreamCommands(KeyCommands[Text], GroupCommands[Text], PendingCommands[Text]):
    """Every stream command; see the subclasses for how each runs.

    `Text` is bytes, or str with decode_responses=True.
    """

    # --- append -----------------------------------------------------------------------------------

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

    # --- remove -----------------------------------------------------------------------------------

    def xdel(self, name: Key, *ids: Id) -> int:
        """Delete entries; return how many there were (XDEL)."""
        if not ids:
            raise no_arguments("xdel")
        return self._run(
            free(xdel.xdel, (to_bytes(name, "name"), [to_id_text(one) for one in ids]))
        )

    def _deleter(self) -> Delete:
        return self.xdel

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

    # --- settings of a stream ---------------------------------------------------------------------

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


def _setting(name: str, value: object) -> int | None:
    """Return a setting of XCFGSET; that it is too large is said with the server's limits."""
    if value is None:
        return None
    if not isinstance(value, int) or value < 1:
        raise ArgumentError(f"XCFGSET {name} must be a positive integer, not {as_given(value)}")
    return to_integer(name, value)
