"""Pages of entries: as many as were asked for, or as fit a bounded number of bytes.

An entry in JSON is `{"id": ..., "fields": {...}}`. Where an object would lose something, because a
field is repeated or is not UTF-8, it is `{"id": ..., "pairs": [[field, value], ...]}`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.command_base import end_bound, start_bound
from streamkeep.engine.api.store import Store
from streamkeep.format.core.entry import Entry, entry_size
from streamkeep.format.core.json_form import json_bytes, json_object, json_pairs

PAGE_BYTES: Final = 1 << 20  # of IDs, names and values, after which a page ends
MOST: Final = 10_000  # entries of a page
_SEARCHED: Final = 256  # entries that a search reads at once
SEARCH_S: Final = 0.4
_TOP: Final = b"18446744073709551615-18446744073709551615"

Found = list[Entry[bytes]]


class Page(NamedTuple):
    """Some entries of a range.

    Attributes:
        next: the bound with which the next page begins; None at the end of the range.
        examined: how many entries were read.
    """

    entries: Found
    next: bytes | None
    examined: int


class Wanted(NamedTuple):
    """A range of entries of one stream.

    Attributes:
        low, high: as `min` and `max` of XRANGE.
        history: include trimmed entries of a stream that archives.
    """

    key: bytes
    low: bytes = b"-"
    high: bytes = b"+"
    newest_first: bool = False
    history: bool = False

    def after(self, entry_id: bytes) -> Wanted | None:
        """Return what is left after an entry; None if nothing can be."""
        if self.newest_first:
            return self._replace(high=b"(" + entry_id)
        return None if entry_id == _TOP else self._replace(low=b"(" + entry_id)

    @property
    def bound(self) -> bytes:
        """The end of the range that moves from page to page."""
        return self.high if self.newest_first else self.low


def read_page(
    store: Store[bytes],
    wanted: Wanted,
    count: int,
    max_bytes: int = PAGE_BYTES,
    *,
    holds: Callable[[Entry[bytes]], bool] | None = None,
    seconds: float = math.inf,
) -> Page:
    """Return entries of a range: `count`, or fewer, up to the one with which they have `max_bytes`.

    So `max_bytes` and one entry is the most that is in memory, whatever entries follow each other.

    Args:
        holds: which entries are returned; None for all.
        seconds: how long to read; at least one step is read.
    """
    deadline = time.monotonic() + seconds
    found: Found = []
    examined, left = 0, max_bytes
    rest: Wanted | None = wanted
    while rest is not None:
        want = count - len(found) if holds is None else _SEARCHED
        low = start_bound("min", rest.low, store._now_ms)
        high = end_bound("max", rest.high, store._now_ms)
        batch = store._range(low, high, want, rest.newest_first, rest.key, rest.history, left)
        unread = left - sum(map(entry_size, batch))
        for entry in batch:
            examined += 1
            rest = wanted.after(entry.id)
            if holds is None or holds(entry):
                found.append(entry)
                left -= entry_size(entry)
                if len(found) == count:
                    break
        else:
            if len(batch) < want and unread > 0:
                return Page(found, None, examined)
        if len(found) == count or left <= 0 or time.monotonic() > deadline:
            break
    return Page(found, None if rest is None else rest.bound, examined)


def search(
    store: Store[bytes], wanted: Wanted, text: bytes, field: bytes | None, count: int
) -> Page:
    """Return entries of a range that have `text` in a field name or value.

    One call reads for about `SEARCH_S`, and says where the next one continues, so that a search
    through ten million entries neither holds a snapshot nor keeps other requests waiting. Letters
    of ASCII match in both cases.

    Args:
        field: look only at values of this field; an empty `text` then finds all that have it.
    """
    text = text.lower()

    def holds(entry: Entry[bytes]) -> bool:
        if field is not None:
            return any(name == field and text in value.lower() for name, value in entry.pairs)
        return any(text in name.lower() or text in value.lower() for name, value in entry.pairs)

    return read_page(store, wanted, count, holds=holds, seconds=SEARCH_S)


def entry_json(entry: Entry[bytes], *, as_pairs: bool = False) -> dict[str, Any]:
    """Return an entry as a JSON object; see the module."""
    members: dict[str, Any] = {"id": entry.id.decode()}
    pairs = entry.pairs
    fields: dict[str, Any] = {}
    if not as_pairs:
        with suppress(UnicodeDecodeError):
            fields = {field.decode(): json_bytes(value) for field, value in pairs}
    if as_pairs or len(fields) != len(pairs):
        members["pairs"] = json_pairs(pairs)
    else:
        members["fields"] = fields
    return members


def entry_line(entry: Entry[bytes], *, as_pairs: bool = False) -> bytes:
    """Return an entry as one line of JSON, without the newline."""
    return json_object(entry_json(entry, as_pairs=as_pairs)).encode()
