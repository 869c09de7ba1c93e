"""Commands of all kinds, on streams and on others."""

from __future__ import annotations

import random
from typing import Any

KEYS = (b"s", b"t", b"u")
CONSUMERS = (b"c", b"d")


def random_command(chance: random.Random) -> list[Any]:
    """Return a command as a client would send it; servers refuse some of them."""
    key, group = chance.choice(KEYS), chance.choice((b"g", b"h"))
    owner = chance.choice(CONSUMERS)
    entry = f"{chance.randint(1, 40)}-0"
    trim = chance.choice(
        (
            [],
            ["MAXLEN", "~", chance.randint(0, 60)],
            ["MAXLEN", chance.randint(0, 60)],
            ["MAXLEN", "~", chance.randint(0, 9), "LIMIT", 7],
            ["MINID", "~", entry],
            ["MINID", "=", entry],
        )
    )
    choices: list[tuple[float, list[Any]]] = [
        (20, ["XADD", key, *trim, "*", "n", chance.randint(0, 999)]),
        (6, ["XADD", key, f"{chance.randint(1, 99)}-*", "a b", b"\x00\xff\r\n"]),
        (2, ["XADD", key, "NOMKSTREAM", "*", "n", 1]),
        (3, ["XDEL", key, entry, f"{chance.randint(1, 40)}-1"]),
        (3, ["XTRIM", key, *(trim or ["MAXLEN", 5])]),
        (3, ["XGROUP", "CREATE", key, group, chance.choice(("0", "$", entry)), "MKSTREAM"]),
        (1, ["XGROUP", "SETID", key, group, chance.choice(("0", "$", entry)), "ENTRIESREAD", 3]),
        (1, ["XGROUP", "CREATECONSUMER", key, group, owner]),
        (1, ["XGROUP", "DELCONSUMER", key, group, owner]),
        (0.2, ["XGROUP", "DESTROY", key, group]),
        (9, ["XREADGROUP", "GROUP", group, owner, "COUNT", 3, "STREAMS", key, ">"]),
        (1, ["XREADGROUP", "GROUP", group, owner, "NOACK", "STREAMS", key, ">"]),
        (2, ["XREADGROUP", "GROUP", group, owner, "STREAMS", key, "0"]),
        (3, ["XACK", key, group, entry, f"{chance.randint(1, 40)}-1"]),
        (3, ["XAUTOCLAIM", key, group, owner, 0, "0", "COUNT", 4]),
        (2, ["XCLAIM", key, group, owner, 0, entry, "FORCE", "RETRYCOUNT", 4, "LASTID", entry]),
        (0.2, ["XSETID", key, "999999999999999-0", "ENTRIESADDED", 999, "MAXDELETEDID", "1-0"]),
        (0.2, [chance.choice(("DEL", "UNLINK")), key]),
        (0.2, ["RENAME", key, chance.choice(KEYS)]),
        (0.2, ["RENAMENX", key, chance.choice(KEYS)]),
        (0.2, ["COPY", key, chance.choice(KEYS), "REPLACE"]),
        (1, ["SET", "string", "x"]),
        (1, ["SADD", "set", "x"]),
        (0.2, ["SUNIONSTORE", key, "set"]),
        (0.2, ["RENAME", "string", key]),
        (1, ["EVAL", "return redis.call('XADD', KEYS[1], '*', 'by', 'script')", 1, key]),
    ]
    weights = [weight for weight, _ in choices]
    return chance.choices([words for _, words in choices], weights)[0]
