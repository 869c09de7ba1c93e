"""Stores for the tests of dump, load and diff: one that holds all that a store may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamkeep
from streamkeep.transfer.differences import diff

LOSSLESS: Final = ("jsonl", "dump", "rdb")


def fill(path: str = "s") -> None:
    with streamkeep.open(path, sync="none") as store:
        entries = [{"n": str(number), "pad": "x" * (number % 60)} for number in range(1, 300)]
        store.xadd_many("k", entries, [f"{number}-0" for number in range(1, 300)])
        odd: list[tuple[str, str | bytes]] = [
            ("a", "1"),
            ("a", b"\xfe"),
            ("", ""),
            ("z", '1,\n"2"'),
        ]
        store.xadd(b"\xff\x00", odd, id="5-5")
        store.xdel("k", "7-0", "8-0", "299-0")
        store.xgroup_create("k", "g", 0)
        store.xreadgroup("g", "c1", {"k": ">"}, count=60)
        store.xreadgroup("g", b"\xfe", {"k": ">"}, count=5)
        store.xnack("k", "g", "FAIL", "3-0", "2-0")
        store.xdel("k", "4-0")
        store.xgroup_create("k", "idle", "$")
        store.xadd("k", {"m": 1}, idmp=("p", b"\xfd"))
        store.xgroup_create("empty", "g", 0, mkstream=True)
    with streamkeep.open(path, node_max_entries=10) as store:
        store.xadd("limited", {"a": 1}, id="1-0")


def differences(one: str, other: str) -> list[str]:
    """Return what two stores differ in: kinds and keys."""
    with streamkeep.open(one, readonly=True) as a, streamkeep.open(other, readonly=True) as b:
        return sorted({f"{found.kind} {found.what}" for found in diff(a, b)})


def keys_of(path: str) -> list[bytes]:
    """Return the keys of a store, none where there is no store."""
    if not Path(path).exists():
        return []
    with streamkeep.open(path, readonly=True) as store:
        return store.keys()
