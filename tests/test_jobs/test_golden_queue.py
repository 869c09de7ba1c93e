"""The queue in a golden store opens today, and each of its jobs goes on where it was.

`tests/golden/stores/write_queue.py` wrote the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import golden_stores
import stores
from streamkeep import recovery
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import JobCancelledError, JobFailedError, Queue
from streamkeep.jobs.listing import Minute

NOW_MS = 1_718_004_800_000  # 2024-06-10T07:33:20Z, when its process was killed


def test_the_jobs_of_a_golden_store_go_on_where_they_were(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    store = stores.open_at(golden_stores.unpack("queue", tmp_path), clock=clock)
    queue, other = Queue(store), Queue(store, "other")
    stats = queue.stats()
    assert stats[:5] == (6, 2, 2, 1, 1)  # waiting, running, delayed, dead, done
    assert (stats.held, stats.retrying, stats.failed_attempts, stats.cancelled) == (2, 1, 2, 1)
    assert (stats.workers, other.stats().parked) == (0, 1)
    assert queue.minutes() == [Minute(NOW_MS // 60_000 * 60_000, 1, 2)]
    assert queue.settings().max_length == 1000
    [rule] = queue.schedules()
    assert (rule.name, rule.cron, rule.zone) == ("nightly", "0 3 * * *", "Europe/Berlin")
    assert rule.next_ms == 1_718_067_600_000  # 2024-06-11T03:00+02:00
    assert queue.job(f"{NOW_MS}-0").result(0) == {"made": "Zürich"}
    with pytest.raises(JobFailedError, match="no paper"):
        queue.job(f"{NOW_MS}-1").result(0)
    with pytest.raises(JobCancelledError):
        queue.job("job-1").result(0)
    [letter] = queue.dead_letters()
    assert (letter.job, letter.attempts) == (f"{NOW_MS}-1", 1)
    assert not queue.put({"n": "again"}, unique="report").is_new

    seen: list[Any] = []
    for _ in range(3):
        while jobs := queue.get_many(1):
            for job in jobs:
                shown = job.payload["n"] if isinstance(job.payload, dict) else job.payload
                seen.append((job.task or shown, job.attempt))
                job.done()
        clock.ms += 15 * 60_000
    names = [("limited", 1), ("limited", 1), (b"\x00\xff", 1), ("retrying", 2), ("delayed", 1)]
    names += [(name, 1) for name in ("runs", "also runs", "held", "unique", "low")]
    assert sorted(seen, key=repr) == sorted(names, key=repr)
    order = [name for name, _ in seen]
    assert order.index("also runs") < order.index("held")  # of one key
    assert order[-2:] == ["retrying", "delayed"]
    [parked] = other.get_many(9)
    parked.done()
    clock.ms = rule.next_ms
    [nightly] = queue.get_many(9)
    assert nightly.task == "nightly"
    nightly.done()
    assert queue.stats()[:3] == other.stats()[:3] == (0, 0, 0)
    store.close()
    assert [str(one) for one in recovery.check(tmp_path / "store")] == []
