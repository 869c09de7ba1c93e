"""What is lost by a kill, and what by a power cut: `python losses.py`.

In each mode a child appends 1,000 entries and prints the ID of each call that has returned. Then it
is killed, or its disk loses power; the store is opened again, and the printed IDs are looked for.
The disk is `forgetful_disk.py`, which needs the package `mfusepy` and fuse3.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import streamkeep

CHILD = """
import sys, time, streamkeep
store = streamkeep.open(sys.argv[1], sync=sys.argv[2], interval=60)
store.sync()
for n in range(1000):
    print(store.xadd("log", {"n": n}).decode(), flush=True)
print("done", flush=True)
time.sleep(3600)
"""


def appended(store: Path, mode: str, disk: subprocess.Popen[str] | None) -> list[str]:
    """Return the IDs that a child reported before it, or the power of its disk, was gone."""
    command = [sys.executable, "-c", CHILD, str(store), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        ids = [line.strip() for line in iter(child.stdout.readline, "done\n")]
        (disk or child).kill()  # all at once, in the middle of whatever it does
        child.kill()
    return ids


def lost(store: Path, ids: list[str]) -> int:
    with streamkeep.open(store, decode_responses=True) as opened:
        return len(set(ids) - {entry.id for entry in opened.xrange("log")})


print("sync      reported  lost by a kill  lost by a power cut")
for mode in ("commit", "interval", "none"):
    by_kill = Path(f"{mode}.store")
    ids = appended(by_kill, mode, None)
    line = f"{mode:8}  {len(ids):8}  {lost(by_kill, ids):14}"
    folder, mounted = Path(f"{mode}.disk"), Path(f"{mode}.mount")
    folder.mkdir()
    mounted.mkdir()
    program = Path(__file__).with_name("forgetful_disk.py")
    command = [sys.executable, str(program), str(folder), str(mounted)]
    with subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL) as disk:
        while not os.path.ismount(mounted) and disk.poll() is None:
            time.sleep(0.01)
        if disk.poll() is None:
            ids = appended(mounted / "store", mode, disk)
            subprocess.run(["fusermount3", "-u", mounted], check=True)
            line += f"  {lost(folder / 'store', ids):19}"
        else:
            line += "  no disk: pip install mfusepy, and install fuse3"
    print(line)
