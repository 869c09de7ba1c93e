"""The commands of streams, from the words of an append-only file to calls of the store."""

from __future__ import annotations

from typing import Any, Final

from streamkeep.engine.commands import xadd
from streamkeep.engine.commands.idempotency import check_idempotent
from streamkeep.format.rows.producers import content_iid
from streamkeep.transfer.aof.context import Context, Run, integer, options_of

_POLICIES: Final = (b"KEEPREF", b"DELREF", b"ACKED")


class _Trim:
    """The options of XADD and XTRIM, from the word `at` on; `at` is then the word after them."""

    def __init__(self, words: list[bytes], at: int) -> None:
        self.maxlen: int | None = None
        self.minid: bytes | None = None
        self.approximate = False
        self.limit: int | None = None
        self.policy: str | None = None
        self.nomkstream = False
        self.idmp: tuple[bytes, bytes] | None = None
        self.idmpauto: bytes | None = None
        while at < len(words) and (taken := self._take(words, at, words[at].upper())):
            at += taken
        self.at = at
        if not self.approximate:
            # A server writes = in place of the ~ that it was given, with the number that really
            # stayed, and leaves LIMIT in the command; it ignores LIMIT when it loads the file.
            self.limit = None

    def _take(self, words: list[bytes], at: int, word: bytes) -> int:
        """Take the option at `at`; return how many words it is, 0 where there is none."""
        if word == b"NOMKSTREAM":
            self.nomkstream = True
        elif word in _POLICIES:
            self.policy = word.decode()
        elif word == b"IDMPAUTO":
            self.idmpauto = words[at + 1]
            return 2
        elif word == b"IDMP":
            self.idmp = (words[at + 1], words[at + 2])
            return 3
        elif word == b"LIMIT":
            self.limit = int(words[at + 1])
            return 2
        elif word in (b"MAXLEN", b"MINID"):
            self.approximate = words[at + 1] == b"~"
            wide = 2 + (words[at + 1] in (b"~", b"="))
            if word == b"MAXLEN":
                self.maxlen = int(words[at + wide - 1])
            else:
                self.minid = words[at + wide - 1]
            return wide
        else:
            return 0
        return 1

    def message(self, fields: list[bytes]) -> xadd.Message | None:
        """Return the message that IDMP or IDMPAUTO asks for."""
        if self.idmp is None and self.idmpauto is None:
            return None
        if self.idmp is not None and self.idmpauto is not None:
            raise ValueError("both IDMP and IDMPAUTO")
        producer, iid = self.idmp or (self.idmpauto or b"", None)
        check_idempotent(producer, iid, True)
        return xadd.Message(producer, content_iid(fields) if iid is None else iid)

    def trims(self) -> dict[str, Any]:
        """Return how to trim, as `xtrim` and `xadd` take it."""
        return {
            "maxlen": self.maxlen,
            "minid": self.minid,
            "approximate": self.approximate,
            "limit": self.limit,
            "ref_policy": self.policy,
        }


def _ids_block(words: list[bytes], at: int) -> tuple[list[bytes], list[bytes]]:
    """Return the IDs of `IDS numids id ...`, and the words around them."""
    start = at
    while words[start].upper() != b"IDS":
        start += 1 + (words[start].upper() == b"RETRYCOUNT")
    end = start + 2 + int(words[start + 1])
    if end > len(words) or end <= start + 2:
        raise ValueError(f"IDS announces {words[start + 1]!r} IDs")
    return words[start + 2 : end], words[at:start] + words[end:]


def _policy(words: list[bytes]) -> Any:
    found = options_of(words, dict.fromkeys(_POLICIES, False))
    if len(found) > 1:
        raise ValueError("two reference policies")
    return next(iter(found), b"KEEPREF").decode()


# --- streams ------------------------------------------------------------------------------------


def _xadd(on: Context, words: list[bytes]) -> None:
    options = _Trim(words, 2)
    flat = words[options.at + 1 :]
    if not flat or len(flat) % 2:
        raise ValueError("fields and values do not come in pairs")
    key, new_id = words[1], words[options.at]
    message = options.message(flat)
    if message is None:
        pairs = list(zip(flat[0::2], flat[1::2], strict=True))
        added = on.store.xadd(key, pairs, new_id, nomkstream=options.nomkstream, **options.trims())
        on.entries += added is not None
        return
    # `xadd` takes no ID beside IDMP, and a server's file has the ID that it gave.
    before = _entries_added(on, key)
    chosen = xadd.parse_new_id(new_id)
    xadd.xadd(on.store.txn, key, flat, chosen, options.nomkstream, None, message)
    if _entries_added(on, key) > before:
        on.entries += 1
        if options.maxlen is not None or options.minid is not None:
            on.store.xtrim(key, **options.trims())


def _entries_added(on: Context, key: bytes) -> int:
    stream = on.store.txn.find_stream(key)
    return 0 if stream is None else int(stream.record.entries_added)


def _xtrim(on: Context, words: list[bytes]) -> None:
    options = _Trim(words, 2)
    if options.at < len(words):
        raise ValueError(f"{words[options.at]!r} is no option")
    on.store.xtrim(words[1], **options.trims())


def _xdelex(on: Context, words: list[bytes]) -> None:
    ids, rest = _ids_block(words, 2)
    on.store.xdelex(words[1], *ids, ref_policy=_policy(rest))


def _xackdel(on: Context, words: list[bytes]) -> None:
    ids, rest = _ids_block(words, 3)
    on.store.xackdel(words[1], words[2], *ids, ref_policy=_policy(rest))


def _xsetid(on: Context, words: list[bytes]) -> None:
    found = options_of(words[3:], {b"ENTRIESADDED": True, b"MAXDELETEDID": True})
    added = integer(found, b"ENTRIESADDED")
    on.store.xsetid(words[1], words[2], added, found.get(b"MAXDELETEDID"))


def _xgroup_create(on: Context, words: list[bytes]) -> None:
    found = options_of(words[5:], {b"MKSTREAM": False, b"ENTRIESREAD": True})
    read = integer(found, b"ENTRIESREAD")
    on.store.xgroup_create(words[2], words[3], words[4], b"MKSTREAM" in found, read)


def _xgroup_setid(on: Context, words: list[bytes]) -> None:
    read = integer(options_of(words[5:], {b"ENTRIESREAD": True}), b"ENTRIESREAD")
    on.store.xgroup_setid(words[2], words[3], words[4], read)


def _xclaim(on: Context, words: list[bytes]) -> None:
    at = 5
    while at < len(words) and words[at][:1].isdigit():
        at += 1
    takes = {b"IDLE": True, b"TIME": True, b"RETRYCOUNT": True, b"LASTID": True}
    found = options_of(words[at:], {**takes, b"FORCE": False, b"JUSTID": False})
    key, group, consumer = words[1:4]
    on.store.xclaim(
        key,
        group,
        consumer,
        int(words[4]),
        words[5:at],
        idle=integer(found, b"IDLE"),
        time=integer(found, b"TIME"),
        retrycount=integer(found, b"RETRYCOUNT"),
        force=b"FORCE" in found,
        justid=b"JUSTID" in found,
        last_id=found.get(b"LASTID"),
    )


def _xnack(on: Context, words: list[bytes]) -> None:
    ids, rest = _ids_block(words, 4)
    found = options_of(rest, {b"RETRYCOUNT": True, b"FORCE": False})
    on.store.xnack(
        words[1],
        words[2],
        words[3].upper().decode(),
        *ids,
        retrycount=integer(found, b"RETRYCOUNT"),
        force=b"FORCE" in found,
    )


def _xcfgset(on: Context, words: list[bytes]) -> None:
    found = options_of(words[2:], {b"IDMP-DURATION": True, b"IDMP-MAXSIZE": True})
    on.store.xcfgset(words[1], integer(found, b"IDMP-DURATION"), integer(found, b"IDMP-MAXSIZE"))


STREAM_COMMANDS: Final[dict[bytes, Run]] = {
    b"XADD": _xadd,
    b"XDEL": lambda on, words: on.store.xdel(words[1], *words[2:]),
    b"XDELEX": _xdelex,
    b"XTRIM": _xtrim,
    b"XSETID": _xsetid,
    b"XGROUP CREATE": _xgroup_create,
    b"XGROUP SETID": _xgroup_setid,
    b"XGROUP DESTROY": lambda on, words: on.store.xgroup_destroy(words[2], words[3]),
    b"XGROUP CREATECONSUMER": lambda on, words: on.store.xgroup_createconsumer(*words[2:5]),
    b"XGROUP DELCONSUMER": lambda on, words: on.store.xgroup_delconsumer(*words[2:5]),
    b"XACK": lambda on, words: on.store.xack(words[1], words[2], *words[3:]),
    b"XACKDEL": _xackdel,
    b"XCLAIM": _xclaim,
    b"XNACK": _xnack,
    b"XCFGSET": _xcfgset,
    b"XIDMPRECORD": lambda on, words: on.store.xidmprecord(*words[1:5]),
}
