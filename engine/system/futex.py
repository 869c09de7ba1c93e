"""Waiting in the kernel until another process says so: futex(2), on a word of a shared file.

The other ways cost more. To look again and again for the write lock took a third of the processor
time of ten consumers, and flock(2) would wait without a limit, also for a process that is stopped.
Compiled by mypyc.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from typing import Any, Final

_NUMBERS: Final = {  # of the system call, where a word of Python has 8 bytes
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
    """A word of 8 bytes in a shared file, and the processes that wait until it is changed.

    Attributes:
        prepared: whether `prepare` was called.
    """

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        """Take the bytes of the file, in a map that may be written."""
        self.prepared = False
        self._data = data
        self._offset = offset + 4 * (sys.byteorder == "big")
        self._call: Any = None
        self._duration: Any = None

    def prepare(self) -> None:
        """Find the system call, which takes milliseconds. Without it, `wait` only sleeps."""
        self.prepared = True
        number = _NUMBERS.get(os.uname().machine)
        if number is None or sys.maxsize < 1 << 32:
            return
        try:
            import ctypes  # only processes that share a store need it

            system_call = ctypes.CDLL(None).syscall
        except (ImportError, OSError, AttributeError):
            return
        word = ctypes.addressof(ctypes.c_char.from_buffer(self._data, self._offset))
        self._duration = duration = (ctypes.c_long * 2)()  # seconds, nanoseconds
        system_call.restype = ctypes.c_long
        whole, address = ctypes.c_long, ctypes.c_void_p
        system_call.argtypes = (whole, address, whole, whole, address)
        self._call = lambda what, value: system_call(
            number, word, what, value, ctypes.addressof(duration)
        )

    def can_wake(self) -> bool:
        return self._call is not None

    def wait(self, seen: int, most_ns: int) -> None:
        """Wait until `wake` chooses this process, if the word is still as it was seen.

        Args:
            most_ns: for at most so long, below a second. A signal ends a wait, too.
        """
        if self._call is None:
            time.sleep(most_ns / 1e9)
        else:
            self._duration[1] = most_ns
            self._call(_WAIT, seen & _MASK)

    def wake(self) -> bool:
        """Wake the process that waits for longest, after the word was changed, if `can_wake`.

        Returns:
            False if none waits.
        """
        return bool(self._call(_WAKE, 1) > 0)
