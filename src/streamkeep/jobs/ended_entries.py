"""Entries of jobs that have ended, and are still in their streams.

The end of a job acknowledges its entry. To delete the entry as well would rewrite its node, and so
up to a hundred entries, for each job. So a process remembers what it has acknowledged, and deletes
many entries at a time: when it takes jobs and has 64 of them, and when it finds no job to take.
What a killed process leaves is deleted when the next process begins to use the queue.

The memory of a process is only a hint. Nothing is deleted that is pending or was not delivered, as
by XDELEX with ACKED. So it may be wrong, such as after an end that was undone with its transaction.
Compiled by mypyc.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from streamkeep.engine.commands.xack import delete_acknowledged
from streamkeep.format.core.id_codec import Id
from streamkeep.jobs.layout import GROUP, PAYLOAD, Fields, Place, place_of
from streamkeep.jobs.state import Step, delivered_up_to

AT_ONCE: Final = 64
_MOST_BYTES: Final = 256 << 10  # of payloads that wait for their deletion
_LOOKED_AT: Final = 1000


class EndedEntries:
    """What one process has acknowledged and not deleted yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: list[Place] = []
        self._bytes = 0

    def note(self, ended: Iterable[tuple[Place, Fields]]) -> None:
        with self._lock:
            for place, fields in ended:
                self._places.append(place)
                self._bytes += len(fields.get(PAYLOAD, b""))

    def are_there(self) -> bool:
        return bool(self._places)

    def delete(self, step: Step, *, idle: bool) -> None:
        """Delete them, if there are enough, or the process has nothing else to do.

        A transaction that fails leaves them to the next process.
        """
        if not self._places or not (
            idle or len(self._places) >= AT_ONCE or self._bytes >= _MOST_BYTES
        ):
            return
        with self._lock:
            places, self._places, self._bytes = self._places, [], 0
        by_stream: dict[int, list[Id]] = {}
        for place in places:
            by_stream.setdefault(place.priority, []).append((place.ms, place.seq))
        for priority, ids in by_stream.items():
            delete_acknowledged(step.writer(), step.stream(priority), ids)


def find_ended_entries(step: Step) -> list[Place]:
    """Return entries that killed processes have left: those before all that is pending or waits."""
    found: list[Place] = []
    for priority in step.settings.streams:
        name = step.stream(priority)
        lowest = step.txn.xpending(name, GROUP)["min"]
        end = b"(" + lowest if lowest else delivered_up_to(step.txn, name)
        start = b"-"
        while entries := step.txn.xrange(name, start, end, _LOOKED_AT):
            found += [place_of(priority, bytes(one.id)) for one in entries]
            start = b"(" + bytes(entries[-1].id)
    return found
