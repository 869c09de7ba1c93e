"""Checks of LMDB's own pages: every page of the file is used once or is free.

The walk covers the free list, the main database and all tables. It reads every branch, every leaf,
and the header of every overflow value, and marks each page in a bitmap. A page that is marked twice
is used twice; a page that is never marked is lost. The walk cuts each edge that leads to damage
(`Tree.cut`), so that later checks skip it.

It checks everything that LMDB relies on: numbers and flags of pages, the space that nodes take, the
order of keys in a page and from leaf to leaf, keys that lie between the separators above them, one
depth of all leaves, the counters of each tree, and that nothing uses the pages of the free list.
`lmdb.verify` of the Python binding checks the same, but needs a byte of memory per page and about
ten times as long. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.system.progress import Advance
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import TABLES
from streamkeep.format.humanize import count_text
from streamkeep.format.journal.position import POSITION_KEY, decode_position
from streamkeep.format.lmdb_file import lmdb_pages
from streamkeep.recovery.fsck.findings import Finding, finding, quoted
from streamkeep.recovery.fsck.rows import Numbers
from streamkeep.recovery.pages.tree import ROOT, Edge, Tables, Tree

_LISTED: Final = 5  # lost pages that a finding lists
_REPORT_EVERY: Final = 256


class PageWalk:
    """The walk over all pages as of one commit.

    Attributes:
        pages: number of pages of the file.
        map: the pages that are used or free, as far as the walk reached them. If there is damage,
            other pages may be unreachable because of it.
        beyond: whether a page outside of the file was reached.
        free_known: whether the whole free list could be read.
        main_sound: whether the main database, which contains the tables, has no finding.
        free: the pages of the free list.
        damaged: the damaged pages that the walk reached: repair may still read nodes in them.
    """

    def __init__(self, tables: Tables, progress: Advance = lambda pages: None) -> None:
        self.tables = tables
        whole = tables.pages.size() // tables.pages.page_size
        self.pages = min(tables.meta.last_page + 1, whole)
        self.map = Numbers(range(lmdb_pages.META_PAGES))
        self.beyond = False
        self.free = Numbers()
        self.damaged = Numbers()
        self.free_known = True
        self.main_sound = True
        self._progress = progress
        self._visited = 0

    def findings(self) -> Iterator[Finding]:
        tables = self.tables
        yield from self._walk(tables.free, "the free list")
        self.free_known = not tables.free.cut
        yield from self._free_pages()
        for found in self._walk(tables.main, "the main database"):
            self.main_sound = False
            yield found
        for number, table in TABLES.items():
            yield from self._walk(tables.tree(number), f"`{table.name}`")
        for unknown in tables.unknown_tables():
            where = f"sub-database {quoted(unknown)}"
            yield finding("SK008", where, "unknown in all versions of the format")
        for number in tables.missing:
            name = TABLES[number].name
            yield finding("SK009", f"sub-database `{name}`", "its record is missing or damaged")
        problem = self.truncation()
        if problem:
            yield finding("SK004", DATA_FILE, problem)
        trees = (tables.free, tables.main, *map(tables.tree, TABLES))
        if not tables.missing and not any(tree.cut for tree in trees):
            yield from self._lost()

    def truncation(self) -> str:
        """Return the problem if the file is too short for the pages reached so far, else "".

        LMDB does not write pages that a commit allocated and freed again. So a sound file may end
        before its last page, as long as no missing page is used.
        """
        pages, size = self.tables.pages, self.tables.pages.size()
        expected = (self.tables.meta.last_page + 1) * pages.page_size
        if size >= expected or not self.beyond:
            return ""
        return f"truncated: {size:,} bytes, expected {expected:,}"

    def mark(self, first: int, count: int) -> str:
        """Mark consecutive pages; return the problem as text, "" if there is none."""
        if not lmdb_pages.META_PAGES <= first <= self.pages - count:
            self.beyond = True
            return f"page {first} is out of range ({self.pages} pages)"
        twice = [one for one in range(first, first + count) if not self.map.add(one)]
        return f"page {twice[-1]} is already used or free" if twice else ""

    def _lost(self) -> Iterator[Finding]:
        """SK006: every page is used or free."""
        lost = (one for one in range(self.pages) if one not in self.map)
        listed = list(islice(lost, _LISTED))
        count = len(listed) + sum(1 for _ in lost)
        if count:
            numbers = ", ".join(map(str, listed)) + (", ..." if count > len(listed) else "")
            yield finding("SK006", DATA_FILE, f"{count_text(count, 'lost page')}: {numbers}")

    # --- one tree ---------------------------------------------------------------------------

    def _walk(self, tree: Tree, name: str) -> Iterator[Finding]:
        database = tree.database
        flags = lmdb_pages.INTEGER_KEY if tree is self.tables.free else 0
        if database.flags != flags:
            problem = f"flags {database.flags} in its record, expected {flags}"
            yield finding("SK004", name, problem)
        if database.root is None:
            if any(database[1:6]):
                yield finding("SK007", name, "it is empty, but its counters are not 0")
            return
        walk = _TreeWalk(self, tree, name)
        yield from walk.page(ROOT, database.root, 0, None, None)
        if not tree.cut:
            yield from walk.counters()

    def visited(self) -> None:
        """Count a page for the progress."""
        self._visited += 1
        if self._visited % _REPORT_EVERY == 0:
            self._progress(_REPORT_EVERY)

    # --- the free list ----------------------------------------------------------------------

    def _free_pages(self) -> Iterator[Finding]:
        """SK004, SK005: each record of the free list can be read, and none of its pages is used."""
        for row in self.tables.free.rows():
            where = f"LMDB page {row.page()}"
            try:
                if len(row.key) != 8:
                    raise CorruptionError(where, f"a record with a key of {len(row.key)} bytes")
                numbers = list(lmdb_pages.free_pages(row.value(), where))
            except CorruptionError as error:
                self.free_known = False
                yield finding("SK004", f"the free list, {error.where}", error.problem)
                continue
            for number in numbers:
                problem = self.mark(number, 1) if number < self.pages else ""
                if not problem:
                    self.free.add(number)
                if number > self.tables.meta.last_page:
                    problem = f"page {number} is after the last page"
                if problem:
                    self.free_known = False  # another page should be listed instead
                    yield finding("SK005", "the free list", problem)


class _TreeWalk:
    """The walk over one tree, with its counts."""

    def __init__(self, walk: PageWalk, tree: Tree, name: str) -> None:
        self.walk = walk
        self.tree = tree
        self.name = name
        self.free = tree is walk.tables.free
        self.main = tree is walk.tables.main
        self.branches = self.leaves = self.overflows = self.entries = 0
        self.last_key: bytes | None = None

    def page(
        self, edge: Edge, number: int, depth: int, low: bytes | None, high: bytes | None
    ) -> Iterator[Finding]:
        """Check a page and all pages below it; cut the edge to a damaged page.

        Args:
            low, high: the separators above it; its keys must be at least `low` and below `high`.
        """
        tree, walk = self.tree, self.walk
        walk.visited()
        problem = walk.mark(number, 1)
        if problem:
            tree.cut[edge] = (low, high)
            yield finding("SK005", self.name, problem)
            return
        try:
            page = walk.tables.pages.tree_page(number)
            self._check_depth(page, depth)
        except CorruptionError as error:
            tree.cut[edge] = (low, high)
            walk.damaged.add(number)
            yield finding("SK004", f"{self.name}, {error.where}", error.problem)
            return
        keys = [key[::-1] for key in page.keys] if self.free else page.keys
        if page.leaf:
            yield from self._leaf(page, keys, low, high)
        else:
            yield from self._branch(page, keys, depth, low, high)

    def _check_depth(self, page: lmdb_pages.TreePage, depth: int) -> None:
        stated = self.tree.database.depth
        if depth >= lmdb_pages.MAX_DEPTH or (
            page.leaf != (depth == stated - 1) and stated <= lmdb_pages.MAX_DEPTH
        ):
            kind = "leaf" if page.leaf else "branch"
            problem = f"a {kind} at level {depth + 1} of a tree of {stated} levels"
            raise CorruptionError(f"LMDB page {page.number}", problem)

    def _branch(
        self,
        page: lmdb_pages.TreePage,
        keys: list[bytes],
        depth: int,
        low: bytes | None,
        high: bytes | None,
    ) -> Iterator[Finding]:
        self.branches += 1
        if lmdb_pages.find_unsorted(keys, 1, None) >= 0:
            yield self._unsorted(page)
        for index, child in enumerate(page.children):
            below = low if index == 0 else keys[index]
            above = keys[index + 1] if index + 1 < len(keys) else high
            yield from self.page((page.number, index), child, depth + 1, below, above)

    def _leaf(
        self, page: lmdb_pages.TreePage, keys: list[bytes], low: bytes | None, high: bytes | None
    ) -> Iterator[Finding]:
        self.leaves += 1
        self.entries += len(keys)
        beyond = (low is not None and keys[0] < low) or (high is not None and keys[-1] >= high)
        if beyond or lmdb_pages.find_unsorted(keys, 0, self.last_key) >= 0:
            yield self._unsorted(page)
        self.last_key = keys[-1]
        for index, flags in enumerate(page.flags):
            if flags == lmdb_pages.BIG:
                yield from self._big(page, index)
            elif self.main and keys[index] == POSITION_KEY:
                try:
                    decode_position(page.inline(index))
                except CorruptionError as error:
                    yield finding("SK004", f"{self.name}, LMDB page {page.number}", str(error))
            elif (flags == lmdb_pages.TABLE) != self.main:
                where = f"{self.name}, LMDB page {page.number}"
                yield finding("SK004", where, f"node {index} has flags {flags}")

    def _unsorted(self, page: lmdb_pages.TreePage) -> Finding:
        where = f"{self.name}, LMDB page {page.number}"
        problem = "the keys are not ascending, or not between the separators of the page above"
        return finding("SK004", where, problem)

    def _big(self, page: lmdb_pages.TreePage, index: int) -> Iterator[Finding]:
        """Check the overflow pages of a value.

        If a transaction replaces a value that it has written by a smaller one, LMDB keeps all its
        pages. So the header may state more pages than the value needs.
        """
        walk, file = self.walk, self.walk.tables.pages
        number = page.places[index]
        count = lmdb_pages.overflow_pages(page.sizes[index], file.page_size)
        where = f"{self.name}, LMDB page {number}"
        if not lmdb_pages.META_PAGES <= number < walk.pages:
            walk.beyond = True
            problem = f"out of range ({walk.pages} pages); page {page.number} refers to it"
            yield finding("SK004", where, problem)
            return
        try:
            data = file.read(number, lmdb_pages.HEADER_SIZE)
            header = lmdb_pages.decode_overflow_header(data, number)
        except CorruptionError as error:
            yield finding("SK004", f"{self.name}, {error.where}", error.problem)
            return
        whole = (header.number, header.flags) == (number, lmdb_pages.OVERFLOW)
        if whole and count <= header.pages <= walk.pages - number:
            count = header.pages
        elif header != (number, lmdb_pages.OVERFLOW, count):
            problem = (
                f"the header says page {header.number}, flags {header.flags}, {header.pages} "
                f"pages; expected {number}, {lmdb_pages.OVERFLOW}, {count}"
            )
            walk.damaged.add(number)
            yield finding("SK004", where, problem)
        self.overflows += count
        twice = walk.mark(number, count)
        if twice:
            yield finding("SK005", self.name, twice)

    def counters(self) -> Iterator[Finding]:
        """SK007: the counters in the record of the tree are right."""
        stated = self.tree.database
        for what, says, found in (
            ("branch pages", stated.branch_pages, self.branches),
            ("leaf pages", stated.leaf_pages, self.leaves),
            ("overflow pages", stated.overflow_pages, self.overflows),
            ("rows", stated.entries, self.entries),
        ):
            if says != found:
                yield finding("SK007", self.name, f"{says} {what} in its record, counted {found}")
