"""What XREAD and XREADGROUP have in common: options, then STREAMS, keys and IDs."""

from __future__ import annotations

from typing import Any

from streamkeep.format.core.errors import CommandError
from streamkeep.tools.redis_words.arguments import Words, syntax


def read_options(
    words: Words, flags: dict[str, str]
) -> tuple[dict[str, Any], list[tuple[bytes, bytes]]]:
    """Return the options as arguments of the store, and (key, ID) of each stream.

    Args:
        flags: options of XREADGROUP alone, with their names as arguments.
    """
    options: dict[str, Any] = {}
    while not words.accept("STREAMS"):
        word = words.accept("COUNT", "BLOCK", "MAXCOUNT", "MAXSIZE", "GROUP", *flags)
        if word == "COUNT":
            count = words.integer()
            options["count"] = count if count > 0 else None
        elif word == "BLOCK":
            options["block"] = words.integer("timeout is not an integer or out of range")
            if options["block"] < 0:
                raise CommandError("timeout is negative")
        elif word in ("MAXCOUNT", "MAXSIZE"):
            options[f"max_{word[3:].lower()}"] = words.integer()
        elif word == "GROUP" and flags:
            options["groupname"], options["consumername"] = words.next(), words.next()
        elif word == "NOACK":
            options["noack"] = True
        elif word == "CLAIM":
            options[flags[word]] = words.integer("min-idle-time is not an integer or out of range")
        elif word == "GROUP":
            raise CommandError(
                "The GROUP option is only supported by XREADGROUP. You called XREAD instead."
            )
        else:
            raise syntax()
    if not words or len(words) % 2:
        what = "an ID or '>'" if flags else "an ID, '+', or '$'"
        raise CommandError(
            f"Unbalanced '{words.name.lower()}' list of streams: for each stream key {what} must "
            "be specified."
        )
    keys = words.take(len(words) // 2)
    return options, list(zip(keys, words.rest(), strict=True))
