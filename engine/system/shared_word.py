"""A word of a shared file on which processes sleep until another one wakes them: Linux's futex(2).

A sleep has a limit, takes no lock, and leaves nothing behind, whoever is killed or stopped. Without
the system call, as in some sandboxes, it is a short one. Compiled by mypyc.
"""

from __future__ import annotations

import errno
import platform
import time
from typing import Any, Final

_NUMBERS: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98}  # of the system call
_WAIT: Final = 0
_WAKE: Final = 1
_READ: Final = 1
_SHARED: Final = 1
_SIZE: Final = 4096
_SHORT_S: Final = 0.0005
_EXPECTED: Final = (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)


class SharedWord:
    """The lower half of a u64 in the first page of a file."""

    def __init__(self, handle: int, index: int) -> None:
        """Map the page for reading: on some file systems, no map may be written (`shared_file`)."""
        self._page = self._at = 0
        self._call: Any = None
        try:
            import ctypes  # takes milliseconds; only processes that share a store need it

            library: Any = ctypes.CDLL(None, use_errno=True)
        except (ImportError, OSError):  # of a Python without libffi
            return
        long = ctypes.c_long
        library.mmap.argtypes = library.syscall.argtypes = [long] * 6
        library.mmap.restype = long
        library.munmap.argtypes = [long, long]
        self._call = library.syscall
        self._unmap: Any = library.munmap
        self._errno: Any = ctypes.get_errno
        self._limit: Any = (long * 2)()  # seconds and nanoseconds
        self._limit_at: int = ctypes.addressof(self._limit)
        self._number: int = _NUMBERS.get(platform.machine(), -1)  # ENOSYS elsewhere
        page: int = library.mmap(0, _SIZE, _READ, _SHARED, handle, 0)
        self._page = 0 if page == -1 else page
        self._at = self._page + 8 * index

    def sleep(self, value: int, limit_s: float) -> None:
        """Sleep until another process wakes this one, or the limit, unless the word has changed.

        One thread of a process may sleep on it at a time.

        Args:
            value: the u64 as it was.
        """
        if self._call is None:
            time.sleep(_SHORT_S)
            return
        self._limit[0], self._limit[1] = divmod(int(limit_s * 1e9), 1_000_000_000)
        failed = self._call(self._number, self._at, _WAIT, value & 0xFFFFFFFF, self._limit_at, 0)
        if failed and self._errno() not in _EXPECTED:
            time.sleep(_SHORT_S)

    def wake(self) -> None:
        """Wake the process that has slept on the word for longest."""
        if self._call is not None:
            self._call(self._number, self._at, _WAKE, 1, 0, 0)

    def close(self) -> None:
        page, self._page = self._page, 0
        if page:
            self._unmap(page, _SIZE)
