"""XADD, XTRIM, XDEL, XDELEX, XSETID, XCFGSET, XIDMPRECORD. Compiled by mypyc."""

from __future__ import annotations

from mypy_extensions import i64

from streamkeep.commands.replies import OK
from streamkeep.commands.words import integer, option, options, syntax, wrong_count
from streamkeep.engine.commands import idempotency, xadd, xinfo, xtrim
from streamkeep.engine.commands.idempotency import check_idempotent
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError
from streamkeep.format.core.id_codec import parse_id, until_nul
from streamkeep.format.rows.producers import content_iid

POLICIES = {b"KEEPREF": 0, b"DELREF": 1, b"ACKED": 2}


class Trim:
    """What the words of XADD or XTRIM say about trimming."""

    def __init__(self) -> None:
        self.strategy = -1
        self.maxlen = 0
        self.ms = 0
        self.seq = 0
        self.approximate = False
        self.limit = xtrim.DEFAULT_LIMIT
        self.policy = -1

    def take(self, words: list[bytes], at: int, name: bytes) -> int:
        """Read the option at a place; return how many words it has, 0 if it is another word."""
        more: i64 = len(words) - at - 1
        if (name == b"MAXLEN" or name == b"MINID") and more:
            if self.strategy >= 0:
                raise syntax("MAXLEN and MINID options at the same time are not compatible")
            taken = 2
            self.approximate = False
            sign = until_nul(words[at + 1])
            if more >= 2 and sign in (b"~", b"="):
                self.approximate = sign == b"~"
                taken = 3
            value = words[at + taken - 1]
            if name == b"MAXLEN":
                self.maxlen = integer(value)
                if self.maxlen < 0:
                    raise CommandError("The MAXLEN argument must be >= 0.")
                self.strategy = xtrim.MAXLEN
            else:
                self.ms, self.seq = parse_id(value, 0)
                self.strategy = xtrim.MINID
            return taken
        if name == b"LIMIT" and more:
            limit = integer(words[at + 1])
            if limit < 0:
                raise CommandError("The LIMIT argument must be >= 0.")
            self.limit = limit
            return 2
        policy = POLICIES.get(name, -1)
        if policy >= 0 and self.policy < 0:
            self.policy = policy
            return 1
        return 0

    def check(self, is_needed: bool, replays: bool) -> None:
        """Raise for options that do not go together."""
        if self.strategy < 0 and self.limit > 0:
            raise syntax("LIMIT cannot be used without specifying a trimming strategy")
        if self.strategy < 0 and is_needed:
            raise syntax("XTRIM must be called with a trimming strategy")
        if self.limit >= 0 and not self.approximate:
            if replays:  # a server writes = and what stayed in place of ~, and leaves LIMIT
                self.limit = xtrim.DEFAULT_LIMIT
                return
            raise syntax("LIMIT cannot be used without the special ~ option")

    def spec(self) -> xtrim.TrimSpec | None:
        if self.strategy < 0:
            return None
        policy = max(self.policy, 0)
        return xtrim.TrimSpec(
            self.strategy, self.maxlen, self.ms, self.seq, self.approximate, self.limit, policy
        )


def run_xadd(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    count: i64 = len(words)
    if words[2] == b"*" and count % 2:  # what most clients send
        return xadd.xadd(txn, words[1], words[3:], xadd.ANY_ID, False, None, None)
    return _xadd(txn, words, False)


def replay_xadd(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    """XADD as append-only files have it: after IDMP follows the ID that the server gave."""
    return _xadd(txn, words, True)


def _xadd(txn: WriteTxn, words: list[bytes], replays: bool) -> object:
    count = len(words)
    trim = Trim()
    nomkstream = False
    producer: bytes | None = None
    iid: bytes | None = None
    new_id = xadd.ANY_ID
    at = 2
    while at < count:
        word = words[at]
        if word == b"*":
            break
        name = option(word)
        taken = trim.take(words, at, name)
        if taken:
            at += taken
        elif name == b"NOMKSTREAM":
            nomkstream = True
            at += 1
        elif (name == b"IDMP" and count - at > 2) or (name == b"IDMPAUTO" and count - at > 1):
            if producer is not None:
                raise syntax("IDMP/IDMPAUTO specified multiple times")
            producer = words[at + 1]
            if name == b"IDMP":
                iid = words[at + 2]
            check_idempotent(producer, iid, True)
            at += 2 if iid is None else 3
        else:
            new_id = xadd.parse_new_id(word)
            if producer is not None and word[:1] != b"*" and not replays:
                check_idempotent(producer, iid, False)
            break
    trim.check(False, replays)
    if count - at < 3 or (count - at) % 2 == 0:
        raise wrong_count("xadd")
    pairs = words[at + 1 :]
    message: xadd.Message | None = None
    if producer is not None:
        message = xadd.Message(producer, content_iid(pairs) if iid is None else iid)
    return xadd.xadd(txn, words[1], pairs, new_id, nomkstream, trim.spec(), message)


def run_xtrim(txn: WriteTxn, words: list[bytes], shape: int, replays: bool = False) -> object:
    """XTRIM; with `replays` as append-only files have it."""
    trim = Trim()
    at = 2
    while at < len(words):
        taken = trim.take(words, at, option(words[at]))
        if not taken:
            raise syntax()
        at += taken
    trim.check(True, replays)
    spec = trim.spec()
    assert spec is not None
    return xtrim.xtrim(txn, words[1], spec)


def ids_and_policy(words: list[bytes], at: int) -> tuple[list[bytes], int]:
    """Read `IDS numids id ...` and a policy, in any order, from a place to the end.

    Of several blocks of IDs the last one counts, as in Redis.
    """
    ids: list[bytes] = []
    policy = -1
    while at < len(words):
        name = option(words[at])
        if name == b"IDS" and at + 1 < len(words):
            ids = counted_ids(
                words,
                at,
                "Number of IDs must be a positive integer",
                "The `numids` parameter must match the number of arguments",
            )
            at += 2 + len(ids)
        elif policy < 0 and name in POLICIES:
            policy = POLICIES[name]
            at += 1
        else:
            raise syntax()
    if not ids:
        raise CommandError("IDS option is required")
    return ids, max(policy, 0)


def counted_ids(
    words: list[bytes], at: int, no_number: str, too_few: str, most: int = 1 << 63
) -> list[bytes]:
    """Return the IDs of `IDS numids id ...` at a place; raise the errors of the command."""
    count = integer(words[at + 1], no_number)
    if not 1 <= count <= most:
        raise CommandError(no_number)
    ids = words[at + 2 : at + 2 + min(count, len(words))]
    if len(ids) < count:
        raise CommandError(too_few)
    return ids


def run_xsetid(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    last_id = parse_id(words[2], 0)
    added: int | None = None
    deleted: tuple[int, int] | None = None
    for name, value in options(words, 3, (b"ENTRIESADDED", b"MAXDELETEDID")):
        if name == b"ENTRIESADDED":
            added = integer(value)
            if added < 0:
                raise CommandError("entries_added must be positive")
        else:
            deleted = parse_id(value, 0)
            if last_id < deleted:
                raise CommandError(
                    "The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
                )
    xinfo.xsetid(txn, words[1], last_id, added, deleted)
    return OK


def run_xcfgset(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    existing_stream(txn, words[1])
    duration: int | None = None
    maxsize: int | None = None
    for name, value in options(words, 2, (b"IDMP-DURATION", b"IDMP-MAXSIZE")):
        is_duration = name == b"IDMP-DURATION"
        if (duration if is_duration else maxsize) is not None:
            raise CommandError(f"{name.decode()} specified multiple times")
        if is_duration:
            duration = integer(value)
        else:
            maxsize = integer(value)
        idempotency.check_limits(duration, maxsize)
    idempotency.xcfgset(txn, words[1], duration, maxsize)
    return OK


def run_xidmprecord(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    idempotency.xidmprecord(txn, words[1], words[2], words[3], parse_id(words[4], 0))
    return OK
