"""`data.mdb` as a file of pages, read without LMDB.

Pages are read with pread, not mapped: a file that is shorter than its pages claim, or a bad sector,
is an error here and not a signal that ends the process. A few hundred decoded pages are kept,
enough for the branches of all tables.
"""

from __future__ import annotations

import os
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.log.lmdb_pages import (
    HEADER_SIZE,
    OverflowHeader,
    TreePage,
    decode_overflow_header,
    decode_tree_page,
)

_KEPT_PAGES: Final = 256


class PageFile:
    """An open data file."""

    def __init__(self, store: Folder, page_size: int) -> None:
        self.page_size = page_size
        self.handle = store.open(DATA_FILE)
        self._size = self.size()
        self._kept: dict[int, TreePage] = {}

    def close(self) -> None:
        """Close the file."""
        os.close(self.handle)

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(self.handle).st_size

    def read(self, number: int, size: int, *, skip: int = 0) -> bytes:
        """Return up to `size` bytes from byte `skip` of a page on; fewer where the file ends."""
        try:
            return os.pread(self.handle, size, number * self.page_size + skip)
        except (OSError, OverflowError) as error:
            raise CorruptionError(f"LMDB page {number}", f"cannot be read: {error}") from error

    def tree_page(self, number: int) -> TreePage:
        """Return a branch or leaf page; raise CorruptionError."""
        page = self._kept.get(number)
        if page is None:
            page = decode_tree_page(self.read(number, self.page_size), number)
            if len(self._kept) >= _KEPT_PAGES:
                del self._kept[next(iter(self._kept))]  # the one that came first
            self._kept[number] = page
        return page

    def starts_with(self, number: int, header: bytes) -> bool:
        """Say whether a page starts with these bytes."""
        try:
            return os.pread(self.handle, len(header), number * self.page_size) == header
        except OSError:
            return False

    def overflow_header(self, number: int) -> OverflowHeader:
        """Return the header of an overflow page; raise CorruptionError."""
        data = self.read(number, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            raise CorruptionError(f"LMDB page {number}", "it is behind the end of the file")
        return decode_overflow_header(data)

    def overflow(self, number: int, size: int) -> bytes:
        """Return a value of `size` bytes that begins in an overflow page.

        The header of the page is not looked at: the value has a checksum of its own.
        """
        start = number * self.page_size + HEADER_SIZE
        if start + size > self._size:
            self._size = self.size()  # it may have grown
            if start + size > self._size:
                problem = f"a value of {size} bytes goes beyond the end of the file"
                raise CorruptionError(f"LMDB page {number}", problem)
        try:
            value = os.pread(self.handle, size, start)
        except OSError as error:
            raise CorruptionError(f"LMDB page {number}", f"cannot be read: {error}") from error
        if len(value) != size:
            raise CorruptionError(f"LMDB page {number}", f"only {len(value)} of {size} bytes")
        return value
