"""Pages of entries: as many as were asked for, or as fit a bounded number of bytes.

An entry in JSON is `{"id": ..., "fields": {...}}`. Where an object would lose something, because a
field is repeated or is not UTF-8, it is `{"id": ..., "pairs": [[field, value], ...]}`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.format.core.entry import Entry
from streamkeep.format.core.json_form import json_bytes, json_object, json_pairs

PAGE_BYTES: Final = 1 << 20  # of names and values, after which a page ends
MOST: Final = 10_000  # entries of a page
_FIRST_STEP: Final = 4
_LAST_STEP: Final = 256
_TOP: Final = b"18446744073709551615-18446744073709551615"

Found = list[Entry[bytes]]


class Page(NamedTuple):
    """Some entries of a range.

    Attributes:
        next: the bound with which the next page begins; None at the end of the range.
    """

    entries: Found
    next: bytes | None
    size: int


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


def read_step(store: Store[bytes], wanted: Wanted, count: int) -> Found:
    """Return the first `count` entries of a range."""
    if wanted.newest_first:
        return store.xrevrange(wanted.key, wanted.high, wanted.low, count, history=wanted.history)
    return store.xrange(wanted.key, wanted.low, wanted.high, count, history=wanted.history)


def read_page(store: Store[bytes], wanted: Wanted, count: int, max_bytes: int = PAGE_BYTES) -> Page:
    """Return entries of a range: `count`, or fewer when they have more than `max_bytes`.

    Steps grow while entries are small, so that a page of huge entries is not read at once.
    """
    found: Found = []
    size, step = 0, _FIRST_STEP
    rest: Wanted | None = wanted
    while rest is not None:
        want = min(step, count - len(found))
        batch = read_step(store, rest, want)
        found += batch
        size += sum(map(entry_size, batch))
        if len(batch) < want:
            return Page(found, None, size)
        rest = rest.after(batch[-1].id)
        if len(found) >= count or size >= max_bytes:
            break
        step = min(_LAST_STEP, 2 * step)
    return Page(found, None if rest is None else rest.bound, size)


def entry_size(entry: Entry[bytes]) -> int:
    """Return the bytes of the names and values of an entry."""
    return sum(len(field) + len(value) for field, value in entry.pairs)


def entry_json(entry: Entry[bytes], *, as_pairs: bool = False) -> dict[str, Any]:
    """Return an entry as a JSON object; see the module."""
    members: dict[str, Any] = {"id": entry.id.decode()}
    pairs = entry.pairs
    fields = None if as_pairs else _object(pairs)
    if fields is None:
        members["pairs"] = json_pairs(pairs)
    else:
        members["fields"] = fields
    return members


def _object(pairs: list[tuple[bytes, bytes]]) -> dict[str, Any] | None:
    """Return pairs as an object; None where that would lose something."""
    try:
        fields = {field.decode(): json_bytes(value) for field, value in pairs}
    except UnicodeDecodeError:
        return None
    return fields if len(fields) == len(pairs) else None


def entry_line(entry: Entry[bytes], *, as_pairs: bool = False) -> bytes:
    """Return an entry as one line of JSON, without the newline."""
    return json_object(entry_json(entry, as_pairs=as_pairs)).encode()
