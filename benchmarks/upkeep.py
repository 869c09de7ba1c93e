"""Erasing, backing up and compacting: seconds on an otherwise unused store.

python benchmarks/upkeep.py [MIB]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamkeep
from streamkeep import recovery

_BATCH = 5000


def timed(name: str, work: Callable[[], Any]) -> Any:
    """Run something and print how long it took."""
    began = time.perf_counter()
    result = work()
    print(f"{name:<44} {time.perf_counter() - began:8.2f} s")
    return result


def main() -> None:
    """Fill a store and measure."""
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    with tempfile.TemporaryDirectory() as folder:
        path, target = Path(folder) / "store", Path(folder) / "backup"
        with streamkeep.open(path, sync="none") as store:
            count = 0
            while store.used_bytes < mib << 20:
                fields = [
                    {"name": f"visitor {n}", "city": "x" * 80, "n": str(n)}
                    for n in range(count, count + _BATCH)
                ]
                ids = [f"{n}-0" for n in range(count + 1, count + _BATCH + 1)]
                store.xadd_many("k", fields, ids)
                count += _BATCH
            store.sync()
            print(f"{count:,} entries, {store.used_bytes >> 20} MiB")
            many = [f"{n}-0" for n in range(1, count, count // 1000)]
            timed(
                f"erase {len(many)} entries, each in another node", lambda: store.erase("k", *many)
            )
            timed("erase one entry", lambda: store.erase("k", "3-0"))
            timed("backup", lambda: recovery.backup(store, target, verify=False))
            timed("backup, checked", lambda: recovery.backup(store, target))
            store.xtrim("k", maxlen=count // 2, limit=0)
            timed("erase with half of the pages newly free", lambda: store.erase("k", "4-0"))
        done = timed("compact", lambda: recovery.compact(path))
        print(f"{done.before_bytes >> 20} MiB before, {done.after_bytes >> 20} MiB after")


if __name__ == "__main__":
    main()
