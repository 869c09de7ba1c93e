"""The IDs that were erased from a lake, so that no job copies one of them into it again.

`_erased/<store>/<version>.json` has the IDs of a store's streams (`storage.numbered`); the
application `streamkeep/erased/<store>` names it. An erasure commits it together with the files
from which it took the entries, and adds the IDs that the lake did not have yet, too. Without it, an
entry that was erased from the lake alone would come back with a segment that the store adopts
later. The list is never shortened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from streamkeep.format.core.entry import StreamId
from streamkeep.pipeline.storage.numbered import NumberedFiles

ERASED: Final = NumberedFiles("_erased", "streamkeep/erased", "which entries were erased")

Erased = Mapping[int, tuple[StreamId, ...]]  # by the number of the stream, ascending


def read_erased(lake: str, store: str, version: int | None) -> Erased:
    """Return the erased IDs of a version; nothing for None.

    Raises:
        CorruptionError: the file is missing or damaged.
    """
    if version is None:
        return {}
    return ERASED.read(lake, store, version, _parsed)


def write_erased(lake: str, store: str, version: int, erased: Erased) -> None:
    """Write the erased IDs of a version, before the commit that names it."""
    ERASED.write(lake, store, version, {n: [str(one) for one in erased[n]] for n in erased})


def _parsed(value: Any) -> Erased:
    return {int(number): tuple(map(StreamId.parse, ids)) for number, ids in value.items()}


def with_ids(erased: Erased, numbers: Iterable[int], ids: Iterable[StreamId]) -> Erased:
    """Return the list with more IDs of some streams."""
    wanted = set(ids)
    added = {n: tuple(sorted(wanted.union(erased.get(n, ())))) for n in numbers}
    return {**erased, **added}
