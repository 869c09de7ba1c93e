"""Wrote closed-3, killed-3 and torn-3, with the first program of store format 3 and journal format 2.

They are never written again: this program is kept to show what they hold. That is what `fill` and
`fill_more` of `write.py` write, rows of a program, and a consumer under a lease.

    python tests/golden/stores/write_3.py FOLDER

closed-3.tar.zst  closed cleanly
killed-3.tar.zst  its process was killed while its newest commits were only in the journal
torn-3.tar.zst    its process was killed, and data.mdb is as it was at the last checkpoint
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import types
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).parent)]

import streamkeep.engine.api  # noqa: E402
import streamkeep.engine.api.store  # noqa: E402
import streamkeep.engine.system.clock  # noqa: E402

# Under the names that write.py knows.
streamkeep.engine.api.Store = streamkeep.engine.api.store.Store
clock_module = types.ModuleType("streamkeep.engine.clock")
clock_module.ManualClock = streamkeep.engine.system.clock.ManualClock
sys.modules["streamkeep.engine.clock"] = clock_module

import golden_stores  # noqa: E402
import inside  # noqa: E402
from write import NOW_MS, fill, fill_more, pack  # noqa: E402

Store = streamkeep.engine.api.store.Store
ManualClock = streamkeep.engine.system.clock.ManualClock


def fill_3(store: Store[bytes]) -> None:
    """Write what only format 3 has: rows of a program."""
    for number in range(300):
        store.row_put("counters", b"%04d" % number, b"value %d" % number * 20)
    store.row_put("settings \xff", b"\x00", b"")
    store.row_delete("counters", b"0007")


def fill_child(path: Path, name: str, work: Path) -> None:
    clock = ManualClock(NOW_MS)
    store = Store(path, clock=clock)
    fill(store, clock)
    inside.checkpointer_of(store).stop()  # it makes no checkpoint of its own from now on
    inside.checkpoint_now(store)
    shutil.copyfile(path / "data.mdb", work / "data.old")
    if name == "killed-3":
        inside.defer_for_long(store)
    else:
        inside.defer_nothing(store)
    fill_more(store, clock)
    fill_3(store)
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    clock = ManualClock(NOW_MS)
    with Store(work / "closed-3", clock=clock) as store:
        fill(store, clock)
        fill_more(store, clock)
        fill_3(store)
        found = json.dumps(golden_stores.describe(store), indent=1, sort_keys=True) + "\n"
    assert found == (golden_stores.FOLDER / "expected.json").read_text()
    for name in ("killed-3", "torn-3"):
        child = os.fork()
        if child == 0:
            fill_child(work / name, name, work)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        data = (work / name / "data.mdb").read_bytes()
        if name == "killed-3":
            assert b"value 299" not in data  # the newest commits are only in the journal
        else:
            assert b"value 299" in data
            shutil.copyfile(work / "data.old", work / name / "data.mdb")
    for name in ("closed-3", "killed-3", "torn-3"):
        pack(work / name, folder / f"{name}.tar.zst")
    shutil.rmtree(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
