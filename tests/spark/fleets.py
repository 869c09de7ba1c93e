"""Stores with equal keys and IDs, for tests of fleets, and what their lake has."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamkeep
from spark.in_process import LOCAL
from spark.lakes import rows_in
from streamkeep.engine.api.store import Store
from streamkeep.pipeline.distribution.units import Report
from streamkeep.pipeline.jobs.audit import audit
from streamkeep.pipeline.jobs.to_lake import to_lake
from streamkeep.pipeline.lake.lake import Lake

IDS: Final = [f"{1_717_200_000_000 + number}-0" for number in range(500)]
LAST: Final = "1817200000000-0"  # of an entry that comes later


def make(path: Path, tag: str) -> Store:
    """Make a store whose keys and IDs are those of all others here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store = streamkeep.open(path)
    store.set_retention("orders", archive=True)
    store.xadd_many("orders", [{"of": tag, "n": str(number)} for number in range(500)], ids=IDS)
    return store


def published(path: Path, tag: str, fleet: str) -> str:
    """Make a store that is archived to a fleet, in part sealed; return its UUID."""
    with make(path, tag) as store:
        store.xtrim("orders", maxlen=150, approximate=False)
        store.archive(to=fleet, name=tag, seal=True)
        return store.uuid


def rows_of(lake: str) -> list[tuple[str, str, str]]:
    """Return store, tag and ID of all rows, sorted."""
    return sorted(
        (file.store, row["fields"][0]["value"].decode(), f"{row['ms']}-{row['seq']}")
        for file, row in rows_in(Lake.open(lake), ["ms", "seq", "fields"])
    )


def copy(fleet: object, lake: str) -> Report:
    """Run the job, with tasks in this process."""
    return to_lake(LOCAL, str(fleet), lake, fleet=True)


def problems(fleet: object, lake: str) -> list[str]:
    return audit(LOCAL, lake=lake, fleet=str(fleet)).problems


def expected(*stores: tuple[str, str]) -> list[tuple[str, str, str]]:
    return sorted((uuid, tag, one) for uuid, tag in stores for one in IDS)
