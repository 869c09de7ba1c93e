"""What is lost when a process is killed, and what a power cut could take: `python losses.py`.

For each mode a child appends 1,000 entries and prints the ID of each call that has returned. Then
it is killed (SIGKILL), the store is opened again, and the printed IDs are looked for.
"""

import subprocess
import sys

import streamkeep

CHILD = """
import sys, time, streamkeep
store = streamkeep.open(sys.argv[1], sync=sys.argv[2], interval_ms=60_000)
store.sync()
for n in range(1000):
    print(store.xadd("log", {"n": n}).decode(), flush=True)
state = store.durability()
print("unsynced", state.last_commit - state.durable_commit, flush=True)
time.sleep(3600)
"""

print("sync      printed  lost by SIGKILL  not yet on disk")
for mode in ("commit", "interval", "none"):
    path = f"losses-{mode}.store"
    command = [sys.executable, "-c", CHILD, path, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        printed = []
        while not (line := child.stdout.readline()).startswith("unsynced"):
            printed.append(line.strip())
        child.kill()
    with streamkeep.open(path, decode_responses=True) as store:
        found = {entry.id for entry in store.xrange("log")}
    lost = len(set(printed) - found)
    print(f"{mode:8} {len(printed):8} {lost:16} {int(line.split()[1]):16}")
