"""The archive in the demo: entries go from the stream to segment files and back.

The newest flights stay live, and older ones are archived. One query reads both. A
month is restored into another store and compared there. One flight is erased.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import streamkeep
from flight_data import Flight, Part, day_ms
from reporting import expect, step
from streamkeep.format.core.entry import Entry
from streamkeep.format.humanize import size_text

KEY: Final = "archived flights"
ERASED: Final = 1


def run(
    store: streamkeep.Store[str], flights: list[Flight], folder: Path, batch: int, part: Part
) -> None:
    """Run the steps on a separate stream; leave a store with a restored month in `folder`."""
    with step(f"archive what is before {part.archived}") as facts:
        store.set_retention(KEY, archive=True)
        for at in range(0, len(flights), batch):
            some = flights[at : at + batch]
            ids = [f"{flight.ms}-*" for flight in some]
            store.xadd_many(KEY, [flight.fields for flight in some], ids=ids)
        trimmed = store.xtrim(KEY, minid=day_ms(part.archived), limit=0)
        report = store.archive()
        expect("the entries archived", report.entries, trimmed)
        ratio = report.size_bytes / report.raw_bytes
        facts.append(f"{report.entries:,} entries in {size_text(report.size_bytes)}")
        facts.append(f"{ratio:.0%} of the nodes, {report.size_bytes / report.entries:.1f} B each")
    with step("one question, archive and live") as facts:
        wanted = [flight.fields for flight in flights if flight.fields.get("tailnum") == "N725MQ"]
        found = [
            entry.fields for entry in pages(store, batch) if entry.fields.get("tailnum") == "N725MQ"
        ]
        expect("the flights of one aircraft", found, wanted)
        facts.append(f"{len(found)} flights of N725MQ in {store.xlen(KEY) + trimmed:,}")
    with step(f"restore {part.month[0]} and on elsewhere") as facts:
        first, last = day_ms(part.month[0]), day_ms(part.month[1]) - 1
        month = [flight.fields for flight in flights if first <= flight.ms <= last]
        with streamkeep.open(folder / "month.store", decode_responses=True) as other:
            done = other.restore_archive("month", KEY, from_store=store, start=first, end=last)
            expect("the entries restored", done.entries, len(month))
            expect("the month", [entry.fields for entry in other.scan("month")], month)
        facts.append(f"{done.entries:,} entries, the same ones")
    with step("erase one flight for good") as facts:
        doomed = store.xrange(KEY, day_ms(part.erased), "+", 1, history=True)[0]
        expect("the entries erased", store.erase(KEY, doomed.id), ERASED)
        gone = store.xrange(KEY, doomed.id, doomed.id, history=True)
        expect("what is left of it", gone, [])
        facts.append(f"{doomed.id}: its segment was rewritten, and the old file removed")
    with step("verify the archive") as facts:
        problems = [one for one in store.verify_archive() if one.problems]
        expect("what is wrong", problems, [])
        size = sum(record.size_bytes for record in store.archived_segments())
        facts.append(f"{size_text(size)} read to the last byte")


def pages(store: streamkeep.Store[str], count: int) -> Iterator[Entry[str]]:
    """Yield every entry, archived or live."""
    position = "-"
    while page := store.xrange(KEY, position, "+", count, history=True):
        yield from page
        position = f"({page[-1].id}"
