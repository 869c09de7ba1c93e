"""What commands reply with: values that `server.resp` sends and `streamkeep exec` prints.

    bytes        a bulk string             int    an integer
    str          text for people           set    of Status; in RESP2 an array
    Status       a simple string           None   the null of a bulk string
    list         an array                  dict   a map; in RESP2 a flat array
    NIL_ARRAY    the null of an array      tuple  an entry: (ms, seq, [field, value, ...], more)
    SentEntries  entries already in RESP   Named  [name, entries] of streams: a map in RESP3
    CommandError an error in a list: only of EXEC

Text keys of a dict are names that Redis chose.
"""

from __future__ import annotations

from typing import Any, Final

from streamkeep.engine.commands.reply_budget import SentEntries
from streamkeep.format.core.errors import CommandError
from streamkeep.format.core.id_codec import id_text


class Status(str):
    """A reply that is a word, such as OK, not a value."""

    __slots__ = ()


class NilArray:
    """The null of an array, which differs from that of a bulk string in RESP2."""


class Named:
    """The entries of each stream, by name: the reply of XREAD."""

    def __init__(self, streams: list[list[Any]]) -> None:
        self.streams = streams


class CodedError(CommandError):
    """An error of Redis whose first word is not ERR; it is the first word of the text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.redis_code = text.partition(" ")[0]


OK: Final = Status("OK")
NIL_ARRAY: Final = NilArray()


def plain(value: Any) -> Any:
    """Return a reply with nothing in it but bytes, Status, int, None, lists and dicts."""
    if isinstance(value, tuple):
        ms, seq, flat, *more = value
        return [id_text(ms, seq), flat, *more]
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, Named):
        return [plain(one) for one in value.streams]
    if isinstance(value, SentEntries):
        raise TypeError("entries in RESP are only for a socket")
    return None if isinstance(value, NilArray) else value
