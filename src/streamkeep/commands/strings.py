"""Strings as locks need them, and times to live: SET, GET, EXPIRE, TTL and the scripts of locks.

Both are rows beside the streams (`engine.commands.rows`), as durable as entries and in the same
transactions:

    space            key                        value
    ---------------  -------------------------  ----------------------------------------------
    redis.strings    name                       deadline i64 in Unix ms, -1 for none; the value
    redis.deadlines  number of a stream, u64    deadline i64 in Unix ms

A stream keeps its number when it is renamed, so its deadline goes with it. A server deletes keys
whose deadline has passed (`server.resp.expiry`). Until then, such a string does not exist for
commands, while callers of the library see such a stream.

No script is interpreted: those that clients use for locks are known by their text.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final

from streamkeep.commands.replies import OK, CodedError
from streamkeep.commands.words import integer, option, syntax, text_of
from streamkeep.engine.commands import keys, rows
from streamkeep.engine.notify.wait_table import removed, touched
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import ArgumentError, CommandError, CorruptionError
from streamkeep.format.core.keys import pack_number

STRINGS: Final = b"redis.strings"
DEADLINES: Final = b"redis.deadlines"
FOREVER: Final = -1
_STAMP: Final = struct.Struct(">q")
MOST_MS: Final = (1 << 63) - 1


def wrong_type() -> CodedError:
    return CodedError("WRONGTYPE Operation against a key holding the wrong kind of value")


# --- rows ---------------------------------------------------------------------------------------


def _key(name: bytes) -> bytes:
    try:
        return rows.row_key(STRINGS, name)
    except ArgumentError:
        raise CommandError("the name of a string has 1 to 496 bytes here") from None


def stored_string(txn: Txn, name: bytes) -> tuple[bytes, int] | None:
    """Return the value of a string and its deadline, which may have passed; None for no string."""
    try:
        row = rows.row_get(txn, rows.row_key(STRINGS, name))
    except ArgumentError:  # no string has such a name
        return None
    return None if row is None else (row[_STAMP.size :], stamp(row))


def find_string(txn: Txn, name: bytes) -> tuple[bytes, int] | None:
    """Return the value of a string and its deadline; None if there is no such string."""
    found = stored_string(txn, name)
    return None if found is None or FOREVER != found[1] <= txn.now_ms() else found


def stamp(row: bytes) -> int:
    if len(row) < _STAMP.size:
        raise CorruptionError("row", f"{len(row)} bytes, expected a deadline of {_STAMP.size}")
    deadline: int = _STAMP.unpack_from(row)[0]
    return deadline


def put_string(txn: WriteTxn, name: bytes, value: bytes, deadline: int) -> None:
    rows.row_put(txn, _key(name), _STAMP.pack(deadline) + value)
    txn.events.append(removed(name, None))  # for clients that watch it, and consumers of a stream


def delete_string(txn: WriteTxn, name: bytes) -> bool:
    if find_string(txn, name) is None:
        return False
    rows.row_delete(txn, _key(name))
    txn.events.append(removed(name, None))
    return True


def strings(txn: Txn) -> Iterator[bytes]:
    now_ms = txn.now_ms()
    for name, deadline in string_deadlines(txn):
        is_there = deadline == FOREVER or deadline > now_ms
        if is_there and txn.find_stream(name) is None:  # a program may have made one
            yield name


def string_deadlines(txn: Txn) -> list[tuple[bytes, int]]:
    """Return (name, deadline) of all strings, also of those whose deadline has passed."""
    found = rows.row_range(txn, rows.check_space(STRINGS), b"", b"", -1, False)
    return [(name, stamp(row)) for name, row in found]


def deadlines(txn: Txn) -> list[tuple[int, int]]:
    """Return (number of a stream, deadline) of all streams that have one."""
    found = rows.row_range(txn, rows.check_space(DEADLINES), b"", b"", -1, False)
    return [(int.from_bytes(key, "big"), stamp(row)) for key, row in found]


def expire(txn: WriteTxn, name: bytes) -> bool:
    """Delete a key if its deadline has passed; return whether it had."""
    deadline = deadline_of(txn, name)
    if deadline is not None and FOREVER != deadline <= txn.now_ms():
        return delete_keys(txn, [name]) > 0
    try:  # a string whose deadline has passed; a program may have made a stream of its name
        return find_string(txn, name) is None and rows.row_delete(txn, rows.row_key(STRINGS, name))
    except ArgumentError:
        return False


def check_streams(txn: Txn, names: list[bytes]) -> None:
    """Raise if one of these keys is a string."""
    for name in names:
        if txn.find_stream(name) is None:
            refuse_string(txn, name)


def refuse_string(txn: Txn, name: bytes) -> None:
    if find_string(txn, name) is not None:
        raise wrong_type()


def _deadline_key(number: int) -> bytes:
    return rows.row_key(DEADLINES, pack_number(number))


def deadline_of(txn: Txn, name: bytes) -> int | None:
    """Return the deadline of a key, FOREVER if it has none; None if there is no such key."""
    stream = txn.find_stream(name)
    if stream is None:
        found = find_string(txn, name)
        return None if found is None else found[1]
    row = rows.row_get(txn, _deadline_key(stream.number))
    return FOREVER if row is None else stamp(row)


def set_deadline(txn: WriteTxn, name: bytes, deadline: int) -> None:
    """Set when a key that exists ends; FOREVER for never."""
    stream = txn.find_stream(name)
    if stream is None:
        found = find_string(txn, name)
        if found is not None:
            put_string(txn, name, found[0], deadline)
        return
    if deadline == FOREVER:
        rows.row_delete(txn, _deadline_key(stream.number))
    else:
        rows.row_put(txn, _deadline_key(stream.number), _STAMP.pack(deadline))
    txn.events.append(touched(name))


def delete_keys(txn: WriteTxn, names: list[bytes]) -> int:
    deleted = 0
    for name in names:
        found = delete_string(txn, name)  # also one under a stream that a program has made
        stream = txn.find_stream(name)
        if stream is not None:
            rows.row_delete(txn, _deadline_key(stream.number))
            found = keys.delete(txn, [name]) > 0
        deleted += found
    return deleted


def exists(txn: Txn, name: bytes) -> bool:
    return txn.find_stream(name) is not None or find_string(txn, name) is not None


# --- SET and GET --------------------------------------------------------------------------------

_TIMES: Final = (b"EX", b"PX", b"EXAT", b"PXAT")


def run_set(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    """SET. A stream is not overwritten."""
    name, value = words[1], words[2]
    only = b""  # NX, XX, IFEQ or IFNE
    other = b""  # the value that IFEQ and IFNE compare with
    returns = keeps = False
    until: tuple[bytes, bytes] | None = None  # a time, and the option that it is of
    at = 3
    while at < len(words):
        word = option(words[at])
        if word in (b"NX", b"XX") and only in (b"", word):
            only = word
        elif word in (b"IFEQ", b"IFNE") and only in (b"", word) and at + 1 < len(words):
            at += 1
            only, other = word, words[at]
        elif word == b"GET":
            returns = True
        elif word == b"KEEPTTL" and until is None:
            keeps = True
        elif word in _TIMES and at + 1 < len(words) and until is None and not keeps:
            at += 1
            until = words[at], word
        else:
            raise syntax()
        at += 1
    deadline = FOREVER if until is None else _deadline(txn, *until, "set")
    is_stream = txn.find_stream(name) is not None
    before = find_string(txn, name)
    if is_stream and (returns or only != b"NX"):
        raise wrong_type()
    reply: object = (None if before is None else before[0]) if returns else OK
    refused = {
        b"": False,
        b"NX": is_stream or before is not None,
        b"XX": before is None,
        b"IFEQ": before is None or before[0] != other,
        b"IFNE": before is not None and before[0] == other,
    }
    if refused[only]:
        return reply if returns else None
    if keeps and before is not None:
        deadline = before[1]
    put_string(txn, name, value, deadline)
    return reply


def _deadline(txn: Txn, word: bytes, name: bytes, command: str) -> int:
    """Return the deadline that a word says, in Unix milliseconds.

    Args:
        name: of the option or command: P for milliseconds, and AT at the end for a time.
    """
    number, unit = integer(word), 1 if name[:1] == b"P" else 1000
    problem = CommandError(f"invalid expire time in '{command}' command")
    if command == "set" and number <= 0:
        raise problem
    deadline = number * unit + (0 if name.endswith(b"AT") else txn.now_ms())
    if not -MOST_MS - 1 <= number * unit <= MOST_MS or deadline > MOST_MS:
        raise problem
    return deadline


def run_get(txn: Txn, words: list[bytes], shape: int) -> object:
    if txn.find_stream(words[1]) is not None:
        raise wrong_type()
    found = find_string(txn, words[1])
    return None if found is None else found[0]


# --- times to live ------------------------------------------------------------------------------


def run_expire(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    name = option(words[0])
    flags: set[bytes] = set()
    for word in words[3:]:
        if option(word) not in (b"NX", b"XX", b"GT", b"LT"):
            raise CommandError(f"Unsupported option {text_of(word)}")
        flags.add(option(word))
    if b"NX" in flags and len(flags) > 1:
        raise CommandError("NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= flags:
        raise CommandError("GT and LT options at the same time are not compatible")
    deadline = _deadline(txn, words[2], name, name.decode().lower())
    before = deadline_of(txn, words[1])
    if before is None:
        return 0
    lasting = before == FOREVER
    if (
        (b"NX" in flags and not lasting)
        or (b"XX" in flags and lasting)
        or (b"GT" in flags and (lasting or deadline <= before))
        or (b"LT" in flags and not lasting and deadline >= before)
    ):
        return 0
    if deadline <= txn.now_ms():
        delete_keys(txn, [words[1]])
    else:
        set_deadline(txn, words[1], deadline)
    return 1


def run_persist(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    before = deadline_of(txn, words[1])
    if before is None or before == FOREVER:
        return 0
    set_deadline(txn, words[1], FOREVER)
    return 1


def run_ttl(txn: Txn, words: list[bytes], shape: int) -> object:
    name = option(words[0])
    deadline = deadline_of(txn, words[1])
    if deadline is None:
        return -2
    if deadline == FOREVER:
        return -1
    if name == b"PEXPIRETIME":
        return deadline
    if name == b"EXPIRETIME":
        return (deadline + 500) // 1000
    left = max(0, deadline - txn.now_ms())
    return left if name == b"PTTL" else (left + 500) // 1000


# --- scripts ------------------------------------------------------------------------------------

_NO_LOCK: Final = "only the scripts by which clients release and extend locks can be run"
_RELEASE: Final = "release"  # delete if the value is the first argument
_EXTEND: Final = "extend"  # then add the second to its time, or with a third argument set it
_REACQUIRE: Final = "reacquire"  # then set its time to the second argument

# SHA-1 of the scripts without white space, and with single quotes.
_KINDS: Final = {
    "1179e693b29fda653472cdbc3d5eb3ba1316ffd4": _RELEASE,  # of redis-py
    "f74f76b5b5a8290bbcc17f740b44fdbe5a56ff72": _EXTEND,
    "44f9927bdcb1e8eac2b677d9aff29ef04afdca7a": _REACQUIRE,
    "588c09aae54753afd325984e748a4e18801f6735": _RELEASE,  # of Redis's page, and other clients
    "54dbf8d5b825beba1c79c099bd30cabbb42c44b9": _REACQUIRE,
}


def digest(script: bytes) -> bytes:
    """Return the digest by which Redis knows a script."""
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


def kind_of(script: bytes) -> str | None:
    """Return what a script does; None for a script that is not one of a lock."""
    bare = b"".join(script.split()).replace(b'"', b"'")
    return _KINDS.get(hashlib.sha1(bare, usedforsecurity=False).hexdigest())


def run_eval(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    """EVAL and EVALSHA of the script of a lock."""
    kind = kind_of(words[1])
    if option(words[0]) == b"EVALSHA":
        kind = KNOWN_DIGESTS.get(words[1].lower())
        if kind is None:
            raise CodedError("NOSCRIPT No matching script. Please use EVAL.")
    names, args = _keys_and_args(words)
    if kind is None:
        raise CommandError(_NO_LOCK)
    return _run_script(txn, kind, names, args)


def is_known(digest: bytes) -> bool:
    """Return whether EVALSHA runs a script (SCRIPT EXISTS)."""
    return digest.lower() in KNOWN_DIGESTS


def load_script(script: bytes) -> bytes:
    """Note a script of a lock, and return its digest (SCRIPT LOAD)."""
    kind = kind_of(script)
    if kind is None:
        raise CommandError(_NO_LOCK)
    if len(KNOWN_DIGESTS) >= _MOST_DIGESTS:  # clients send EVAL for one that is gone
        del KNOWN_DIGESTS[list(KNOWN_DIGESTS)[len(_SCRIPTS)]]
    KNOWN_DIGESTS[digest(script)] = kind
    return digest(script)


_MOST_DIGESTS: Final = 1000
_SCRIPTS: Final = {
    b"c3f8721cbb97f72bc19e972846bd7aaf91901658": _RELEASE,
    b"a4e8783852e6b949f9ef3a97212805108459a890": _EXTEND,
    b"1cac51482acf5858da00f6d685d68f886cd6b6b2": _REACQUIRE,
}
# The digests of the scripts in the form of redis-py, and of what clients have loaded.
KNOWN_DIGESTS: Final = dict(_SCRIPTS)


def _keys_and_args(words: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    count = integer(words[2])
    if count < 0:
        raise CommandError("Number of keys can't be negative")
    if count > len(words) - 3:
        raise CommandError("Number of keys can't be greater than number of args")
    return words[3 : 3 + count], words[3 + count :]


def _run_script(txn: WriteTxn, kind: str, names: list[bytes], args: list[bytes]) -> object:
    if len(names) != 1 or len(args) < (1 if kind == _RELEASE else 2):
        raise CommandError("the script of a lock has one key, its value, and a time")
    if txn.find_stream(names[0]) is not None:
        raise wrong_type()
    found = find_string(txn, names[0])
    if found is None or found[0] != args[0]:
        return 0
    if kind == _RELEASE:
        delete_string(txn, names[0])
        return 1
    more = integer(args[1])
    deadline = txn.now_ms() + more
    if kind == _EXTEND:
        if found[1] == FOREVER:
            return 0
        if len(args) > 2 and args[2] == b"0":
            deadline = found[1] + more
    if deadline <= txn.now_ms():
        delete_string(txn, names[0])
    else:
        put_string(txn, names[0], found[0], deadline)
    return 1
