"""Types of facade.py, made from the sources: `make docs`."""

from pathlib import Path
from typing import Literal, overload

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.crash_recovery.state import WayName
from streamkeep.engine.system.modes import Group
from streamkeep.engine.system.owners import Trusted

@overload
def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    read_durable: bool = False,
    force_recovery: WayName | None = None,
    create: bool = True,
    decode_responses: Literal[False] = False,
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
    archive_every: float | None = None,
    retired_max_bytes: int | None = None,
    trust_owners: Trusted = (),
    mode: int | None = None,
    group: Group | None = None,
    lease: bool = True,
) -> Store[bytes]: ...
@overload
def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    read_durable: bool = False,
    force_recovery: WayName | None = None,
    create: bool = True,
    decode_responses: Literal[True],
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
    archive_every: float | None = None,
    retired_max_bytes: int | None = None,
    trust_owners: Trusted = (),
    mode: int | None = None,
    group: Group | None = None,
    lease: bool = True,
) -> Store[str]: ...
@overload
def open(
    path: str | Path,
    *,
    sync: Sync = "commit",
    interval_ms: int = 1000,
    readonly: bool = False,
    read_durable: bool = False,
    force_recovery: WayName | None = None,
    create: bool = True,
    decode_responses: bool,
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    node_max_bytes: int | None = None,
    node_max_entries: int | None = None,
    archive_every: float | None = None,
    retired_max_bytes: int | None = None,
    trust_owners: Trusted = (),
    mode: int | None = None,
    group: Group | None = None,
    lease: bool = True,
) -> Store[bytes] | Store[str]: ...
