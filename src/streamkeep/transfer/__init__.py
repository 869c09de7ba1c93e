"""Dumps and loads: streams of a store in files of every format and back; diffs, bytes inspected.

Rooms: `dumping` writes files, `loading` reads them, `aof` applies the commands of Redis's
append-only files. Callers use the names below, which `dump_file`, `load_file`, `inspection` and
`describe` define. May import `commands`, `arrow`, `engine` and `format`; not click, nor `tools`.

    >>> from streamkeep import transfer
    >>> transfer.dump("orders.store", "orders.parquet")
    >>> transfer.load("copy.store", "orders.parquet")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamkeep.format.core.times import parse_time
    from streamkeep.transfer.describe import Piece
    from streamkeep.transfer.differences import Difference, diff
    from streamkeep.transfer.dump_file import REDIS_VERSIONS, DumpReport, dump
    from streamkeep.transfer.formats import DUMP_FORMATS, LOAD_FORMATS, DumpFormat, LoadFormat
    from streamkeep.transfer.inspection import (
        TABLE_NAMES,
        Heading,
        Slot,
        inspect_checkpoints,
        inspect_group,
        inspect_journal,
        inspect_node,
        inspect_segment,
        inspect_table,
    )
    from streamkeep.transfer.load_file import LoadReport, load
    from streamkeep.transfer.stores import Progress

_HOMES = {
    "streamkeep.format.core.times": "parse_time",
    "streamkeep.transfer.describe": "Piece",
    "streamkeep.transfer.differences": "Difference diff",
    "streamkeep.transfer.dump_file": "REDIS_VERSIONS DumpReport dump",
    "streamkeep.transfer.formats": "DUMP_FORMATS LOAD_FORMATS DumpFormat LoadFormat",
    "streamkeep.transfer.inspection": (
        "TABLE_NAMES Heading Slot inspect_checkpoints inspect_group inspect_journal "
        "inspect_node inspect_segment inspect_table"
    ),
    "streamkeep.transfer.load_file": "LoadReport load",
    "streamkeep.transfer.stores": "Progress",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "DUMP_FORMATS",
    "LOAD_FORMATS",
    "REDIS_VERSIONS",
    "TABLE_NAMES",
    "Difference",
    "DumpFormat",
    "DumpReport",
    "Heading",
    "LoadFormat",
    "LoadReport",
    "Piece",
    "Progress",
    "Slot",
    "diff",
    "dump",
    "inspect_checkpoints",
    "inspect_group",
    "inspect_journal",
    "inspect_node",
    "inspect_segment",
    "inspect_table",
    "load",
    "parse_time",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'streamkeep.transfer' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
