"""Commands into a store: those that a dump writes, and those of Redis's append-only files.

Redis writes a command into its file when it has changed something, so that running all of them
again gives the same streams. Each command is in one of these classes:

    streams        XADD, XDEL, XGROUP CREATE ...: run, as the server of the store runs them
    any key        DEL, RENAME, RESTORE, FLUSHALL ...: run on streams; on other keys skipped
    overwriting    SET, SUNIONSTORE ...: the key that they write is no longer a stream
    harmless       reads, and commands of other types, which Redis refuses on a stream: skipped
    all others     refused: they may change streams in a way that is not known here

No command that changed a stream on the server is skipped while the stream stays as it was.

Commands are run in their order, in batches of one transaction each. The commands between MULTI and
EXEC are one transaction; where the file ends before EXEC none of them is run, as a server does. A
command that is refused ends the run: all commands before it are applied, and a later run can begin
at any command.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, cast

from streamkeep.commands import command_table, entries, keys
from streamkeep.commands.strings import delete_keys
from streamkeep.commands.words import integer, wrong_count
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import CommandError, CorruptionError
from streamkeep.format.node.node import PAIRS
from streamkeep.format.quoting import named
from streamkeep.format.redis.stream_dump import EXPIRY_LOSS, STREAM_TYPES, Losses
from streamkeep.transfer.stores import Target, uninterrupted

BATCH_COMMANDS: Final = 1000
BATCH_BYTES: Final = 4 << 20
BATCH_S: Final = 0.1  # so that one that is killed again and again goes on
DATABASE: Final = b"0"  # the only one that is loaded
OTHER_KEY: Final = "command for a key that is not followed"
PAYLOAD: Final = "payload"  # the place that an error names where RESTORE finds damage

Command = tuple[int, int, list[bytes]]  # its number, from 1 on, its offset, and its words
Keys = Callable[[list[bytes]], list[bytes]]


class CommandFailure(Exception):
    """A command that was not run: which one, and why."""

    def __init__(self, command: Command, problem: str) -> None:
        self.number, offset, words = command
        self.name = words[0].decode("ascii", "backslashreplace")
        super().__init__(f"command {self.number} at byte {offset}, {self.name}: {problem}")


class OpenMulti(Exception):
    """The file ends between MULTI and EXEC."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the file ends in the transaction that MULTI, command {number}, begins")
        self.number = number


class _Refusal(Exception):
    """A command that is not run, and must not be skipped either."""


class SkippedKey(_Refusal):
    """A command that brings keys whose commands were skipped."""


def _other_database(loaded: bytes) -> SkippedKey:
    return SkippedKey(
        "it brings keys from another database, whose commands were skipped: only database "
        f"{loaded.decode()} is loaded"
    )


class Replay:
    """Runs commands on a store, which is opened for the first of them.

    Attributes:
        done: the number of the last command that was applied or skipped.
        entries: how many XADD has added.
        losses: the commands that were skipped, by their names.
        refusal: why the last command was not run, if it must not be skipped either.
    """

    def __init__(
        self, target: Target, first: int, skipped: Iterable[str], moved: Callable[[int], None]
    ) -> None:
        """Run commands from number `first` on, except those whose names are in `skipped`."""
        self._target = target
        self._first = first
        self._skipped = frozenset(os.fsencode(name).upper() for name in skipped)
        self._moved = moved
        self.loaded = DATABASE  # the database whose commands are run
        self.database = DATABASE  # the one that is selected
        self.txn: Any = None
        self.done = self.entries = 0
        self.losses = Losses()
        self.refusal: _Refusal | None = None
        self._batch: list[Command] = []
        self._size = 0  # of its words
        self._multi = -1  # where in it a MULTI is that has no EXEC yet

    def run(self, commands: Iterator[tuple[int, list[bytes]]]) -> None:
        """Run commands.

        Raises:
            CommandFailure: one is refused. All before it are applied.
            CorruptionError: the bytes are not commands. All before them are applied.
            OpenMulti: the last commands are a transaction without an end. All before it are
                applied.
        """
        try:
            for number, (offset, words) in enumerate(commands, 1):
                if number >= self._first:
                    self.add((number, offset, words))
                    continue
                self.done = number
                if words[0].upper() == b"SELECT":
                    self.database = words[-1]
        except CorruptionError:  # often the end of a file that was being written
            self.flush()
            raise
        self.flush()
        if self._batch:
            raise OpenMulti(self._batch[0][0])

    def add(self, command: Command) -> None:
        """Take one command; run all that have come where they are enough for a batch."""
        words = command[2]
        name = words[0].upper()
        batch = self._batch
        if name == b"MULTI" and self._multi < 0:
            self._multi = len(batch)
        elif name in (b"EXEC", b"DISCARD"):
            if name == b"DISCARD" and self._multi >= 0:
                batch[self._multi :] = [(one, at, [b"PING"]) for one, at, _ in batch[self._multi :]]
            self._multi = -1
        batch.append(command)
        self._size += sum(map(len, words))
        enough = len(batch) >= BATCH_COMMANDS or self._size >= BATCH_BYTES
        if enough and self._multi < 0:
            self.flush()

    def flush(self) -> None:
        """Run the commands that have come, except those of a transaction that has no end yet."""
        end = len(self._batch) if self._multi < 0 else self._multi
        batch, self._batch, self._size = self._batch[:end], self._batch[end:], 0
        self._multi = min(self._multi, 0)
        failure: CommandFailure | None = None
        while batch and failure is None:
            try:
                batch = batch[self._commit(batch) :]
            except CommandFailure as error:  # it may have changed something before
                failure = error
                if before := batch[: error.number - batch[0][0]]:
                    self._commit(before, math.inf)
            self._moved(self.entries)
        if failure is not None:
            raise failure

    def _commit(self, batch: list[Command], most_s: float = BATCH_S) -> int:
        """Run a batch in one transaction, or the first commands of it; return how many.

        Args:
            most_s: seconds after which no further one is run, but for those before EXEC.

        Raises:
            CommandFailure: a command is refused. Nothing has changed.
        """
        store = self._target.store()
        former = self.database, Losses(self.losses), self.entries
        with uninterrupted():
            try:
                with store.transaction(self._target.sync) as transaction:
                    self.txn = transaction.txn
                    until = time.monotonic() + most_s
                    multi = False
                    for count, command in enumerate(batch, 1):
                        self._run(command)
                        name = command[2][0].upper()
                        multi = (multi or name == b"MULTI") and name != b"EXEC"
                        if not multi and time.monotonic() > until:
                            batch = batch[:count]
                            break
                    self.finish(batch)
            except BaseException:  # the transaction was not committed
                self.database, self.losses, self.entries = former
                raise
            self.done = batch[-1][0]
        return len(batch)

    def finish(self, batch: list[Command]) -> None:
        """Do what belongs into the same transaction, after the commands of a batch."""

    def _run(self, command: Command) -> None:
        words = command[2]
        name = words[0].upper()
        try:
            if name in self._skipped:
                self.lose(name)
            elif name == b"SELECT" and len(words) > 1:
                self.database = words[1]
            elif self.database == self.loaded:
                self.here(name, words)
            else:
                self.elsewhere(name, words)
        except CommandError as error:
            raise CommandFailure(command, error.redis_error) from error
        except _Refusal as refusal:
            self.refusal = refusal
            raise CommandFailure(command, str(refusal)) from refusal
        except CorruptionError as error:
            if error.where != PAYLOAD:
                raise  # the store itself is damaged
            raise CommandFailure(command, str(error)) from error

    def find(self, name: bytes) -> Stream | None:
        """Return the stream of a name, if commands may change it."""
        return cast("Stream | None", self.txn.find_stream(name))

    def wants(self, name: bytes) -> bool:
        """Return whether a stream may be put under a name."""
        return True

    def put(self, name: bytes, run: Callable[..., object], words: list[bytes]) -> None:
        """Run a command that puts a stream under a name, as RENAME does."""
        run(self.txn, words, 0)

    def delete(self, names: list[bytes]) -> int:
        return delete_keys(self.txn, names)

    def flush_all(self) -> None:
        keys.run_flush(self.txn, [b"FLUSHALL"], 0)

    def lose(self, name: bytes) -> None:
        self.losses.add(f"command {name.decode('ascii', 'backslashreplace')}")

    def here(self, name: bytes, words: list[bytes]) -> None:
        if name in _STREAMS:
            spec = command_table.find(words, _STREAMS)
            run = _REPLAYED.get(spec.name, spec.run)
            assert run is not None
            before = self._entries_added(words) if spec.name == "xadd" else 0
            run(self.txn, words, int(PAIRS))
            if spec.name == "xadd":
                self.entries += self._entries_added(words) - before
        elif name in _ANY_KEY:
            least, handle = _ANY_KEY[name]
            if len(words) < least:
                raise wrong_count(name.decode().lower())
            handle(self, words)
        elif name in _WRITES:
            self.delete(_WRITES[name](words))
            self.lose(name)
        elif name in _HARMLESS or (
            b"." in name and name[:1].isalpha()
        ):  # a module, on its own keys
            self.lose(name)
        elif name not in _SILENT and not name.startswith(b"#"):  # annotations: #TS:1718004800
            raise _Refusal(_why_not(name))

    def _entries_added(self, words: list[bytes]) -> int:
        stream = self.txn.find_stream(words[1])
        return 0 if stream is None else int(stream.record.entries_added)

    def elsewhere(self, name: bytes, words: list[bytes]) -> None:
        """Handle a command for another database; a few of them reach the one that is loaded."""
        if name == b"FLUSHALL":
            self.flush_all()
        elif name in _BETWEEN and self._brings(words, *_BETWEEN[name]):
            raise _other_database(self.loaded)
        elif name in _SCRIPTS:
            raise _Refusal(_why_not(name))
        elif name not in _SILENT and not name.startswith(b"#"):
            self.losses.add(f"command for database {self.database.decode('ascii', 'replace')}")

    def _brings(self, words: list[bytes], databases: Keys, key: int) -> bool:
        return self.loaded in databases(words) and (not key or self.wants(words[key]))


# --- streams ------------------------------------------------------------------------------------

_DELIVERS: Final = (b"XREADGROUP", b"XAUTOCLAIM")  # files have XCLAIM in their place
_STREAMS: Final = command_table.by_name(
    spec
    for spec in (*command_table.SPECS, *command_table.SERVER_SPECS)
    if spec.name.startswith("x")
    and spec.kind != command_table.READS
    and spec.name.upper().encode() not in _DELIVERS
)
_REPLAYED: Final[dict[str, command_table.Run]] = {
    "xadd": entries.replay_xadd,
    "xtrim": partial(entries.run_xtrim, replays=True),
}

# --- keys of any type ---------------------------------------------------------------------------

_SCRIPTS: Final = {b"EVAL", b"EVALSHA", b"FCALL"}


def _why_not(name: bytes) -> str:
    if name in _SCRIPTS:
        return "what a script changes is not known here"
    if name in _DELIVERS:
        return "it delivers entries to a client; append-only files have XCLAIM in its place"
    if name[:1].isdigit():
        return (
            "a line of MONITOR, which shows what clients sent, without the IDs that the server "
            "gave and with what it refused; load an append-only file"
        )
    return "an unknown command, which may change streams"


def _delete_if_plain(on: Replay, words: list[bytes]) -> None:
    """DELEX: with a condition it is for strings; without one it is DEL."""
    if len(words) == 2:
        on.delete(words[1:])
    else:
        on.lose(b"DELEX")


def _rename_or_copy(on: Replay, words: list[bytes]) -> None:
    """RENAME, RENAMENX, COPY; a key of another type may get the name of a stream."""
    name, source, target = words[0].upper(), words[1], words[2]
    if name == b"COPY" and copied_to(words, on.loaded) != on.loaded:
        on.losses.add("copy of a key into another database")
    elif on.find(source) is None:
        if on.wants(target) and not on.wants(source):  # which may be a stream
            raise SkippedKey(f"it brings the key {named(source)}, which is not followed")
        if name == b"RENAME" or b"REPLACE" in map(bytes.upper, words[3:]):
            on.delete([target])
        on.lose(name)
    elif on.wants(target):
        run = command_table.find(words).run
        assert run is not None
        if name == b"COPY":  # a store has no databases
            words = words[:3] + [word for word in words[3:] if word.upper() == b"REPLACE"]
        on.put(target, run, words)
    else:
        if name != b"COPY":
            on.delete([source])
        on.losses.add(OTHER_KEY)


def copied_to(words: list[bytes], database: bytes) -> bytes:
    names = [word.upper() for word in words[3:-1]]
    return words[4 + names.index(b"DB")] if b"DB" in names else database


def _restore(on: Replay, words: list[bytes]) -> None:
    key, ttl, payload = words[1:4]
    if not on.wants(key):
        on.losses.add(OTHER_KEY)
        return
    replace = [word for word in words[4:] if word.upper() == b"REPLACE"]
    if payload[:1] and payload[0] in STREAM_TYPES:
        expires = integer(ttl)  # before anything changes
        on.put(key, keys.run_restore, [b"RESTORE", key, b"0", payload, *replace])
        if expires:
            on.losses.add(EXPIRY_LOSS)
        return
    if replace:
        on.delete([key])
    on.lose(b"RESTORE")


def _expire(on: Replay, words: list[bytes]) -> None:
    """EXPIRE and its kind. When the time comes, a server writes DEL into its file."""
    name = words[0].upper()
    if on.find(words[1]) is None:
        on.lose(name)
    elif not name.endswith(b"AT") and integer(words[2]) <= 0:
        on.delete(words[1:2])
    else:
        on.losses.add(EXPIRY_LOSS)


def _move(on: Replay, words: list[bytes]) -> None:
    if on.delete(words[1:2]):
        on.losses.add("stream that was moved to another database")
    else:
        on.lose(b"MOVE")


def _swap(on: Replay, words: list[bytes]) -> None:
    if on.loaded in words[1:3] and words[1] != words[2]:
        raise _other_database(on.loaded)
    on.lose(b"SWAPDB")


# How many words each has at least, and what it does.
_ANY_KEY: Final[dict[bytes, tuple[int, Callable[[Replay, list[bytes]], object]]]] = {
    **dict.fromkeys((b"DEL", b"UNLINK"), (2, lambda on, words: on.delete(words[1:]))),
    **dict.fromkeys((b"FLUSHDB", b"FLUSHALL"), (1, lambda on, words: on.flush_all())),
    b"DELEX": (2, _delete_if_plain),
    **dict.fromkeys((b"RENAME", b"RENAMENX", b"COPY"), (3, _rename_or_copy)),
    **dict.fromkeys((b"RESTORE", b"RESTORE-ASKING"), (4, _restore)),
    **dict.fromkeys((b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT"), (3, _expire)),
    b"MOVE": (3, _move),
    b"SWAPDB": (3, _swap),
}

# The databases that commands for another one reach, and which word is the key there; 0: all keys.
_BETWEEN: Final[dict[bytes, tuple[Keys, int]]] = {
    b"SWAPDB": (lambda words: words[1:3], 0),
    b"MOVE": (lambda words: words[2:3], 1),
    b"COPY": (lambda words: [copied_to(words, b"")], 2),
}


# --- commands on keys that are not streams ------------------------------------------------------


def _written_if_any(*options: bytes) -> Keys:
    """Return a function that finds the keys after these options."""

    def found(words: list[bytes]) -> list[bytes]:
        upper = [word.upper() for word in words]
        return [words[at + 1] for at in range(2, len(words) - 1) if upper[at] in options]

    return found


# The keys that a command writes, whatever type they had before.
_WRITES: Final[dict[bytes, Keys]] = {
    b"SET": lambda words: [] if b"NX" in map(bytes.upper, words[3:]) else words[1:2],
    **dict.fromkeys(
        b"SETEX PSETEX SINTERSTORE SUNIONSTORE SDIFFSTORE ZINTERSTORE ZUNIONSTORE ZDIFFSTORE "
        b"ZRANGESTORE GEOSEARCHSTORE".split(),
        lambda words: words[1:2],
    ),
    b"BITOP": lambda words: words[2:3],
    b"MSET": lambda words: words[1::2],
    b"MSETEX": lambda words: words[2 : 2 + 2 * integer(words[1]) : 2] if words[1:] else [],
    b"SORT": _written_if_any(b"STORE"),
    b"GEORADIUS": _written_if_any(b"STORE", b"STOREDIST"),
    b"GEORADIUSBYMEMBER": _written_if_any(b"STORE", b"STOREDIST"),
}

# Commands that a server refuses on a stream, so that those in its file were for other keys; and
# commands that change no key.
_HARMLESS: Final = frozenset(
    b"""
    APPEND BITFIELD DECR DECRBY GETDEL GETEX GETSET INCR INCRBY INCRBYFLOAT MSETNX SETBIT SETNX
    SETRANGE DIGEST GET GETBIT GETRANGE MGET STRLEN SUBSTR LCS BITCOUNT BITPOS BITFIELD_RO
    HDEL HEXPIRE HEXPIREAT HGETDEL HGETEX HINCRBY HINCRBYFLOAT HMSET HPERSIST HPEXPIRE HPEXPIREAT
    HSET HSETEX HSETNX HGET HGETALL HMGET HKEYS HVALS HLEN HEXISTS HSCAN HSTRLEN HRANDFIELD HTTL
    HPTTL HEXPIRETIME HPEXPIRETIME
    BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH LINSERT LMOVE LMPOP LPOP LPUSH LPUSHX LREM LSET LTRIM RPOP
    RPOPLPUSH RPUSH RPUSHX LRANGE LLEN LINDEX LPOS
    SADD SMOVE SPOP SREM SMEMBERS SCARD SISMEMBER SMISMEMBER SRANDMEMBER SSCAN SINTER SINTERCARD
    SUNION SDIFF
    BZMPOP BZPOPMAX BZPOPMIN ZADD ZINCRBY ZMPOP ZPOPMAX ZPOPMIN ZREM ZREMRANGEBYLEX
    ZREMRANGEBYRANK ZREMRANGEBYSCORE ZRANGE ZRANGEBYSCORE ZRANGEBYLEX ZREVRANGE ZREVRANGEBYSCORE
    ZREVRANGEBYLEX ZCARD ZCOUNT ZLEXCOUNT ZRANK ZREVRANK ZSCORE ZMSCORE ZSCAN ZRANDMEMBER ZINTER
    ZINTERCARD ZUNION ZDIFF
    PFADD PFMERGE PFCOUNT PFDEBUG PFSELFTEST GEOADD GEODIST GEOHASH GEOPOS GEOSEARCH GEORADIUS_RO
    GEORADIUSBYMEMBER_RO VADD VREM VSETATTR VSIM VCARD VDIM VEMB VINFO VLINKS VRANDMEMBER VGETATTR
    VRANGE VISMEMBER
    XLEN XRANGE XREVRANGE XREAD XPENDING XINFO
    PERSIST TOUCH TTL PTTL EXPIRETIME PEXPIRETIME EXISTS TYPE OBJECT DUMP KEYS SCAN RANDOMKEY DBSIZE
    SORT_RO EVAL_RO EVALSHA_RO FCALL_RO
    SCRIPT FUNCTION PUBLISH SPUBLISH CONFIG CLIENT COMMAND INFO MEMORY SLOWLOG LATENCY ACL WAITAOF
    """.split()
)
_SILENT: Final = frozenset(b"MULTI EXEC DISCARD PING ECHO AUTH HELLO QUIT READONLY WAIT".split())
