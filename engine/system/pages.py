"""The page of LMDB: what it reads, writes and counts in.

LMDB takes the page of the system when it creates a data file, up to 32 KiB. A kernel for arm64 may
have pages of 16 or 64 KiB. LMDB would open a file with other pages, but its map, its reserved
blocks and its budgets would then be counted in two units, which no test tries. So such a store is
refused (`check_page_size`), and every size here counts in `PAGE`.
"""

from __future__ import annotations

import mmap
from typing import Final

from streamkeep.format.core.errors import StoreError

_LARGEST: Final = 32768  # of LMDB
PAGE: Final = min(mmap.PAGESIZE, _LARGEST)
PAGE_HEADER: Final = 16  # bytes of a page that hold no value


def check_page_size(path: object, size: int) -> None:
    """Raise StoreError if a data file has other pages than LMDB uses on this system.

    Args:
        size: the size of a page, as the meta pages of the data file say.
    """
    if size != PAGE:
        raise StoreError(
            f"{path}: made with pages of {size:,} bytes, but this system has pages of {PAGE:,}; "
            "next: on a system with such pages, run `streamkeep dump`, and here `streamkeep load`"
        )
