"""The pages of `data.mdb`, and tables on their B+trees, read without LMDB.

Pages are read with pread, not mapped: with a map, a truncated file or a bad sector would kill the
process with SIGBUS; here it raises CorruptionError. Lookups and walks skip damaged pages.

A table may have rows in memory that replace those of its tree: what the records of the journal
change after the commit of the trees (`Tables.change`).

`fsck.pages` reports every damaged page. `Tables` then returns the rows that can be reached. A row
that is missing may be in a damaged page: `lacks` is false if it may be, and `complete` says whether
all rows of a table can be reached.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice, takewhile
from operator import attrgetter
from typing import Final, NamedTuple

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.position import POSITION_KEY, decode_position
from streamkeep.format.lmdb_file import lmdb_pages
from streamkeep.format.lmdb_file.meta_page import MetaPage

_CACHED_PAGES: Final = 256
_NOTHING: Final = lmdb_pages.Database(0, 0, 0, 0, 0, 0, None)

Edge = tuple[int, int]
Hole = tuple[bytes | None, bytes | None]  # range of keys: first included, second excluded

ROOT: Final[Edge] = (0, 0)  # the edge to the root: no page above it


class PageFile:
    """An open data file. Some hundred decoded pages are cached: the branches of all tables."""

    def __init__(self, store: Folder, page_size: int) -> None:
        self.page_size = page_size
        self.handle = store.open(DATA_FILE)
        self._size = self.size()
        self._cache: dict[int, lmdb_pages.TreePage] = {}

    def close(self) -> None:
        os.close(self.handle)

    def size(self) -> int:
        return os.fstat(self.handle).st_size

    def read(self, number: int, size: int, *, skip: int = 0) -> bytes:
        """Return up to `size` bytes from byte `skip` of a page on; fewer at the end of the file."""
        try:
            return os.pread(self.handle, size, number * self.page_size + skip)
        except (OSError, OverflowError) as error:
            raise CorruptionError(f"LMDB page {number}", f"cannot be read: {error}") from error

    def tree_page(self, number: int) -> lmdb_pages.TreePage:
        page = self._cache.get(number)
        if page is None:
            page = lmdb_pages.decode_tree_page(self.read(number, self.page_size), number)
            if len(self._cache) >= _CACHED_PAGES:
                del self._cache[next(iter(self._cache))]  # the oldest
            self._cache[number] = page
        return page

    def overflow(self, number: int, size: int) -> bytes:
        """Return a value of `size` bytes that begins in an overflow page.

        The header of the page is not checked: the value has its own checksum.
        """
        start = number * self.page_size + lmdb_pages.HEADER_SIZE
        if start + size > self._size:
            self._size = self.size()  # it may have grown
            if start + size > self._size:
                problem = f"a value of {size} bytes extends past the end of the file"
                raise CorruptionError(f"LMDB page {number}", problem)
        value = self.read(number, size, skip=lmdb_pages.HEADER_SIZE)
        if len(value) != size:
            problem = f"truncated: {len(value)} bytes, expected {size}"
            raise CorruptionError(f"LMDB page {number}", problem)
        return value


class Row(NamedTuple):
    """A row: number `at` of a leaf; or one in memory, with its value and without a leaf."""

    key: bytes
    pages: PageFile
    leaf: lmdb_pages.TreePage | None
    at: int
    held: bytes | None = None

    def value(self) -> bytes:
        leaf, at = self.leaf, self.at
        if leaf is None:
            return self.held or b""
        if leaf.flags[at] == lmdb_pages.BIG:
            return self.pages.overflow(leaf.places[at], leaf.sizes[at])
        return leaf.inline(at)

    def page(self) -> int:
        """Return the number of its leaf; 0 for one in memory."""
        return 0 if self.leaf is None else self.leaf.number


class Tree:
    """One B+tree.

    Attributes:
        cut: edges (page number and index of the child) that no walk must follow, with the range of
            keys that is missing. `fsck.pages` cuts edges to damaged pages, and to pages that are
            used twice, with which a walk could loop forever.
        skipped: whether a walk had to skip a page.
    """

    def __init__(self, pages: PageFile, database: lmdb_pages.Database, last_page: int) -> None:
        self.pages = pages
        self.database = database
        self.last_page = last_page
        self.cut: dict[Edge, Hole] = {}
        self.skipped = False

    def _page(self, edge: Edge, number: int, depth: int) -> lmdb_pages.TreePage | None:
        """Return a page, `depth` levels below the root; None if it is damaged."""
        if (
            depth < lmdb_pages.MAX_DEPTH
            and lmdb_pages.META_PAGES <= number <= self.last_page
            and edge not in self.cut
        ):
            try:
                return self.pages.tree_page(number)
            except CorruptionError:
                pass
        self.skipped = True
        return None

    def find(self, db_key: bytes) -> tuple[bytes | None, bool]:
        """Return the value of a key, and whether all pages on the way to it are sound."""
        if self.database.root is None:
            return None, True
        page = self._page(ROOT, self.database.root, 0)
        depth = 0
        while page is not None and not page.leaf:
            depth += 1
            index = _child_for(page, db_key)
            page = self._page((page.number, index), page.children[index], depth)
        if page is None:
            return None, False
        index = bisect_left(page.keys, db_key)
        if index == len(page.keys) or page.keys[index] != db_key:
            return None, True
        return Row(db_key, self.pages, page, index).value(), True

    def leaves(self, start: bytes = b"") -> Iterator[lmdb_pages.TreePage]:
        """Yield the leaves that can be read, from that for a key on."""
        root = self.database.root
        if root is not None:
            yield from self._leaves(self._page(ROOT, root, 0), start, 1)

    def _leaves(
        self, page: lmdb_pages.TreePage | None, start: bytes, depth: int
    ) -> Iterator[lmdb_pages.TreePage]:
        if page is None or page.leaf:
            if page is not None:
                yield page
            return
        for index in range(_child_for(page, start), len(page.children)):
            child = self._page((page.number, index), page.children[index], depth)
            yield from self._leaves(child, start, depth + 1)
            start = b""

    def rows(self, start: bytes = b"") -> Iterator[Row]:
        """Yield the rows that can be reached, from a key on."""
        for leaf in self.leaves(start):
            for index in range(bisect_left(leaf.keys, start), len(leaf.keys)):
                yield Row(leaf.keys[index], self.pages, leaf, index)


def _child_for(page: lmdb_pages.TreePage, db_key: bytes) -> int:
    """Return the index of the child of a branch that may contain a key."""
    return max(0, bisect_right(page.keys, db_key, 1) - 1)


class Tables:
    """All tables as of one commit.

    Attributes:
        main: the tree with the records of the tables.
        free: the tree of LMDB's free list.
        missing: numbers of tables whose record is missing or damaged.
        changed: by table and key, the rows that replace those of the trees; None for no row.
        commit_number: the commit up to which the journal was applied; 0 if it was not.
    """

    def __init__(self, pages: PageFile, meta: MetaPage) -> None:
        self.pages = pages
        self.meta = meta
        size = lmdb_pages.DATABASE_SIZE
        self.main = self._tree(meta.data[lmdb_pages.MAIN_AT :][:size], "main database")
        self.free = self._tree(meta.data[lmdb_pages.FREE_AT :][:size], "free list")
        self.missing: list[int] = []
        self.changed: dict[int, dict[bytes, bytes | None]] = {}
        self.commit_number = 0
        self._sorted: dict[int, list[bytes]] = {}  # the keys of `changed`, while it stays the same
        self._trees = {number: self._table_tree(number) for number in TABLES}

    def _tree(self, record: bytes, where: str) -> Tree:
        database = lmdb_pages.decode_database(record, where)
        return Tree(self.pages, database, self.meta.last_page)

    def _table_tree(self, number: int) -> Tree:
        name = TABLES[number].name
        try:
            value, _ = self.main.find(name.encode())
            if value is not None:
                return self._tree(value, name)
        except CorruptionError:
            pass
        self.missing.append(number)
        return Tree(self.pages, _NOTHING, self.meta.last_page)

    def tree(self, table: int) -> Tree:
        """Return the tree of a table; an empty one if its record is missing."""
        return self._trees[table]

    def change(self, table: int, db_key: bytes, value: bytes | None) -> None:
        """Replace a row in memory; None removes it. No walk may be under way."""
        self.changed.setdefault(table, {})[db_key] = value
        self._sorted.pop(table, None)

    def is_changed(self, table: int, db_key: bytes) -> bool:
        """Return whether a row in memory replaces that of the tree, or removes it."""
        return db_key in self.changed.get(table, ())

    def get(self, table: int, db_key: bytes) -> bytes | None:
        """Return the value of a key, None if it is missing; raise CorruptionError if damaged."""
        if self.is_changed(table, db_key):
            return self.changed[table][db_key]
        return self._trees[table].find(db_key)[0]

    def get_row(self, table: int, db_key: bytes, where: str) -> bytes | None:
        """Return the body of the row with a key, after checking its checksum."""
        value = self.get(table, db_key)
        return None if value is None else row_body(table, db_key, value, where)

    def lacks(self, table: int, db_key: bytes) -> bool:
        """Return whether there is certainly no row with a key, readable or not."""
        if self.is_changed(table, db_key):
            return self.changed[table][db_key] is None
        try:
            value, sound = self._trees[table].find(db_key)
        except CorruptionError:
            return False
        return value is None and sound and table not in self.missing

    def complete(self, table: int) -> bool:
        """Return whether no damaged page of a table has been met so far."""
        return table not in self.missing and not self._trees[table].skipped

    def walk(self, table: int, prefix: bytes = b"", start: bytes = b"") -> Iterator[Row]:
        """Yield the rows of a table whose keys begin with `prefix`, from the key `start` on."""
        start = max(prefix, start)
        rows = self._trees[table].rows(start)
        if self.changed.get(table):
            rows = self._merged(table, rows, start)
        return takewhile(lambda row: row.key.startswith(prefix), rows)

    def _merged(self, table: int, rows: Iterator[Row], start: bytes) -> Iterator[Row]:
        """Yield rows of the tree and of memory in the order of their keys."""
        changed = self.changed[table]
        if table not in self._sorted:
            self._sorted[table] = sorted(changed)
        keys = self._sorted[table]
        newer = (
            Row(db_key, self.pages, None, 0, changed[db_key])
            for db_key in islice(keys, bisect_left(keys, start), None)
        )
        older = (row for row in rows if row.key not in changed)
        for row in heapq.merge(newer, older, key=attrgetter("key")):
            if row.leaf is not None or row.held is not None:
                yield row

    def newest_commit(self) -> int:
        """Return the number of the newest commit; raise CorruptionError."""
        if self.commit_number:
            return self.commit_number
        row, sound = self.main.find(POSITION_KEY)
        if row is not None:
            return decode_position(row).commit_number
        if not sound:  # LMDB has other numbers, once a process has written to the store
            raise CorruptionError(DATA_FILE, "the log position cannot be read")
        return self.meta.commit_number

    def unknown_tables(self) -> Iterator[bytes]:
        """Yield names in the main database that no version of the format has."""
        known = {table.name.encode() for table in TABLES.values()}
        known.add(POSITION_KEY)
        return (row.key for row in self.main.rows() if row.key not in known)
