"""The part of the demo in which two worker processes share the flights, and one is killed.

A round of a worker is one transaction: it takes the next entries, and finishes those it took the
round before by appending their results and acknowledging them. So a worker has entries pending
for as long as there is work, and whenever it dies, an entry either has its result and is
acknowledged, or neither. What it leaves behind, the other one claims.
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
MIN_IDLE_MS: Final = 500  # a worker that takes longer for a round than this is taken for dead
_PAUSE: Final = 0.02


class Outcome(NamedTuple):
    """What became of the work, as the stream of results and the group tell it."""

    left_behind: int  # entries that the killed worker had pending
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
        _wait_beside(victim)
    survivor.start()
    while store.xlen(RESULTS) < third:
        _wait_beside(victim, survivor)
    victim.kill()  # SIGKILL: it cannot tidy up
    victim.join()
    left_behind = pending_of(store, key, VICTIM)
    survivor.join()
    [group] = store.xinfo_groups(key)
    results = [entry.fields for entry in store.scan(RESULTS)]
    return Outcome(
        left_behind,
        Counter(fields["of"] for fields in results),
        Counter(fields["worker"] for fields in results),
        group["pending"],
        group["lag"],
    )


def _wait_beside(*workers: Any) -> None:
    """Wait a little for workers that are at it."""
    if not all(worker.is_alive() for worker in workers):
        raise SystemExit("demo failed: a worker ended before its work was done, see above")
    time.sleep(_PAUSE)


def pending_of(store: Store, key: str, worker: str) -> int:
    """Return how many entries a worker has pending."""
    found = {one["name"]: one["pending"] for one in store.xpending(key, GROUP)["consumers"]}
    return int(found.get(worker, 0))


# --- a worker -----------------------------------------------------------------------------------


def work(path: str, key: str, name: str, min_idle_ms: int = MIN_IDLE_MS) -> None:
    """Process new entries, then what others left behind, until nothing is pending."""
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
                _, left_behind, _ = txn.xautoclaim(key, GROUP, name, min_idle_ms, count=BATCH)
                finish(txn, key, name, left_behind)
            if not left_behind:
                time.sleep(_PAUSE)


def finish(txn: streamkeep.Transaction[str], key: str, name: str, entries: Sequence[Any]) -> None:
    """Append the results of entries, and acknowledge them.

    Another worker that took this one for dead may have claimed some since: those are left to it.
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
    """Return the speed of a flight in miles per hour; nothing when it never arrived."""
    if "air_time" not in flight:
        return {}
    return {"mph": f"{60 * int(flight['distance']) / int(flight['air_time']):.0f}"}
