"""A consumer group in the demo: two worker processes share the flights, and one is killed.

Each round of a worker is one transaction. It reads the next entries, appends the results of the
entries from the round before, and acknowledges those. So a worker always has entries pending while
there is work, and an entry has both its result and its acknowledgement, or neither, whenever the
worker dies. The other worker claims what the killed one left pending.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import streamkeep

Store = streamkeep.Store[str]

RESULTS: Final = "speeds"
GROUP: Final = "speed"
VICTIM: Final = "ann"
SURVIVOR: Final = "bob"
BATCH: Final = 1000
MIN_IDLE_MS: Final = 500  # other workers treat one that takes longer for a round as dead
_PAUSE: Final = 0.02


class Outcome(NamedTuple):
    """The result of the work, read from the stream of results and the group."""

    left_pending: int  # entries that the killed worker had pending
    flights: Counter[str]  # results by ID of the flight
    workers: Counter[str]  # results by worker
    pending: int
    lag: int | None


def share_work(store: Store, key: str) -> Outcome:
    """Process all entries of a stream with two workers; kill one when a third is done."""
    store.xgroup_create(key, GROUP, id=0)
    spawn = multiprocessing.get_context("spawn")
    arguments = {name: (str(store.path), key, name) for name in (VICTIM, SURVIVOR)}
    victim, survivor = (
        spawn.Process(target=work, args=arguments[name], daemon=True) for name in arguments
    )
    third = store.xlen(key) // 3
    victim.start()
    while not pending_of(store, key, VICTIM):
        _wait_for(victim)
    survivor.start()
    while store.xlen(RESULTS) < third:
        _wait_for(victim, survivor)
    victim.kill()  # SIGKILL: it cannot clean up
    victim.join()
    left_pending = pending_of(store, key, VICTIM)
    survivor.join()
    [group] = store.xinfo_groups(key)
    results = [entry.fields for entry in store.scan(RESULTS)]
    return Outcome(
        left_pending,
        Counter(fields["of"] for fields in results),
        Counter(fields["worker"] for fields in results),
        group["pending"],
        group["lag"],
    )


def _wait_for(*workers: Any) -> None:
    """Wait a moment, or stop the demo when a worker has ended too early."""
    if not all(worker.is_alive() for worker in workers):
        raise SystemExit("demo failed: a worker ended before its work was done; its error is above")
    time.sleep(_PAUSE)


def pending_of(store: Store, key: str, worker: str) -> int:
    """Return how many entries a worker has pending."""
    found = {one["name"]: one["pending"] for one in store.xpending(key, GROUP)["consumers"]}
    return int(found.get(worker, 0))


# --- a worker -----------------------------------------------------------------------------------


def work(path: str, key: str, name: str, min_idle_ms: int = MIN_IDLE_MS) -> None:
    """Process new entries, then the pending ones of other workers, until none is pending."""
    with streamkeep.open(path, decode_responses=True) as store:
        held: Sequence[Any] = ()
        while True:
            with store.transaction() as txn:
                found = txn.xreadgroup(GROUP, name, {key: ">"}, count=BATCH)
                finish(txn, key, name, held)
            if not found:
                break
            [[_, held]] = found
        while store.xpending(key, GROUP)["pending"]:
            with store.transaction() as txn:
                _, left_pending, _ = txn.xautoclaim(key, GROUP, name, min_idle_ms, count=BATCH)
                finish(txn, key, name, left_pending)
            if not left_pending:
                time.sleep(_PAUSE)


def finish(txn: streamkeep.Transaction[str], key: str, name: str, entries: Sequence[Any]) -> None:
    """Append the results of entries, and acknowledge them.

    Another worker may have claimed some of them since, taking this one for dead. It keeps them.
    """
    if not entries:
        return
    span = (entries[0].id, entries[-1].id)
    mine = {row["message_id"] for row in txn.xpending_range(key, GROUP, *span, len(entries), name)}
    held = {entry.id: entry.fields for entry in entries if entry.id in mine}
    if held:
        txn.xack(key, GROUP, *held)
        results = [
            {"of": entry_id, "worker": name, **speed(fields)} for entry_id, fields in held.items()
        ]
        txn.xadd_many(RESULTS, results)


def speed(flight: dict[str, str]) -> dict[str, str]:
    """Return the speed of a flight in miles per hour; nothing if it never arrived."""
    if "air_time" not in flight:
        return {}
    return {"mph": f"{60 * int(flight['distance']) / int(flight['air_time']):.0f}"}
