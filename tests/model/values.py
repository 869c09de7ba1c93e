"""What the model is made of: IDs, entries, errors.

An ID is a pair of numbers (ms, seq); an entry is an ID and a tuple of (field, value) pairs. Both
are plain tuples, so that Python's own comparison is the order of the stream. How an ID is written
as text is no business of the model: it never parses.
"""

from __future__ import annotations

from typing import Final

MAX: Final = (1 << 64) - 1

Id = tuple[int, int]
Pair = tuple[bytes, bytes]
Pairs = tuple[Pair, ...]
Entry = tuple[Id, Pairs]

ZERO: Final[Id] = (0, 0)
HIGHEST: Final[Id] = (MAX, MAX)

NO_SUCH_KEY: Final = "ERR no such key"


class ModelError(Exception):
    """What a Redis server answers with an error line; `text` is that line, code included."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def next_id(one: Id) -> Id:
    """Return the ID after this one; the highest has none."""
    ms, seq = one
    if seq < MAX:
        return ms, seq + 1
    assert ms < MAX, "there is no ID after the highest"
    return ms + 1, 0


def previous_id(one: Id) -> Id:
    """Return the ID before this one; 0-0 has none."""
    ms, seq = one
    if seq > 0:
        return ms, seq - 1
    assert ms > 0, "there is no ID before 0-0"
    return ms - 1, MAX


def id_text(one: Id) -> bytes:
    """Return an ID as Redis writes it."""
    return b"%d-%d" % one
