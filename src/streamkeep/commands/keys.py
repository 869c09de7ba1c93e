"""The commands on keys: DEL, EXISTS, TYPE, RENAME, KEYS, SCAN, DUMP and their like."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from itertools import islice
from typing import Final

from streamkeep.commands import strings
from streamkeep.commands.replies import OK, Status
from streamkeep.commands.words import check_database, integer, option, options, syntax
from streamkeep.engine.commands import dump, keys, load
from streamkeep.engine.commands.glob import Glob
from streamkeep.engine.commands.reply_budget import NO_LIMIT
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, KeyExistsError, NoSuchKeyError
from streamkeep.format.core.keys import KEYS

_TOP: Final = (1 << 64) - 1


def run_exists(txn: Txn, words: list[bytes], shape: int) -> object:
    return sum(strings.exists(txn, name) for name in words[1:])


def run_type(txn: Txn, words: list[bytes], shape: int) -> object:
    if txn.find_stream(words[1]) is not None:
        return Status("stream")
    return Status("none" if strings.find_string(txn, words[1]) is None else "string")


def run_rename(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    _rename(txn, words[1], words[2])
    return OK


def run_renamenx(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    if not strings.exists(txn, words[1]):
        raise NoSuchKeyError("no such key")
    if strings.exists(txn, words[2]):
        return 0
    _rename(txn, words[1], words[2])
    return 1


def _rename(txn: WriteTxn, source: bytes, target: bytes) -> None:
    found = strings.find_string(txn, source)
    if found is None or txn.find_stream(source) is not None:
        keys.rename(txn, source, target, False)  # first: it raises if there is no such key
        strings.delete_string(txn, target)
    elif source != target:
        strings.delete_keys(txn, [source, target])
        strings.put_string(txn, target, *found)


def run_copy(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    """COPY, within the one database."""
    replace = False
    for name, value in options(words, 3, (b"DB",), (b"REPLACE",)):
        if name == b"REPLACE":
            replace = True
        else:
            check_database(value)
    source, target = words[1], words[2]
    if source == target:
        raise CommandError("source and destination objects are the same")
    deadline = strings.deadline_of(txn, source)
    if deadline is None or (not replace and strings.exists(txn, target)):
        return 0
    found = strings.find_string(txn, source)
    strings.delete_keys(txn, [target])
    if txn.find_stream(source) is not None:
        load.copy(txn, source, target)
        strings.set_deadline(txn, target, deadline)
    elif found is not None:
        strings.put_string(txn, target, *found)
    return 1


def all_names(txn: Txn) -> Iterator[bytes]:
    """Yield the names of all keys, ascending."""
    yield from heapq.merge((name for name, _ in keys.iter_keys(txn)), strings.strings(txn))


def run_keys(txn: Txn, words: list[bytes], shape: int) -> object:
    matcher = Glob(words[1])
    return [name for name in all_names(txn) if matcher.matches(name)]


def run_scan(txn: Txn, words: list[bytes], shape: int) -> object:
    """SCAN, in the order in which the streams were created; the cursor is the last one's number.

    So a key that exists during the whole iteration is returned exactly once, also after RENAME.
    Strings, which are few, come with the last streams.
    """
    digits = option(words[1]).lstrip().removeprefix(b"+")
    if not digits.isdigit() or len(digits) > 20 or int(digits) > _TOP:
        raise CommandError("invalid cursor")
    cursor = int(digits)
    count, matcher, kind = 10, None, b""
    for option_name, value in options(words, 2, (b"COUNT", b"MATCH", b"TYPE")):
        if option_name == b"COUNT":
            count = min(integer(value), NO_LIMIT)
            if count < 1:
                raise syntax()
        elif option_name == b"MATCH":
            matcher = Glob(value)
        else:
            kind = option(value)
    batch = list(islice(keys.names_from(txn, cursor + 1), count + 1)) if cursor < _TOP else []
    following = batch[count - 1][0] if len(batch) > count else 0
    found = [name for _, name in batch[:count]] if kind in (b"", b"STREAM") else []
    if not following and kind in (b"", b"STRING"):
        found += strings.strings(txn)
    return [b"%d" % following, [name for name in found if matcher is None or matcher.matches(name)]]


def run_randomkey(txn: Txn, words: list[bytes], shape: int) -> object:
    """RANDOMKEY; a stream that was created after many that are gone is returned more often."""
    texts = list(strings.strings(txn))
    total = txn.rows(KEYS) + len(texts)
    if not total:
        return None
    place = random.randrange(total)
    if place < len(texts):
        return texts[place]
    number = random.randint(1, keys.last_number(txn))
    return next(keys.names_from(txn, number))[1]


def count_keys(txn: Txn) -> int:
    """Return the number of keys; the names of streams are not read."""
    return txn.rows(KEYS) + sum(1 for _ in strings.strings(txn))


def run_dump(txn: Txn, words: list[bytes], shape: int) -> object:
    """DUMP of a stream, for the oldest Redis that loses nothing of it."""
    strings.check_streams(txn, words[1:])
    return dump.dump(txn, words[1], None)


def run_restore(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    replace = absolute = False
    hint = b""  # IDLETIME or FREQ
    for name, value in options(words, 4, tuple(_USES), (b"REPLACE", b"ABSTTL")):
        if name == b"REPLACE":
            replace = True
        elif name == b"ABSTTL":
            absolute = True
        elif hint in (b"", name):
            hint = name  # a store does not record when a key was last used, or how often
            most, problem = _USES[name]
            if not 0 <= integer(value) <= most:
                raise CommandError(problem)
        else:
            raise syntax()
    if not replace and strings.exists(txn, words[1]):
        raise KeyExistsError("BUSYKEY Target key name already exists.")
    ttl = integer(words[2])
    if ttl < 0:
        raise CommandError("Invalid TTL value, must be >= 0")
    deadline = ttl if absolute else txn.now_ms() + ttl
    if deadline > strings.MOST_MS:
        raise CommandError("Invalid TTL value, must be >= 0")
    load.restore(txn, words[1], words[3], replace)
    strings.delete_string(txn, words[1])
    if ttl and deadline <= txn.now_ms():
        strings.delete_keys(txn, [words[1]])
    elif ttl:
        strings.set_deadline(txn, words[1], deadline)
    return OK


_USES: Final = {
    b"IDLETIME": ((1 << 63) - 1, "Invalid IDLETIME value, must be >= 0"),
    b"FREQ": (255, "Invalid FREQ value, must be >= 0 and <= 255"),
}


def run_object_encoding(txn: Txn, words: list[bytes], shape: int) -> object:
    if txn.find_stream(words[2]) is not None:
        return b"stream"
    found = strings.find_string(txn, words[2])
    if found is None:
        return None
    try:
        integer(found[0])
    except CommandError:
        return b"embstr" if len(found[0]) <= 44 else b"raw"
    return b"int"


def run_object_refcount(txn: Txn, words: list[bytes], shape: int) -> object:
    return 1 if strings.exists(txn, words[2]) else None


def run_object_idletime(txn: Txn, words: list[bytes], shape: int) -> object:
    """OBJECT IDLETIME: a store does not record when a key was last used."""
    return 0 if strings.exists(txn, words[2]) else None


def run_object_freq(txn: Txn, words: list[bytes], shape: int) -> object:
    """OBJECT FREQ: as Redis answers without a policy that counts uses."""
    if not strings.exists(txn, words[2]):
        return None
    raise CommandError(
        "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that "
        "when switching between policies at runtime LRU and LFU data will take some time to adjust."
    )


def run_memory_usage(txn: Txn, words: list[bytes], shape: int) -> object:
    """MEMORY USAGE: the bytes of the stream's nodes on disk."""
    for _, value in options(words, 3, (b"SAMPLES",)):
        if integer(value) < 0:
            raise syntax()
    stream = txn.find_stream(words[2])
    if stream is None:
        return None
    return int(stream.node_bytes())


def run_flush(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    if len(words) > 2 or (len(words) == 2 and option(words[1]) not in (b"SYNC", b"ASYNC")):
        raise syntax()
    strings.delete_keys(txn, list(all_names(txn)))
    return OK
