"""Checks of LMDB's own pages: every page of the file is used once, or free, or damage is named.

The walk goes through the free list, the main database and all tables, and reads every branch,
every leaf, and the header of every overflow value. It marks each page in a bitmap: a page that is
marked already is used twice, and what is not marked in the end is lost. Each edge that leads to
damage is cut (`Tree.cut`), so that checks which come later pass over it.

What LMDB relies on, and this holds it against: numbers and flags of pages, the space that their
nodes take, keys that rise inside a page and from leaf to leaf, keys that lie between the
separators above them, leaves at one depth, the counters in the record of each tree, and a free
list of pages that nothing uses. `lmdb.verify` of the Python binding does the same; it keeps a byte
for each page in memory, and is about ten times slower. A test holds the two against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.log.lmdb_pages import (
    BIG,
    MAX_DEPTH,
    META_PAGES,
    OVERFLOW,
    TABLE,
    TreePage,
    falling_key,
    overflow_header,
    overflow_pages,
)
from streamkeep.recovery.fsck.catalogue import finding
from streamkeep.recovery.fsck.findings import Finding, quoted
from streamkeep.recovery.pages.tree import ROOT, Cursor, Edge, Tables, Tree

Progress = Callable[[int], None]  # takes the number of pages done since the last call

_SHOWN: Final = 5
_PIECE: Final = 1 << 20
_REPORT_EVERY: Final = 256
_NO_PROGRESS: Final[Progress] = lambda pages: None  # noqa: E731
_U64: Final = struct.Struct("<Q")


class PageMap:
    """One bit for each page of the file: whether it is accounted for."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.beyond = False  # a page behind the last one was to be marked
        self._bits = bytearray(pages // 8 + 1)
        self._bits[0] = (1 << META_PAGES) - 1

    def take(self, first: int, count: int) -> str:
        """Mark pages; return what is wrong with that, or nothing."""
        if not META_PAGES <= first <= self.pages - count:
            self.beyond = True
            return f"page {first} of {self.pages} is none that may be used"
        bits = self._bits
        if count == 1:
            mask = 1 << (first & 7)
            if bits[first >> 3] & mask:
                return f"page {first} is used, or free, already"
            bits[first >> 3] |= mask
            return ""
        twice = -1
        for number in range(first, first + count):
            mask = 1 << (number & 7)
            if bits[number >> 3] & mask:
                twice = number
            bits[number >> 3] |= mask
        return "" if twice < 0 else f"page {twice} is used, or free, already"

    def is_taken(self, number: int) -> bool:
        """Say whether a page is marked."""
        return self._bits[number >> 3] >> (number & 7) & 1 == 1

    def untaken(self) -> Iterator[int]:
        """Yield the pages that are not marked."""
        for place, byte in enumerate(self._bits):
            if byte != 0xFF:
                for number in range(place * 8, min(place * 8 + 8, self.pages)):
                    if not self.is_taken(number):
                        yield number


class PageWalk:
    """The walk through all pages as of one commit.

    Attributes:
        map: the pages that are accounted for. Of those that are not, damage on the way to them is
            the likely reason.
        free_known: all of the free list could be read.
        main_sound: nothing is wrong with the tree that leads to the tables.
        free: the pages of the free list, if those are to be kept apart.
        damaged: likewise the pages that something leads to, and that are not what they must be.
    """

    def __init__(
        self, tables: Tables, progress: Progress = _NO_PROGRESS, *, keep_free: bool = False
    ) -> None:
        self.tables = tables
        last = min(tables.meta.last_page, tables.pages.size() // tables.pages.page_size)
        self.map = PageMap(last + 1)
        self.free = PageMap(last + 1) if keep_free else None
        self.damaged = PageMap(last + 1) if keep_free else None
        self.free_known = True
        self.main_sound = True
        self._progress = progress
        self._visited = 0

    def findings(self) -> Iterator[Finding]:
        """Walk everything; yield what is wrong."""
        tables = self.tables
        yield from self._walk(tables.free, "the free list", free=True)
        self.free_known = not tables.free.cut
        yield from self._free_pages()
        for found in self._walk(tables.main, "the main database", main=True):
            self.main_sound = False
            yield found
        for number, table in TABLES.items():
            yield from self._walk(tables.tree(number), f"`{table.name}`")
        for unknown in tables.unknown_tables():
            where = f"sub-database {quoted(unknown)}"
            yield finding("SK008", where, "no version of the format has it")
        for number in tables.missing:
            name = TABLES[number].name
            yield finding("SK009", f"sub-database `{name}`", "its record is missing or damaged")
        yield from self._extent()
        if not tables.missing and not any(tree.cut for tree in self._trees()):
            yield from self._lost()

    def _trees(self) -> Iterator[Tree]:
        yield self.tables.free
        yield self.tables.main
        for number in TABLES:
            yield self.tables.tree(number)

    def cut_off(self) -> str:
        """Return how the file was cut off, as far as was walked; nothing when it was not.

        LMDB does not write pages that a commit took and gave back: a sound file may end before the
        last page, as long as nothing uses what is missing.
        """
        pages, size = self.tables.pages, self.tables.pages.size()
        expected = (self.tables.meta.last_page + 1) * pages.page_size
        if size >= expected or not self.map.beyond:
            return ""
        return f"cut off at {size} bytes, its meta page speaks of {expected}"

    def _extent(self) -> Iterator[Finding]:
        problem = self.cut_off()
        if problem:
            yield finding("SK004", DATA_FILE, problem)

    def _lost(self) -> Iterator[Finding]:
        """SK006: pages that are neither used nor free."""
        shown: list[int] = []
        count = 0
        for number in self.map.untaken():
            count += 1
            if len(shown) < _SHOWN:
                shown.append(number)
        if count:
            listed = ", ".join(map(str, shown)) + (", ..." if count > len(shown) else "")
            yield finding("SK006", DATA_FILE, f"{count} pages: {listed}")

    # --- one tree ---------------------------------------------------------------------------

    def _walk(
        self, tree: Tree, name: str, *, free: bool = False, main: bool = False
    ) -> Iterator[Finding]:
        database = tree.database
        if database.root is None:
            if any(database[1:6]):
                yield finding("SK007", name, "it is empty, and its counters are not 0")
            return
        walk = _TreeWalk(self, tree, name, free=free, main=main)
        yield from walk.page(ROOT, database.root, 0, None, None)
        if not tree.cut:
            yield from walk.counters()

    def visited(self) -> None:
        """Count a page for the progress that is shown."""
        self._visited += 1
        if self._visited % _REPORT_EVERY == 0:
            self._progress(_REPORT_EVERY)

    def note_damaged(self, number: int) -> None:
        """Remember a page that is not what it must be: what stands in it may still be read."""
        if self.damaged is not None and number < self.damaged.pages:
            self.damaged.take(number, 1)

    # --- the free list ----------------------------------------------------------------------

    def _free_pages(self) -> Iterator[Finding]:
        """SK004, SK005: each record of the free list names pages, of which none is used."""
        cursor = Cursor(self.tables.free)
        found = cursor.first()
        while found:
            page, index = cursor.place()
            try:
                yield from self._free_record(page, index)
            except CorruptionError as error:
                self.free_known = False
                yield finding("SK004", f"the free list, {error.where}", error.problem)
            found = cursor.next()

    def _free_record(self, page: TreePage, index: int) -> Iterator[Finding]:
        where = f"LMDB page {page.number}"
        key, size = page.keys[index], page.sizes[index]
        if len(key) != 8 or size < 8 or size % 8:
            raise CorruptionError(where, f"a record of {size} bytes under {len(key)} bytes")
        pieces = self._pieces(page, index)
        first = next(pieces)
        count = _U64.unpack_from(first)[0]
        if count > size // 8 - 1:
            raise CorruptionError(where, f"a record of {size} bytes names {count} pages")
        left = count
        at = 8
        piece: bytes | None = first
        while piece is not None:
            for (number,) in _U64.iter_unpack(piece[at : min(len(piece), at + 8 * left)]):
                left -= 1
                problem = self.map.take(number, 1) if number < self.map.pages else ""
                if self.free is not None and not problem:
                    self.free.take(number, 1)
                if number > self.tables.meta.last_page:
                    problem = f"page {number} is behind the last page"
                if problem:
                    self.free_known = False  # a page that should stand here is not
                    yield finding("SK005", "the free list", problem)
            piece, at = next(pieces, None) if left else None, 0

    def _pieces(self, page: TreePage, index: int) -> Iterator[bytes]:
        """Yield the value of a record in pieces: that of a big deletion may be large."""
        size = page.sizes[index]
        if page.flags[index] != BIG:
            yield page.inline(index)
            return
        file, number = self.tables.pages, page.places[index]
        for at in range(0, size, _PIECE):
            piece = file.read(number, min(_PIECE, size - at), skip=16 + at)
            if len(piece) != min(_PIECE, size - at):
                raise CorruptionError(f"LMDB page {number}", "it is behind the end of the file")
            yield piece


class _TreeWalk:
    """The walk through one tree, and what it counts."""

    def __init__(self, walk: PageWalk, tree: Tree, name: str, *, free: bool, main: bool) -> None:
        self.walk = walk
        self.tree = tree
        self.name = name
        self.free = free
        self.main = main
        self.branches = self.leaves = self.overflows = self.entries = 0
        self.last_key: bytes | None = None
        self.complained = False  # of a key that does not rise: once is enough

    def page(
        self,
        edge: Edge,
        number: int,
        depth: int,
        low: bytes | None,
        high: bytes | None,
    ) -> Iterator[Finding]:
        """Check a page and all below it; cut the edge to it where it is damaged.

        Args:
            low, high: the separators above it; its keys lie from `low` on and below `high`.
        """
        tree, walk = self.tree, self.walk
        walk.visited()
        problem = walk.map.take(number, 1)
        if problem:
            tree.cut[edge] = (low, high)
            yield finding("SK005", self.name, problem)
            return
        try:
            page = walk.tables.pages.tree_page(number)
            self._check_depth(page, depth)
        except CorruptionError as error:
            tree.cut[edge] = (low, high)
            walk.note_damaged(number)
            yield finding("SK004", f"{self.name}, {error.where}", error.problem)
            return
        keys = [key[::-1] for key in page.keys] if self.free else page.keys
        if page.leaf:
            yield from self._leaf(page, keys, low, high)
        else:
            yield from self._branch(page, keys, depth, low, high)

    def _check_depth(self, page: TreePage, depth: int) -> None:
        stated = self.tree.database.depth
        if depth >= MAX_DEPTH or (page.leaf != (depth == stated - 1) and stated <= MAX_DEPTH):
            kind = "leaf" if page.leaf else "branch"
            problem = f"a {kind} at level {depth + 1} of a tree of {stated} levels"
            raise CorruptionError(f"LMDB page {page.number}", problem)

    def _branch(
        self, page: TreePage, keys: list[bytes], depth: int, low: bytes | None, high: bytes | None
    ) -> Iterator[Finding]:
        self.branches += 1
        if falling_key(keys, 1, None) >= 0:
            yield self._falling(page)
        for index, child in enumerate(page.children):
            below = low if index == 0 else keys[index]
            above = keys[index + 1] if index + 1 < len(keys) else high
            yield from self.page((page.number, index), child, depth + 1, below, above)

    def _leaf(
        self, page: TreePage, keys: list[bytes], low: bytes | None, high: bytes | None
    ) -> Iterator[Finding]:
        self.leaves += 1
        self.entries += len(keys)
        beyond = (low is not None and keys[0] < low) or (high is not None and keys[-1] >= high)
        if beyond or falling_key(keys, 0, self.last_key) >= 0:
            yield self._falling(page)
        self.last_key = keys[-1]
        for index, flags in enumerate(page.flags):
            if flags == BIG:
                yield from self._big(page, index)
            elif (flags == TABLE) != self.main:
                where = f"{self.name}, LMDB page {page.number}"
                yield finding("SK004", where, f"node {index} has flags {flags}")

    def _falling(self, page: TreePage) -> Finding:
        where = f"{self.name}, LMDB page {page.number}"
        return finding("SK004", where, "its keys do not rise, or lie beyond those above it")

    def _big(self, page: TreePage, index: int) -> Iterator[Finding]:
        """Check the pages of a value outside of its leaf.

        A value that was replaced by a smaller one in the same transaction keeps all its pages: the
        header says how many, and it may be more than are needed.
        """
        file, pages = self.walk.tables.pages, self.walk.map
        number, needed = page.places[index], overflow_pages(page.sizes[index], file.page_size)
        if META_PAGES <= number < pages.pages and file.starts_with(
            number, overflow_header(number, needed)
        ):
            self.overflows += needed
            twice = pages.take(number, needed)
            if twice:
                yield finding("SK005", self.name, twice)
            return
        where = f"{self.name}, LMDB page {number}"
        if not META_PAGES <= number < pages.pages:
            pages.beyond = True
            yield finding("SK004", where, f"no such page; page {page.number} refers to it")
            return
        try:
            header = file.overflow_header(number)
        except CorruptionError as error:
            yield finding("SK004", f"{self.name}, {error.where}", error.problem)
            return
        count = needed
        whole = header.number == number and header.flags == OVERFLOW and header.pages >= needed
        if whole and number + header.pages <= pages.pages:
            count = header.pages
        else:
            problem = (
                f"its header says page {header.number}, flags {header.flags}, {header.pages} "
                f"pages; {number}, {OVERFLOW}, {needed} expected"
            )
            self.walk.note_damaged(number)
            yield finding("SK004", where, problem)
        self.overflows += count
        twice = pages.take(number, count)
        if twice:
            yield finding("SK005", self.name, twice)

    def counters(self) -> Iterator[Finding]:
        """SK007: the record of the tree counts pages and rows."""
        stated = self.tree.database
        counted = {
            "branch pages": (stated.branch_pages, self.branches),
            "leaf pages": (stated.leaf_pages, self.leaves),
            "overflow pages": (stated.overflow_pages, self.overflows),
            "rows": (stated.entries, self.entries),
        }
        for what, (says, found) in counted.items():
            if says != found:
                yield finding("SK007", self.name, f"its record says {says} {what}, counted {found}")
