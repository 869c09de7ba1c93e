"""The pending entries list of one group: NACK pages, and the two indexes over them.

    pel           (group, ms, seq)            a page of NACKs, sorted by ID
    pel_order     (group, order of delivery)  which page holds the NACK with this order key;
                                              one row per page, for its earliest NACK
    consumer_pel  (group, consumer, ms, seq)  the consumer owns a NACK of that page

Pages are disjoint and sorted by ID. `pel_walks` reads the two indexes.

While a list has few NACKs, they are stored in the row of the group itself, as the *inline* page,
and there are no other rows: a queue whose consumers keep up touches fewer pages of the disk. A list
that grows moves to pages of its own, and comes back when it is empty.

Changes are made to pages in memory. `flush` writes each page once, with the changes of its index
rows: at the end of the transaction, and before anything walks over pages. Compiled by mypyc.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from streamkeep.engine.txn.overlay import Cursor
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import row_body, with_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import MAX, Id, unpack_id
from streamkeep.format.rows import nacks
from streamkeep.format.rows.group_records import GroupRecord

_WHERE: Final = "pending entries"
_PAGE_SIZE: Final = nacks.PAGE_NACKS * nacks.NACK_SIZE
_INLINE_SIZE: Final = nacks.INLINE_NACKS * nacks.NACK_SIZE


class Page:
    """A NACK page in memory; `stored` is the content of its row, empty without a row."""

    def __init__(self, db_key: bytes, stored: bytes) -> None:
        self.db_key = db_key  # empty: the inline page
        self.stored = stored
        self.data = stored
        self.touched: set[int] = set()  # consumers that own more or less of it than stored

    def replace(self, data: bytes, consumer: int) -> None:
        """Change the page: a consumer owns more or less of it."""
        self.data = data
        if consumer:
            self.touched.add(consumer)


class Pel:
    """The pending entries list of a group in one transaction."""

    def __init__(self, txn: Txn, record: GroupRecord) -> None:
        self.txn = txn
        self.record = record
        self.number = record.number
        self.prefix: bytes = keys.pack_number(record.number)
        self._inlined: Page | None = None  # while the list is inline
        self._pages: dict[bytes, Page] = {}
        self._fresh: list[bytes] = []  # keys of pages that are not in the table yet, sorted
        self._current: Page | None = None
        self._next_key = b""  # key of the page after the current one; empty: it is the last
        self._cursor: Cursor | None = None
        self._start()

    def enter(self, txn: Txn) -> None:
        """Continue in a later transaction, after a `flush`."""
        self.txn = txn

    def _start(self) -> None:
        record = self.record
        if record.inline_nacks or record.pending == 0:
            nacks.count_nacks(record.inline_nacks)
            self._inlined = Page(b"", record.inline_nacks)

    # --- one NACK ---------------------------------------------------------------------------

    def get(self, ms: int, seq: int) -> nacks.Nack | None:
        page = self._locate(ms, seq)
        if page is None:
            return None
        index = nacks.find(page.data, ms, seq)
        return None if index < 0 else nacks.decode_nack(page.data, index)

    def put(self, nack: nacks.Nack) -> nacks.Nack | None:
        """Add a NACK, or replace the one of the same entry, which is returned."""
        page = self._locate(nack.ms, nack.seq)
        if page is None:
            page = self._create(nack.ms, nack.seq)
        index = nacks.position_of(page.data, nack.ms, nack.seq)
        at = index * nacks.NACK_SIZE
        data = page.data
        former: nacks.Nack | None = None
        rest = at
        if at < len(data) and nacks.id_at(data, index) == (nack.ms, nack.seq):
            former = nacks.decode_nack(data, index)
            page.replace(data, former.consumer)
            rest = at + nacks.NACK_SIZE
        elif page is self._inlined:
            if len(data) >= _INLINE_SIZE:
                self._spill()
                return self.put(nack)
        elif len(data) >= _PAGE_SIZE:
            if index == nacks.PAGE_NACKS and not self._next_key:
                page = self._create(nack.ms, nack.seq)
                data = b""
                at = rest = 0
            else:
                self._split(page)
                return self.put(nack)
        encoded = nacks.encode_nack(
            nack.ms,
            nack.seq,
            nack.consumer,
            nack.delivery_time,
            nack.delivery_count,
            nack.order_key,
        )
        page.replace(data[:at] + encoded + data[rest:], nack.consumer)
        return former

    def remove(self, ms: int, seq: int) -> nacks.Nack | None:
        page = self._locate(ms, seq)
        if page is None:
            return None
        index = nacks.find(page.data, ms, seq)
        if index < 0:
            return None
        nack = nacks.decode_nack(page.data, index)
        at = index * nacks.NACK_SIZE
        page.replace(page.data[:at] + page.data[at + nacks.NACK_SIZE :], nack.consumer)
        return nack

    # --- many NACKs -------------------------------------------------------------------------

    def append_run(self, first: Id, run: bytes, consumer: int) -> None:
        """Add NACKs of one consumer, as `encode_run` makes them, above all others."""
        page = self._locate(first[0], first[1])
        if page is not None and page is self._inlined:
            if len(page.data) + len(run) <= _INLINE_SIZE:
                page.replace(page.data + run, consumer)
                return
            self._spill()
            page = self._locate(first[0], first[1])
        at = 0
        while at < len(run):
            room = 0 if page is None else _PAGE_SIZE - len(page.data)
            if page is None or room <= 0:
                ms, seq = nacks.id_at(run, at // nacks.NACK_SIZE)
                page = self._create(ms, seq)
                room = _PAGE_SIZE
            part = run[at : at + room]
            page.replace(page.data + part, consumer)
            at += len(part)

    def remove_many(self, ids: list[Id]) -> dict[int, int]:
        """Remove the NACKs of entries, ascending and without duplicates; count them by owner."""
        owners: dict[int, int] = {}
        start = 0
        while start < len(ids):
            ms, seq = ids[start]
            page = self._locate(ms, seq)
            if page is None:
                start += 1
                continue
            stop = len(ids)
            if self._next_key:  # where the page after this one begins
                stop = max(start + 1, bisect_left(ids, unpack_id(self._next_key[8:]), start))
            data, removed = nacks.remove_ids(page.data, ids[start:stop])
            start = stop
            for consumer, count in removed.items():
                page.replace(data, consumer)
                owners[consumer] = owners.get(consumer, 0) + count
        return owners

    # --- ends and ranges --------------------------------------------------------------------

    def highest(self) -> Id | None:
        """Return the highest pending ID, changes in memory included; None when there is none."""
        page = self._locate(MAX, MAX)
        if page is not None and page.data:
            return nacks.id_at(page.data, nacks.count_nacks(page.data) - 1)
        if page is None or page is self._inlined or self.record.pending == 0:
            return None
        self.flush()  # the last page became empty; those before it are in the table
        return self.highest()

    def lowest(self) -> Id | None:
        page = self.page_after(b"")
        return None if page is None else nacks.id_at(page.data, 0)

    def first(self, most: int) -> list[nacks.Nack]:
        taken: list[nacks.Nack] = []
        page = self.page_after(b"")
        while page is not None and len(taken) < most:
            for index in range(min(nacks.count_nacks(page.data), most - len(taken))):
                taken.append(nacks.decode_nack(page.data, index))
            page = self.page_following(page)
        return taken

    def page_from(self, ms: int, seq: int) -> Page | None:
        """Return the page that an ID belongs to, or the first one."""
        self.flush()
        page = self._locate(ms, seq)
        if page is not None:
            return page if page.data else None
        return self.page_after(b"")

    def page_following(self, page: Page) -> Page | None:
        return self.page_after(page.db_key) if page.db_key else None

    def page_after(self, db_key: bytes) -> Page | None:
        """Return the page after the one under `db_key`, the first for b""."""
        self.flush()
        if self._inlined is not None:
            return self._inlined if self._inlined.data and not db_key else None
        cursor = self.txn.cursor(keys.PEL)
        found = cursor.set_range(db_key + b"\0" if db_key else self.prefix)
        if not found or cursor.key()[:8] != self.prefix:
            return None
        following = cursor.key()
        if following <= db_key:  # LMDB finds that in damaged pages; the walk would never end
            raise CorruptionError(_WHERE, f"page {following.hex()} comes after {db_key.hex()}")
        return self._read(following, cursor.value())

    def inline_page(self) -> Page | None:
        """Return the inline page, None when the list has pages of its own."""
        return self._inlined

    def page(self, db_key: bytes) -> Page:
        """Return the page under a key that an index names, for reading."""
        value = self.txn.get(keys.PEL, db_key)
        if value is None:
            raise CorruptionError(_WHERE, f"no page {db_key.hex()}, which an index names")
        return self._read(db_key, value)

    # --- pages ------------------------------------------------------------------------------

    def _locate(self, ms: int, seq: int) -> Page | None:
        """Return the last page whose key is not above the ID, and remember the key after it."""
        if self._inlined is not None:
            return self._inlined
        wanted = keys.page_key(self.number, ms, seq)
        current = self._current
        if (
            current is not None
            and current.db_key <= wanted
            and (not self._next_key or wanted < self._next_key)
        ):
            return current
        cursor = self._cursor
        if cursor is None:
            cursor = self.txn.cursor(keys.PEL)
            self._cursor = cursor
        following = b""
        stored = b""
        value = b""
        found = cursor.set_range(wanted)
        if found and cursor.key() == wanted:
            stored = wanted
            value = cursor.value()
            if cursor.next() and cursor.key()[:8] == self.prefix:
                following = cursor.key()
        else:
            if found and cursor.key()[:8] == self.prefix:
                following = cursor.key()
            if (cursor.prev() if found else cursor.last()) and cursor.key()[:8] == self.prefix:
                stored = cursor.key()
                value = cursor.value()
        place = bisect_right(self._fresh, wanted)
        if place < len(self._fresh) and (not following or self._fresh[place] < following):
            following = self._fresh[place]
        self._next_key = following
        page: Page | None = None
        if place > 0 and self._fresh[place - 1] > stored:
            page = self._pages[self._fresh[place - 1]]
        elif stored:
            page = self._read(stored, value)
            self._pages[stored] = page
        self._current = page
        return page

    def _read(self, db_key: bytes, value: bytes) -> Page:
        """Return the page under `db_key`, from memory if it may have been changed."""
        page = self._pages.get(db_key)
        if page is None:
            data = row_body(keys.PEL, db_key, value, _WHERE)
            if nacks.count_nacks(data) == 0:
                raise CorruptionError(_WHERE, f"an empty page {db_key.hex()}")
            page = Page(db_key, data)
        return page

    def _create(self, ms: int, seq: int) -> Page:
        db_key = keys.page_key(self.number, ms, seq)
        page = Page(db_key, b"")
        self._pages[db_key] = page
        self._fresh.insert(bisect_left(self._fresh, db_key), db_key)
        self._current = page
        return page

    def _split(self, page: Page) -> None:
        """Move the upper half of a full page into a new one."""
        middle = nacks.PAGE_NACKS // 2 * nacks.NACK_SIZE
        lower = page.data[:middle]
        upper = page.data[middle:]
        ms, seq = nacks.id_at(upper, 0)
        self._move(page, lower, upper)
        self._move(self._create(ms, seq), upper, upper)
        self._current = None

    def _move(self, page: Page, data: bytes, moved: bytes) -> None:
        """Set a page to `data`, which differs by the NACKs in `moved`."""
        page.data = data
        page.touched.update(nacks.owners_of(moved))

    def _spill(self) -> None:
        """Move the inline page to a page of its own."""
        inline = self._inlined
        self._inlined = None
        self.record.inline_nacks = b""
        if inline is not None and inline.data:
            ms, seq = nacks.id_at(inline.data, 0)
            self._move(self._create(ms, seq), inline.data, inline.data)

    # --- writing ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Write changed pages and their index rows, and forget all but the current page.

        Most deliveries and acknowledgements are of the same page as the one before.
        """
        txn = self.txn
        if isinstance(txn, WriteTxn):
            if self._inlined is not None:
                inline = self._inlined
                self.record.inline_nacks = inline.data
                inline.stored = inline.data
                inline.touched.clear()
                return
            for page in self._pages.values():
                if page.data != page.stored:
                    self._write(txn, page)
        self._pages = {}
        self._fresh = []
        self._cursor = None
        self._start()
        current = self._current
        if current is None or not current.data or self._inlined is not None:
            self._current = None
            self._next_key = b""
            return
        current.stored = current.data
        current.touched.clear()
        self._pages[current.db_key] = current

    def _write(self, txn: WriteTxn, page: Page) -> None:
        data = page.data
        stored = page.stored
        order = nacks.first_order_key(data) if data else b""
        stored_order = nacks.first_order_key(stored) if stored else b""
        if order != stored_order:
            if stored_order:
                txn.delete(keys.PEL_ORDER, self.prefix + stored_order)
            if order:
                txn.put_row(keys.PEL_ORDER, self.prefix + order, page.db_key[8:])
        if not data:
            txn.delete(keys.PEL, page.db_key)
        elif stored:
            txn.put_row(keys.PEL, page.db_key, data)
        else:
            txn.put(keys.PEL, page.db_key, with_checksum(keys.PEL, page.db_key, data))
        ms, seq = unpack_id(page.db_key[8:])
        for consumer in page.touched:
            before = nacks.owns(stored, consumer)
            after = nacks.owns(data, consumer)
            if after and not before:
                txn.put_row(keys.CONSUMER_PEL, keys.owned_key(self.number, consumer, ms, seq), b"")
            elif before and not after:
                txn.delete(keys.CONSUMER_PEL, keys.owned_key(self.number, consumer, ms, seq))
