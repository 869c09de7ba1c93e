"""The pages of `data.mdb`, read without LMDB.

Pages are read with pread, not mapped: with a map, a truncated file or a bad sector would kill the
process with SIGBUS; here it raises CorruptionError. Some hundred decoded pages are cached, enough
for the branches of all tables.
"""

from __future__ import annotations

import os
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.lmdb_file import lmdb_pages

_CACHED_PAGES: Final = 256


class PageFile:
    """An open data file."""

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

    def starts_with(self, number: int, header: bytes) -> bool:
        try:
            return os.pread(self.handle, len(header), number * self.page_size) == header
        except OSError:
            return False

    def overflow_header(self, number: int) -> lmdb_pages.OverflowHeader:
        data = self.read(number, lmdb_pages.HEADER_SIZE)
        if len(data) < lmdb_pages.HEADER_SIZE:
            raise CorruptionError(f"LMDB page {number}", "the page is after the end of the file")
        return lmdb_pages.decode_overflow_header(data)

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
        try:
            value = os.pread(self.handle, size, start)
        except OSError as error:
            raise CorruptionError(f"LMDB page {number}", f"cannot be read: {error}") from error
        if len(value) != size:
            problem = f"truncated: {len(value)} bytes, expected {size}"
            raise CorruptionError(f"LMDB page {number}", problem)
        return value
