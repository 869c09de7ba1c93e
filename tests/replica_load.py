"""Random commands that processes run on a store which feeds replicas, and what a replica shows."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamkeep
from real_redis.shown import TABLE, TIMES, Call, stream
from streamkeep.commands.command_table import find
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import CommandError

KEYS = [b"a", b"b", b"c", b"long" * 200]
Words = list[bytes]


def command(rng: random.Random, ids: list[bytes]) -> Words:
    """Return a command; `ids` are those of entries that were added, some of which may be gone."""
    key, other = rng.choice(KEYS), rng.choice(KEYS)
    group, consumer = rng.choice([b"g", b"h"]), rng.choice([b"c1", b"c2", b"c3"])
    some = rng.sample(ids, min(len(ids), rng.randrange(1, 5))) or [b"1-1"]
    number = b"%d" % rng.randrange(1, 30)
    text = bytes(rng.randrange(256) for _ in range(rng.randrange(20)))
    add = [b"XADD", key, b"*", b"f", text, rng.choice([b"x", b"y"]), b"v" * rng.randrange(300)]
    frequent: list[Words] = [
        add,
        [b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", number, b"STREAMS", key, b">"],
        [b"XACK", key, group, *some],
    ]
    rare: list[Words] = [
        [b"XADD", key, b"MAXLEN", b"=", b"200", b"*", b"trimmed", text],
        [b"XADD", key, b"MAXLEN", b"~", b"100", b"*", b"trimmed", text],
        [b"XREADGROUP", b"GROUP", group, consumer, b"NOACK", b"COUNT", b"2", b"STREAMS", key, b">"],
        [b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", number, b"STREAMS", key, b"0"],
        [b"XGROUP", b"CREATE", key, group, rng.choice([b"0", b"$"]), b"MKSTREAM"],
        [b"XDEL", key, *some],
        [b"XCLAIM", key, group, consumer, b"0", *some, b"FORCE"],
        [b"XAUTOCLAIM", key, group, consumer, b"0", b"0", b"COUNT", b"5"],
        [b"XACKDEL", key, group, b"ACKED", b"IDS", b"1", some[0]],
        [b"XDELEX", key, b"DELREF", b"IDS", b"1", some[0]],
        [b"XGROUP", b"CREATECONSUMER", key, group, consumer],
    ]
    rarest: list[Words] = [
        [b"XTRIM", key, b"MAXLEN", b"=", b"20"],
        [b"XTRIM", key, b"MINID", b"=", some[0]],
        [b"XTRIM", key, b"MAXLEN", b"=", b"0"],
        [b"XGROUP", b"SETID", key, group, some[0], b"ENTRIESREAD", number],
        [b"XGROUP", b"SETID", key, group, b"$"],
        [b"XGROUP", b"DELCONSUMER", key, group, consumer],
        [b"XGROUP", b"DESTROY", key, group],
        [b"XSETID", key, b"99999999999999-%d" % rng.randrange(3)],
        [b"XSETID", key, some[0], b"ENTRIESADDED", b"1000", b"MAXDELETEDID", b"0-0"],
        [b"DEL", key],
        [b"RENAME", key, other],
        [b"COPY", key, other, b"REPLACE"],
        [b"SET", b"s" + key[:3], text],
        [b"SET", key, text],
        [b"SET", b"s", text, b"PX", b"100000"],
        [b"EXPIRE", key, b"1000"],
        [b"PERSIST", key],
        [b"DEL", b"s"],
    ]
    return rng.choice(rng.choices([frequent, rare, rarest], [80, 18, 2])[0])


def run(store: Store[Any], words: Words) -> Any:
    spec = find(words, TABLE)

    def call(txn: Any) -> Any:
        if spec.parse is not None:
            waiting = spec.parse(words, 0)
            return waiting.run(txn)
        assert spec.run is not None
        return spec.run(txn, words, 0)

    return store._environment.write(call)


def batch(rng: random.Random, ids: list[bytes], call: Callable[[Words], Any]) -> None:
    """Run a command, most of the time."""
    words = command(rng, ids)
    try:
        reply = call(words)
    except CommandError:
        return
    if words[0] == b"XADD" and isinstance(reply, (bytes, tuple)):
        ids.append(reply if isinstance(reply, bytes) else b"%d-%d" % tuple(reply))
        del ids[:-300]


def embedded(path: Path, seed: int, count: int, pause_s: float) -> None:
    """Run commands on a store that others have open."""
    rng, ids = random.Random(seed), [b"1-1"]
    with streamkeep.open(path, sync="none") as store:
        for number in range(count):
            batch(rng, ids, lambda words: run(store, words))
            if number % 7 == 0:
                time.sleep(pause_s)
            if rng.random() < 0.0007:
                run(store, [b"FLUSHALL"])


def in_processes(path: Path, seed: int, count: int, pause_s: float = 0.001) -> list[Any]:
    """Begin to run commands in two processes."""
    spawn = multiprocessing.get_context("spawn")
    found = [
        spawn.Process(target=embedded, args=(path, seed + number, count, pause_s))
        for number in range(2)
    ]
    for one in found:
        one.start()
    return found


def shown(call: Call) -> dict[bytes, Any]:
    """Return everything that a server shows of its keys; `call` runs a command on it."""
    found: dict[bytes, Any] = {}
    for key in sorted(call(b"KEYS", b"*")):
        end = call(b"PEXPIRETIME", key)
        if call(b"TYPE", key) != b"stream":
            found[key] = call(b"GET", key), end
        else:  # a replica is not told times; Redis 7.0 computes another lag of empty streams
            found[key] = stream(call, key, b"lag", *TIMES), end
    return found
