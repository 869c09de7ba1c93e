"""Entries that hold a secret, and the search for it in all files of a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

SECRET: Final = b"SeCrEt"

# In a process of its own: closing lock.mdb in this one would drop LMDB's locks on it.
GREP: Final = """
import pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*")):
    if path.is_file() and (count := path.read_bytes().count(sys.argv[2].encode())):
        print(path.name, count)
"""


def grep(path: Path, text: bytes = SECRET) -> list[str]:
    """Return the files of a store that hold a text, and how often."""
    done = subprocess.run(
        [sys.executable, "-c", GREP, str(path), text.decode()],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def entry(n: int, *, size: int = 1) -> dict[bytes, bytes]:
    """Return fields that hold the secret, with their number, so that each is another."""
    return {b"name": b"%b%d," % (SECRET, n) * size, b"city": b"x"}


def harmless(n: int) -> dict[bytes, bytes]:
    """Return fields without the secret."""
    return {b"name": b"visitor %d" % n, b"city": b"y" * (n % 60)}
