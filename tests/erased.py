"""Entries that hold a secret, and the search for it in all files of a store."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

SECRET: Final = b"SeCrEt"


def grep(path: Path, text: bytes = SECRET) -> list[str]:
    """Return the files of a store that hold a text.

    In a process of its own: closing lock.mdb in this one would drop LMDB's locks on it.
    """
    command = ["grep", "--recursive", "--files-with-matches", "--fixed-strings"]
    done = subprocess.run(
        [*command, text.decode(), path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0 if done.stdout else 1, "")
    return done.stdout.splitlines()


def entry(n: int, *, size: int = 1) -> dict[bytes, bytes]:
    """Return fields that hold the secret, with their number, so that each is another."""
    return {b"name": b"%b%d," % (SECRET, n) * size, b"city": b"x"}


def harmless(n: int) -> dict[bytes, bytes]:
    return {b"name": b"visitor %d" % n, b"city": b"y" * (n % 60)}
