"""Writes queue.tar.zst: a queue whose worker was killed, in a store of format 1.

    python tests/golden/stores/write_queue.py FOLDER
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import golden_stores  # noqa: E402
import stores  # noqa: E402
from streamkeep.engine.system.clock import ManualClock  # noqa: E402
from streamkeep.jobs import Queue, known_tasks, take  # noqa: E402

NOW_MS = 1_718_004_800_000  # 2024-06-10T07:33:20Z


def declare(queue: Queue) -> None:
    @queue.task(concurrency=1)
    def limited(number: int) -> int:
        return number

    @queue.periodic("0 3 * * *", tz="Europe/Berlin", missed="all")
    def nightly() -> str:
        return "made"


def fill(queue: Queue, clock: ManualClock) -> None:
    """Put a job in each state, and leave some with this process."""
    declare(queue)
    queue.register_periodic()
    done = queue.put({"n": "done"})
    with queue.get() as job:
        job.set_result({"made": "Zürich"})
    failed = queue.put({"n": "failed"}, retries=0)
    queue.get().fail("no paper")
    cancelled = queue.put({"n": "cancelled"}, delay="1h")
    cancelled.cancel()
    queue.put({"n": "retrying"}, retries=5, backoff="10m")
    queue.get().retry()
    queue.put({"n": "runs"}, max_runtime="1h")
    queue.put({"n": "also runs"}, key="ann")
    assert len(queue.get_many(2)) == 2
    queue.put({"n": "held"}, key="ann")
    queue.put({"n": "unique"}, unique="report", priority="high")
    queue.put({"n": "low"}, priority="low", expires="1d", headers={"from": "golden"})
    queue.put({"n": "delayed"}, delay="30m", unique="later")
    queue.put(b"\x00\xff", codec="bytes")
    other = Queue(queue.store, "other")
    other.task(name="unknown")(lambda: None).delay()
    other.core.tasks.clear()
    assert take([other], other.consumer, 1, timeout=0, known=known_tasks([other])) == []
    queue.core.tasks[b"limited"].delay(1)  # type: ignore[arg-type]
    queue.core.tasks[b"limited"].delay(2)  # type: ignore[arg-type]
    queue.set_limits(max_length=1000)
    assert [done.id, failed.id, cancelled.id] == [
        f"{NOW_MS}-0",
        f"{NOW_MS}-1",
        "job-1",
    ], [done.id, failed.id, cancelled.id]


def main(folder: Path) -> None:
    path = folder / "store"
    shutil.rmtree(path, ignore_errors=True)
    child = os.fork()
    if child == 0:
        clock = ManualClock(NOW_MS)
        fill(Queue(stores.open_at(path, clock=clock)), clock)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (path / "lock.mdb").unlink()
    golden_stores.pack(path, folder / "queue.tar.zst")
    shutil.rmtree(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
