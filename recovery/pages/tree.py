"""Tables on LMDB's B+trees: lookups and cursors that skip damaged pages.

A table may have rows in memory that replace those of its tree: what the records of the journal
change after the commit of the trees (`Tables.change`).

`fsck.pages` reports every damaged page. `Tables` then returns the rows that can be reached. A row
that is missing may be in a damaged page: `lacks` is false if it may be, and `complete` says whether
all rows of a table can be reached.

The interface is the part of an LMDB transaction's that checks need.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.position import POSITION_KEY, decode_position
from streamkeep.format.lmdb_file.lmdb_pages import (
    BIG,
    FREE_AT,
    MAIN_AT,
    MAX_DEPTH,
    META_PAGES,
    Database,
    TreePage,
    decode_database,
)
from streamkeep.format.lmdb_file.meta_page import MetaPage
from streamkeep.recovery.pages.page_file import PageFile

_NOTHING: Final = Database(0, 0, 0, 0, 0, 0, None)


Edge = tuple[int, int]
Hole = tuple[bytes | None, bytes | None]  # range of keys: first included, second excluded

ROOT: Final[Edge] = (0, 0)  # the edge to the root: no page above it


class Tree:
    """One B+tree.

    Attributes:
        cut: edges (page number and index of the child) that cursors must not follow, with the
            range of keys that is missing. `fsck.pages` cuts edges to damaged pages, and to pages
            that are used twice, with which a cursor could loop forever.
        skipped: whether a cursor had to skip a page.
    """

    def __init__(self, pages: PageFile, database: Database, last_page: int) -> None:
        self.pages = pages
        self.database = database
        self.last_page = last_page
        self.cut: dict[Edge, Hole] = {}
        self.skipped = False

    def root(self) -> TreePage | None:
        """Return the root page; None if the tree is empty or its root is damaged."""
        number = self.database.root
        return None if number is None else self._page(ROOT, number, 0)

    def child(self, page: TreePage, index: int, depth: int) -> TreePage | None:
        """Return a child of a page, `depth` levels below the root; None if it is damaged."""
        return self._page((page.number, index), page.children[index], depth)

    def _page(self, edge: Edge, number: int, depth: int) -> TreePage | None:
        if depth < MAX_DEPTH and META_PAGES <= number <= self.last_page and edge not in self.cut:
            try:
                return self.pages.tree_page(number)
            except CorruptionError:
                pass
        self.skipped = True
        return None

    def value(self, page: TreePage, index: int) -> bytes:
        """Return a value of a leaf; raise CorruptionError."""
        if page.flags[index] == BIG:
            return self.pages.overflow(page.places[index], page.sizes[index])
        return page.inline(index)

    def find(self, db_key: bytes) -> tuple[bytes | None, bool]:
        """Return the value of a key, and whether all pages on the way to it are sound."""
        if self.database.root is None:
            return None, True
        page = self.root()
        depth = 0
        while page is not None and not page.leaf:
            depth += 1
            page = self.child(page, child_for(page, db_key), depth)
        if page is None:
            return None, False
        index = bisect_left(page.keys, db_key)
        if index == len(page.keys) or page.keys[index] != db_key:
            return None, True
        return self.value(page, index), True


def child_for(page: TreePage, db_key: bytes) -> int:
    """Return the index of the child of a branch that may contain a key."""
    return max(0, bisect_right(page.keys, db_key, 1) - 1)


class Cursor:
    """A position in a tree, with the methods of LMDB's cursors."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._path: list[tuple[TreePage, int]] = []  # branches, with the index of the child
        self._leaf: TreePage | None = None
        self._index = 0

    def key(self) -> bytes:
        """Return the key of the current row; b"" if there is none."""
        return b"" if self._leaf is None else self._leaf.keys[self._index]

    def value(self) -> bytes:
        """Return the value of the current row; raise CorruptionError if it cannot be read."""
        return b"" if self._leaf is None else self._tree.value(self._leaf, self._index)

    def in_memory(self) -> bool:
        """Return whether the current row has no place in a page."""
        return False

    def place(self) -> tuple[TreePage, int]:
        """Return the leaf of the current row, and the index of the row in it."""
        assert self._leaf is not None
        return self._leaf, self._index

    def first(self) -> bool:
        """Go to the first row; return whether there is one."""
        return self._start(None)

    def set_range(self, db_key: bytes) -> bool:
        """Go to the first row with a key of at least `db_key`; return whether there is one."""
        leaf = self._leaf
        if leaf is not None and leaf.keys[0] <= db_key <= leaf.keys[-1]:
            self._index = bisect_left(leaf.keys, db_key)
            return True
        if not self._start(db_key):
            return False
        # At most to the next leaf, in a sound tree. In the tree alone, also for a merged cursor.
        while Cursor.key(self) < db_key:
            if not Cursor.next(self):
                return False
        return True

    def next(self) -> bool:
        """Go to the next row; return whether there is one."""
        leaf = self._leaf
        if leaf is None:
            return False
        self._index += 1
        return self._index < len(leaf.keys) or self._next_leaf()

    def leaves(self) -> Iterator[TreePage]:
        """Yield all leaves that can be read."""
        found = self.first()
        while found and self._leaf is not None:
            yield self._leaf
            found = self._next_leaf()

    def walk(self, prefix: bytes = b"") -> Iterator[Cursor]:
        """Yield this cursor at each row whose key begins with `prefix`."""
        found = self.set_range(prefix) if prefix else self.first()
        while found and self.key().startswith(prefix):
            yield self
            found = self.next()

    # --- the walk -----------------------------------------------------------------------------

    def _start(self, db_key: bytes | None) -> bool:
        """Go to the leaf for a key, or to the first leaf for None."""
        self._path.clear()
        self._leaf = None
        return self._descend(self._tree.root(), db_key) or self._next_leaf()

    def _descend(self, page: TreePage | None, db_key: bytes | None) -> bool:
        """Go down from a page to a leaf; return False if it has no key of at least `db_key`."""
        while page is not None and not page.leaf:
            index = 0 if db_key is None else child_for(page, db_key)
            self._path.append((page, index))
            page = self._tree.child(page, index, len(self._path))
        if page is None:
            return False
        self._leaf = page
        self._index = 0 if db_key is None else bisect_left(page.keys, db_key)
        return self._index < len(page.keys)

    def _next_leaf(self) -> bool:
        """Go to the first row of the next leaf that can be read."""
        while self._path:
            page, index = self._path.pop()
            if index + 1 < len(page.children):
                self._path.append((page, index + 1))
                below = self._tree.child(page, index + 1, len(self._path))
                if self._descend(below, None):
                    return True
        self._leaf = None
        return False


class MergedCursor(Cursor):
    """A cursor over a tree and the rows in memory that replace some of its rows."""

    def __init__(self, tree: Tree, changed: dict[bytes, bytes | None], keys: list[bytes]) -> None:
        super().__init__(tree)
        self._changed = changed
        self._keys = keys  # of `changed`, sorted
        self._at = 0  # of the first changed key that is not below the key in the tree
        self._here = False  # the current row is in memory

    def key(self) -> bytes:
        """See `Cursor`."""
        return self._keys[self._at] if self._here else super().key()

    def value(self) -> bytes:
        """See `Cursor`."""
        if self._here:
            return self._changed[self._keys[self._at]] or b""
        return super().value()

    def in_memory(self) -> bool:
        """See `Cursor`."""
        return self._here

    def first(self) -> bool:
        """See `Cursor`."""
        self._at = 0
        return self._settle(super().first())

    def set_range(self, db_key: bytes) -> bool:
        """See `Cursor`."""
        self._at = bisect_left(self._keys, db_key)
        return self._settle(super().set_range(db_key))

    def next(self) -> bool:
        """See `Cursor`."""
        if not self._here:
            return self._settle(super().next())
        replaced = super().key() == self._keys[self._at]
        self._at += 1
        return self._settle(super().next() if replaced else super().key() != b"")

    def _settle(self, found: bool) -> bool:
        """Take the lower one of the rows in tree and memory; skip the rows that are removed."""
        while self._at < len(self._keys):
            following = self._keys[self._at]
            if found and super().key() < following:
                break
            self._here = self._changed[following] is not None
            if self._here:
                return True
            if found and super().key() == following:
                found = super().next()
            self._at += 1
        self._here = False
        return found


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
        self.main = self._tree(decode_database(meta.data[MAIN_AT : MAIN_AT + 48], "main database"))
        self.free = self._tree(decode_database(meta.data[FREE_AT : FREE_AT + 48], "free list"))
        self.missing: list[int] = []
        self.changed: dict[int, dict[bytes, bytes | None]] = {}
        self.commit_number = 0
        self._sorted: dict[int, list[bytes]] = {}  # the keys of `changed`, while it stays the same
        self._trees = {number: self._table_tree(number) for number in TABLES}

    def _tree(self, database: Database) -> Tree:
        return Tree(self.pages, database, self.meta.last_page)

    def _table_tree(self, number: int) -> Tree:
        try:
            value, _ = self.main.find(TABLES[number].name.encode())
            if value is not None:
                return self._tree(decode_database(value, TABLES[number].name))
        except CorruptionError:
            pass
        self.missing.append(number)
        return self._tree(_NOTHING)

    def tree(self, table: int) -> Tree:
        """Return the tree of a table; an empty one if its record is missing."""
        return self._trees[table]

    def change(self, table: int, db_key: bytes, value: bytes | None) -> None:
        """Replace a row in memory; None removes it. No cursor may be in use."""
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
        return None if value is None else open_row(table, db_key, value, where)

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

    def cursor(self, table: int) -> Cursor:
        """Return a cursor over a table."""
        changed = self.changed.get(table)
        if not changed:
            return Cursor(self._trees[table])
        if table not in self._sorted:
            self._sorted[table] = sorted(changed)
        return MergedCursor(self._trees[table], changed, self._sorted[table])

    def walk(self, table: int, prefix: bytes = b"") -> Iterator[Cursor]:
        """Yield one cursor at each row of a table whose key begins with `prefix`."""
        return self.cursor(table).walk(prefix)

    def rows(self, table: int) -> int:
        """Return the number of rows that LMDB states for a table."""
        return self._trees[table].database.entries

    def newest_commit(self) -> int:
        """Return the number of the newest commit; raise CorruptionError."""
        if self.commit_number:
            return self.commit_number
        row, _ = self.main.find(POSITION_KEY)
        return self.meta.commit_number if row is None else decode_position(row).commit_number

    def unknown_tables(self) -> Iterator[bytes]:
        """Yield names in the main database that no version of the format has."""
        known = {table.name.encode() for table in TABLES.values()}
        known.add(POSITION_KEY)
        for row in Cursor(self.main).walk():
            if row.key() not in known:
                yield row.key()
