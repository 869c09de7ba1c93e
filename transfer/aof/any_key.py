"""What each command of an append-only file does to a store.

Redis writes a command into its file when it has changed something, so that running all of them
again gives the same streams. Each command is therefore in one of these classes:

    streams        XADD, XDEL, XGROUP CREATE ...: run
    any key        DEL, RENAME, RESTORE, FLUSHALL ...: run on streams; on other keys skipped
    overwriting    SET, SUNIONSTORE ...: the key that they write is no longer a stream
    harmless       reads, and commands of other types, which Redis refuses on a stream: skipped
    all others     refused: they may change streams in a way that is not known here

No command that changed a stream on the server is skipped while the stream stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from streamkeep.format.redis.stream_dump import STREAM_TYPES
from streamkeep.transfer.aof.context import DATABASE, Context, Refusal, Run, options_of
from streamkeep.transfer.aof.streams import STREAM_COMMANDS

EXPIRES: Final = "time of a stream to expire"
_NEWEST_DUMP: Final = "8.10"  # loses nothing

_OTHER_DATABASE: Final = (
    "it brings keys from another database, whose commands were skipped: only database 0 is loaded"
)
_SCRIPTS: Final = {b"EVAL", b"EVALSHA", b"FCALL"}


def _why_not(name: bytes) -> str:
    if name in _SCRIPTS:
        return "what a script changes is not known here"
    if name in (b"XREADGROUP", b"XAUTOCLAIM"):
        return "it delivers entries to a client; append-only files have XCLAIM in its place"
    if name.startswith(b"REDIS0"):
        return (
            "the file begins as an RDB file (aof-use-rdb-preamble): have the server write one "
            "without, or load an RDB file and then the commands that follow it"
        )
    if name[:1].isdigit():
        return (
            "a line of MONITOR, which shows what clients sent, without the IDs that the server "
            "gave and with what it refused; load an append-only file"
        )
    return "an unknown command, which may change streams"


# --- keys of any type ---------------------------------------------------------------------------


def _flush(on: Context, words: list[bytes]) -> None:
    names = list(on.store.scan_iter())
    if names:
        on.store.delete(*names)


def _delete_if_plain(on: Context, words: list[bytes]) -> None:
    """DELEX: with a condition it is for strings; without one it is DEL."""
    if len(words) == 2:
        on.store.delete(words[1])
    else:
        on.lose(b"DELEX")


def _rename(on: Context, words: list[bytes]) -> None:
    """RENAME and RENAMENX; a key of another type may be renamed to the name of a stream."""
    name, source, target = words[0].upper(), words[1], words[2]
    if on.has(source):
        (on.store.renamenx if name == b"RENAMENX" else on.store.rename)(source, target)
        return
    if name == b"RENAME":
        on.overwrite(target)
    on.lose(name)


def _copied_to(words: list[bytes], database: bytes) -> bytes:
    found = options_of(words[3:], {b"DB": True, b"REPLACE": False})
    return found.get(b"DB", database)


def _copy(on: Context, words: list[bytes]) -> None:
    if _copied_to(words, DATABASE) != DATABASE:
        on.losses.add("copy of a key into another database")
        return
    replace = b"REPLACE" in map(bytes.upper, words[3:])
    payload = on.store.dump(words[1], _NEWEST_DUMP)
    if payload is not None:
        on.store.restore(words[2], 0, payload, replace=replace)
        return
    if replace:
        on.overwrite(words[2])
    on.lose(b"COPY")


def _restore(on: Context, words: list[bytes]) -> None:
    flags = {b"REPLACE": False, b"ABSTTL": False, b"IDLETIME": True, b"FREQ": True}
    replace = b"REPLACE" in options_of(words[4:], flags)
    key, ttl, payload = words[1:4]
    if payload[:1] and payload[0] in STREAM_TYPES:
        on.store.restore(key, 0, payload, replace=replace)
        if int(ttl):
            on.losses.add(EXPIRES)
        return
    if replace:
        on.overwrite(key)
    on.lose(b"RESTORE")


def _expire(on: Context, words: list[bytes]) -> None:
    """EXPIRE and its kind. When the time comes, a server writes DEL into its file."""
    name = words[0].upper()
    if not on.has(words[1]):
        on.lose(name)
    elif not name.endswith(b"AT") and int(words[2]) <= 0:
        on.store.delete(words[1])
    else:
        on.losses.add(EXPIRES)


def _move(on: Context, words: list[bytes]) -> None:
    if on.has(words[1]):
        on.store.delete(words[1])
        on.losses.add("stream that was moved to another database")
    else:
        on.lose(b"MOVE")


def _swap(on: Context, words: list[bytes]) -> None:
    if DATABASE in words[1:3] and words[1] != words[2]:
        raise Refusal(_OTHER_DATABASE)
    on.lose(b"SWAPDB")


# The databases that commands for another one reach.
_BETWEEN: Final[dict[bytes, Callable[[list[bytes]], list[bytes]]]] = {
    b"SWAPDB": lambda words: words[1:3],
    b"MOVE": lambda words: words[2:3],
    b"COPY": lambda words: [_copied_to(words, b"")],
}

_ANY_KEY: Final[dict[bytes, Run]] = {
    b"DEL": lambda on, words: on.store.delete(*words[1:]),
    b"UNLINK": lambda on, words: on.store.delete(*words[1:]),
    b"DELEX": _delete_if_plain,
    b"FLUSHALL": _flush,
    b"FLUSHDB": _flush,
    b"RENAME": _rename,
    b"RENAMENX": _rename,
    b"COPY": _copy,
    b"RESTORE": _restore,
    b"RESTORE-ASKING": _restore,
    b"EXPIRE": _expire,
    b"PEXPIRE": _expire,
    b"EXPIREAT": _expire,
    b"PEXPIREAT": _expire,
    b"MOVE": _move,
    b"SWAPDB": _swap,
}


# --- commands on keys that are not streams ------------------------------------------------------


def _written_if_any(*options: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Return a function that finds the keys after these options."""

    def keys(words: list[bytes]) -> list[bytes]:
        upper = [word.upper() for word in words]
        return [words[at + 1] for at in range(2, len(words) - 1) if upper[at] in options]

    return keys


def _set(words: list[bytes]) -> list[bytes]:
    return [] if b"NX" in map(bytes.upper, words[3:]) else words[1:2]


# The keys that a command writes, whatever type they had before.
_WRITES: Final[dict[bytes, Callable[[list[bytes]], list[bytes]]]] = {
    b"SET": _set,
    **dict.fromkeys(
        b"SETEX PSETEX SINTERSTORE SUNIONSTORE SDIFFSTORE ZINTERSTORE ZUNIONSTORE ZDIFFSTORE "
        b"ZRANGESTORE GEOSEARCHSTORE".split(),
        lambda words: words[1:2],
    ),
    b"BITOP": lambda words: words[2:3],
    b"MSET": lambda words: words[1::2],
    b"MSETEX": lambda words: words[2 : 2 + 2 * int(words[1]) : 2],
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


# --- all of them --------------------------------------------------------------------------------


def run(on: Context, words: list[bytes]) -> None:
    """Run one command, or count it as dropped.

    Raises:
        Refusal: it may change streams, and cannot be run.
        CommandError: the store refuses it.
        IndexError, TypeError, ValueError: its arguments are not understood.
    """
    name = words[0].upper()
    if name == b"SELECT":
        on.database = words[1]
    elif on.database != DATABASE:
        _elsewhere(on, name, words)
    else:
        _here(on, name, words)


def _here(on: Context, name: bytes, words: list[bytes]) -> None:
    full = name + b" " + words[1].upper() if name == b"XGROUP" else name
    run = STREAM_COMMANDS.get(full) or _ANY_KEY.get(name)
    if run is not None:
        run(on, words)
    elif name in _WRITES:
        on.overwrite(*_WRITES[name](words))
        on.lose(name)
    elif name in _HARMLESS or (b"." in name and name[:1].isalpha()):  # a module, on its own keys
        on.lose(name)
    elif name not in _SILENT and not name.startswith(b"#"):  # annotations such as #TS:1718004800
        raise Refusal(_why_not(name))


def _elsewhere(on: Context, name: bytes, words: list[bytes]) -> None:
    """Handle a command for another database; a few of them reach the one that is loaded."""
    if name == b"FLUSHALL":
        _flush(on, words)
    elif name in _BETWEEN and DATABASE in _BETWEEN[name](words):
        raise Refusal(_OTHER_DATABASE)
    elif name in _SCRIPTS:
        raise Refusal(_why_not(name))
    elif name not in _SILENT and not name.startswith(b"#"):
        on.losses.add(f"command for database {on.database.decode('ascii', 'replace')}")
