"""A process that may open no further file: each call succeeds, or raises StoreError."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tiers import daily_or_all

PROGRAM = """
import os, resource, sys
import streamkeep

path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
calls = {
    "open another": lambda store: streamkeep.open(path + "-new").close(),
    "append": lambda store: store.xadd("s", {"n": "1"}),
    "fill journal files": lambda store: [store.xadd("s", {"n": "z" * 900_000}) for _ in range(20)],
    "block": lambda store: store.xread({"s": "$"}, block=5),
    "trim": lambda store: store.xtrim("s", maxlen=store.xlen("s") - 3, approximate=False),
    "archive": lambda store: store.archive(),
    "history": lambda store: list(store.xrange("s", count=20, history=True)),
    "snapshot": lambda store: store.snapshot().close(),
    "durability": lambda store: store.durability(),
}
with streamkeep.open(path) as store:
    store.set_retention("s", archive=True)
    store.xadd_many("s", [{"n": str(n)} for n in range(2000)])
    store.xtrim("s", maxlen=1000)
    store.archive()
for name, call in calls.items():
    for left in range(0, 8, int(sys.argv[2])):
        with streamkeep.open(path) as store:
            store.using(sync="none").xadd("s", {"n": "0"})  # with the file of the next record
            held = []
            try:
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for handle in held[:left]:
                os.close(handle)
            there = store.xlen("s")
            try:
                call(store)
            except streamkeep.StoreError as error:
                print(f"{name}: {error}")
                made = store.xlen("s") > there
                assert made == ("is committed" in str(error)) or name != "append", error
            finally:
                for handle in held[left:]:
                    os.close(handle)
"""


def test_without_descriptors_each_call_succeeds_or_raises_a_store_error(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path / "store")]
    command.append(str(daily_or_all(2, 1)))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("archive", "durability"):
        assert f"{name}: this process or the system has as many files open as it may" in done.stdout
    assert "append: the change is committed and cannot be synced" in done.stdout
