"""Which modules are worth compiling: `python -m benchmarks.modules`, for `HOT` in setup.py.

An interpreted copy counts the bytecodes that each module runs in a workload; this process, which is
compiled, measures its processor time. A bytecode takes about 7 ns more than its compiled code: 30
instructions, counted with valgrind.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import streamkeep
from benchmarks.common import entries, interpreted, scratch, timed
from streamkeep import recovery

_FOLDER = str(Path(streamkeep.__file__).parent)


def workloads(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield calls that do the same each time; add the one that matters to you."""
    batch = entries(200)
    with streamkeep.open(folder / "store", sync="none") as store:
        store.xadd_many("s", entries(3000))
        store.xgroup_create("s", "g", 0)
        yield "xadd", lambda: [store.xadd("a", one) for one in batch[:50]]
        yield "xadd_many", lambda: store.xadd_many("b", batch)
        yield "xrange", lambda: store.xrange("s", count=1000)
        for count in (1, 100):
            yield f"xreadgroup, xack of {count}", partial(_cycle, store, count)
        yield "fsck", lambda: list(recovery.check(folder / "store"))


def _cycle(store: Any, count: int) -> None:
    ((_, found),) = store.xreadgroup("g", "c", {"s": ">"}, count=count)
    store.xack("s", "g", *[entry.id for entry in found])


def _bytecodes(call: Callable[[], object]) -> Counter[str]:
    found: Counter[str] = Counter()

    def step(frame: Any, event: str, _: object) -> Any:
        frame.f_trace_opcodes = frame.f_code.co_filename.startswith(_FOLDER)
        found[frame.f_code.co_filename.removeprefix(f"{_FOLDER}/")] += event == "opcode"
        return step

    sys.settrace(step)
    call()
    sys.settrace(None)
    return found


if __name__ == "__main__":
    with scratch() as place:
        if "count" in sys.argv:
            print(json.dumps({name: _bytecodes(call) for name, call in workloads(place)}))
        else:
            counted = json.loads(interpreted("benchmarks.modules", "count"))
            for name, call in workloads(place):
                took = min(timed(call, clock=time.process_time) for _ in range(9))
                print(f"{name}: what each module would add, interpreted")
                for module, number in Counter(counted[name]).most_common(60):
                    print(f"{7e-9 * number / took:>8.1%}  {module}")
