"""Walks over pending entries: those of one consumer, and all in the order of delivery.

One index row per page is enough for both. The rows of a consumer in `consumer_pel` name exactly the
pages with NACKs of its own. `OrderWalk` puts the NACKs of pages into a heap, in the order of the
earliest NACK of each page, and takes NACKs out as long as no later page can hold an earlier one.
So it loads at most one page more than it needs. Compiled by mypyc.
"""

from __future__ import annotations

import heapq
from typing import Final

from streamkeep.engine.tables.pel import Page, Pel
from streamkeep.engine.tables.scan import at_or_below
from streamkeep.engine.txn.overlay import Cursor
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.id_codec import Id, unpack_id
from streamkeep.format.rows.nacks import Nack, consumer_at, count_nacks, decode_nack, id_at

_OWNED_PREFIX: Final = 12  # group and consumer number


class OwnedWalk:
    """The pages with NACKs of one consumer, from the one that holds an ID on."""

    def __init__(self, pel: Pel, consumer: int, start: Id) -> None:
        self.pel = pel
        pel.flush()
        self._inlined = pel.inline_page()
        self._prefix = keys.owned_key(pel.number, consumer, 0, 0)[:_OWNED_PREFIX]
        self._cursor: Cursor | None = None
        self._more = False
        if self._inlined is None:
            cursor = self._cursor = pel.txn.cursor(keys.CONSUMER_PEL)
            wanted = keys.owned_key(pel.number, consumer, start[0], start[1])
            # A page has the key of its first NACK, so that the page below the ID may hold it.
            found = at_or_below(cursor, wanted) and cursor.key()[:_OWNED_PREFIX] == self._prefix
            self._more = found or cursor.set_range(wanted)

    def next(self) -> Page | None:
        inline = self._inlined
        if inline is not None:
            self._inlined = None
            return inline
        cursor = self._cursor
        if cursor is None or not self._more or cursor.key()[:_OWNED_PREFIX] != self._prefix:
            return None
        _, _, ms, seq = keys.unpack_owned_key(cursor.key())
        self._more = cursor.next()
        return self.pel.page(keys.page_key(self.pel.number, ms, seq))


def owned_by(pel: Pel, consumer: int, after: Id, most: int) -> list[Nack]:
    """Return NACKs of a consumer with IDs above `after`, at most `most`."""
    taken: list[Nack] = []
    walk = OwnedWalk(pel, consumer, after)
    while len(taken) < most:
        page = walk.next()
        if page is None:
            break
        for index in range(count_nacks(page.data)):
            if consumer_at(page.data, index) == consumer and id_at(page.data, index) > after:
                taken.append(decode_nack(page.data, index))
                if len(taken) == most:
                    break
    return taken


class OrderWalk:
    """NACKs in the order of delivery, one at a time."""

    def __init__(self, pel: Pel) -> None:
        self.pel = pel
        pel.flush()
        self._heap: list[tuple[bytes, int, Nack]] = []  # order key, tie-breaker, NACK
        self._loaded = 0
        self._cursor: Cursor = pel.txn.cursor(keys.PEL_ORDER)
        self._more = False
        inline = pel.inline_page()
        if inline is not None:
            self._add(inline.data)
        else:
            self._more = self._cursor.set_range(pel.prefix)

    def next(self) -> Nack | None:
        heap, cursor, pel = self._heap, self._cursor, self.pel
        while self._more and cursor.key()[:8] == pel.prefix:  # its page is the next one
            key = cursor.key()
            if heap and heap[0][0] < key[8:]:
                break
            ms, seq = unpack_id(row_body(keys.PEL_ORDER, key, cursor.value(), "pending entries"))
            self._add(pel.page(keys.page_key(pel.number, ms, seq)).data)
            self._more = cursor.next()
        return heapq.heappop(heap)[2] if heap else None

    def _add(self, data: bytes) -> None:
        for index in range(count_nacks(data)):
            nack = decode_nack(data, index)
            self._loaded += 1
            heapq.heappush(self._heap, (nack.order_key, self._loaded, nack))
