"""Memory and size of a queue over millions of jobs: `python -m benchmarks.queue_memory 5`.

One process puts jobs, takes them and ends them with a result, a hundred in each call, without
waiting for the disk. Results are kept for ten seconds. It prints a line for each half million.
"""

from __future__ import annotations

import os
import sys
import time

from benchmarks.common import process_figure, scratch
from streamkeep.jobs import Queue

_BATCH = 100
_STEP = 500_000


def run(millions: float) -> None:
    """Print jobs, jobs per second, memory that is not of a file, and sizes in MiB."""
    with scratch() as folder:
        path = folder / "store"
        with Queue(path, sync="none", result_ttl="10s") as queue:
            payloads = [{"to": "ann@example.org", "template": "hello", "number": 7}] * _BATCH
            print("jobs, per second, memory MiB, data file MiB, free in it MiB, journal MiB")
            begun = time.perf_counter()
            for done in range(_BATCH, round(millions * 1_000_000) + 1, _BATCH):
                queue.put_many(payloads)
                left = _BATCH
                while left:
                    jobs = queue.get_many(left)
                    queue.done_many(jobs, [job.payload["number"] for job in jobs])
                    left -= len(jobs)
                if done % _STEP == 0:
                    rate = _STEP / (time.perf_counter() - begun)
                    begun = time.perf_counter()
                    journal = sum(
                        one.stat().st_blocks * 512 for one in (path / "journal").iterdir()
                    )
                    sizes = [
                        process_figure("RssAnon") / 1024,
                        os.stat(path / "data.mdb").st_blocks * 512 / 2**20,
                        queue.store.reusable_bytes / 2**20,
                        journal / 2**20,
                    ]
                    shown = ", ".join(f"{size:.1f}" for size in sizes)
                    print(f"{done:,}, {rate:,.0f}, {shown}", flush=True)


if __name__ == "__main__":
    run(float(sys.argv[1]) if len(sys.argv) > 1 else 5)
