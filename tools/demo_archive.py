"""The demo of the archive: the whole life of an entry, from the stream to a file and back.

The flights of the last quarter stay live, older ones are archived. One question spans both. A
month is restored into another store and compared there, flight by flight. One flight is erased.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

import streamkeep
from streamkeep.format.core.entry import Entry
from streamkeep.tools.base import output

KEY: Final = "archived flights"
ERASED: Final = 1


class Tools(NamedTuple):
    """What the steps of the demo have in common."""

    step: Callable[[str], AbstractContextManager[list[str]]]
    expect: Callable[[str, Any, Any], None]
    ms: Callable[[str], int]  # of a day


def run(
    store: streamkeep.Store[str], flights: list[Any], folder: Path, batch: int, tools: Tools
) -> None:
    """Run the steps on a stream of its own; leave a store with a month in `folder`."""
    step, expect, ms = tools
    october = ms("2013-10-01")
    with step("archive what is older than October") as facts:
        store.set_retention(KEY, archive=True)
        for at in range(0, len(flights), batch):
            part = flights[at : at + batch]
            ids = [f"{flight.ms}-*" for flight in part]
            store.xadd_many(KEY, [flight.fields for flight in part], ids=ids)
        trimmed = store.xtrim(KEY, minid=october, limit=0)
        report = store.archive()
        expect("the entries archived", report.entries, trimmed)
        ratio = report.size_bytes / report.raw_bytes
        facts.append(f"{report.entries:,} entries in {output.size_text(report.size_bytes)}")
        facts.append(f"{ratio:.0%} of the nodes, {report.size_bytes / report.entries:.1f} B each")
    with step("one question, archive and live") as facts:
        wanted = [flight.fields for flight in flights if flight.fields.get("tailnum") == "N725MQ"]
        found = [
            entry.fields for entry in pages(store, batch) if entry.fields.get("tailnum") == "N725MQ"
        ]
        expect("the flights of one aircraft", found, wanted)
        facts.append(f"{len(found)} flights of N725MQ in {store.xlen(KEY) + trimmed:,}")
    with step("restore March into another store") as facts:
        first, last = ms("2013-03-01"), ms("2013-04-01") - 1
        month = [flight.fields for flight in flights if first <= flight.ms <= last]
        with streamkeep.open(folder / "march.store", decode_responses=True) as other:
            done = other.restore_archive("march", KEY, from_store=store, start=first, end=last)
            expect("the entries restored", done.entries, len(month))
            expect("the month", [entry.fields for entry in other.scan("march")], month)
        facts.append(f"{done.entries:,} entries, the same ones")
    with step("erase one flight for ever") as facts:
        doomed = store.xrange(KEY, ms("2013-05-04"), "+", 1, history=True)[0]
        expect("the entries erased", store.erase(KEY, doomed.id), ERASED)
        gone = store.xrange(KEY, doomed.id, doomed.id, history=True)
        expect("what is left of it", gone, [])
        facts.append(f"{doomed.id}: its segment is written anew, and the old file is gone")
    with step("verify the archive") as facts:
        problems = [one for one in store.verify_archive() if one.problems]
        expect("what is wrong", problems, [])
        size = sum(record.size_bytes for record in store.archived_segments())
        facts.append(f"{output.size_text(size)} read to the last byte")


def pages(store: streamkeep.Store[str], count: int) -> Iterator[Entry[str]]:
    """Yield every entry, archived and live ones."""
    position = "-"
    while page := store.xrange(KEY, position, "+", count, history=True):
        yield from page
        position = f"({page[-1].id}"
