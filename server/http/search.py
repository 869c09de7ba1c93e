"""Search: entries that hold a text, a part of a stream at a time.

One call reads for at most `SEARCH_S`, and says where the next one continues, so that a search
through ten million entries neither holds a snapshot nor keeps other requests waiting. Letters
of ASCII match in both cases.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.format.core.entry import Entry
from streamkeep.server.http.entries import PAGE_BYTES, Found, Wanted, entry_size, read_step

SEARCH_S: Final = 0.4
_STEP: Final = 256


class Searched(NamedTuple):
    """What one call has found.

    Attributes:
        next: the bound with which the next call begins; None at the end of the range.
        examined: how many entries were read.
    """

    entries: Found
    next: bytes | None
    examined: int


def search(
    store: Store[bytes],
    wanted: Wanted,
    text: bytes,
    field: bytes | None,
    count: int,
    seconds: float = SEARCH_S,
) -> Searched:
    """Return entries of a range that have `text` in a field name or value.

    Args:
        field: look only at values of this field; an empty `text` then finds all that have it.
        count: return at most this many.
        seconds: how long to read; at least one step is read.
    """
    deadline = time.monotonic() + seconds
    text = text.lower()
    found: Found = []
    examined, size, step = 0, 0, 4
    rest: Wanted | None = wanted
    while rest is not None:
        batch = read_step(store, rest, step)
        size = sum(map(entry_size, batch))
        for entry in batch:
            examined += 1
            rest = rest.after(entry.id)
            if _holds(entry, text, field):
                found.append(entry)
                if len(found) == count:
                    return Searched(found, None if rest is None else rest.bound, examined)
            if rest is None:
                return Searched(found, None, examined)
        if len(batch) < step:
            return Searched(found, None, examined)
        if time.monotonic() > deadline or sum(map(entry_size, found)) > PAGE_BYTES:
            break
        step = min(_STEP, 2 * step) if size < PAGE_BYTES // 2 else max(1, step // 2)
    return Searched(found, None if rest is None else rest.bound, examined)


def _holds(entry: Entry[bytes], text: bytes, field: bytes | None) -> bool:
    for name, value in entry.pairs:
        if field is None:
            if text in name.lower() or text in value.lower():
                return True
        elif name == field and text in value.lower():
            return True
    return False
