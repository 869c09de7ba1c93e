"""Waiting in the kernel until another process says so: futex(2), on a word of a shared file.

The other ways cost more. To look again and again for the write lock took a third of the processor
time of ten consumers, and flock(2) would wait without a limit, also for a process that is stopped.
On a processor whose number of the system call is not known here, a wait lasts for its whole time.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from typing import Any, Final

_NUMBERS: Final = {
    "x86_64": 202,
    "aarch64": 98,
    "riscv64": 98,
    "loongarch64": 98,
    "ppc64le": 221,
    "s390x": 238,
}
_WAIT: Final = 0
_WAKE: Final = 1
_MASK: Final = 0xFFFFFFFF  # what the kernel compares


class Futex:
    """A word of 8 bytes in a shared file, and the processes that wait until it is changed."""

    def __init__(self, handle: int, size: int, offset: int) -> None:
        """Map an open file. Nothing is written through this map: it could end the process."""
        self._map = mmap.mmap(handle, size)
        self._offset = offset + 4 * (sys.byteorder == "big")
        self._call: Any = None  # not known yet, or unknown
        self._duration: Any = None
        self._known = False

    def close(self) -> None:
        self._map.close()

    def _prepare(self) -> None:
        import ctypes  # takes milliseconds; only processes that wait for each other need it

        number = _NUMBERS.get(os.uname().machine)
        if number is not None:
            word = ctypes.addressof(ctypes.c_char.from_buffer(self._map, self._offset))
            self._duration = (ctypes.c_long * 2)()  # seconds, nanoseconds
            system_call = ctypes.CDLL(None).syscall
            system_call.restype = ctypes.c_long
            whole, address = ctypes.c_long, ctypes.c_void_p
            system_call.argtypes = (whole, address, whole, whole, address)
            self._call = lambda what, value: system_call(
                number, word, what, value, ctypes.addressof(self._duration)
            )
        self._known = True

    def wait(self, seen: int, most_ns: int) -> None:
        """Wait until `wake` chooses this process, if the word is still as it was seen.

        Args:
            most_ns: for at most so long, below a second. A signal ends a wait, too.
        """
        if not self._known:
            self._prepare()
        if self._call is None:
            time.sleep(most_ns / 1e9)
        else:
            self._duration[1] = most_ns
            self._call(_WAIT, seen & _MASK)

    def wake(self) -> bool:
        """Wake the process that waits for longest, after the word was changed.

        Returns:
            False if none waits.
        """
        if not self._known:
            self._prepare()
        return self._call is not None and self._call(_WAKE, 1) > 0
