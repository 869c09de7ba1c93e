"""The files of a lake: their names, partitions and ranges, for the driver and for executors.

The files of a partition are in `bucket=<hash>/date=<day>/`. The bucket is a hash of the store, the
stream's number in it, and its key, so that any key of any length has a folder; the files have the
three as columns. The name of a file contains the first and the last ID and a checksum. Files of
other programs, such as those that Delta's OPTIMIZE writes, have other names.

A lake has IDs as two signed numbers, and IDs are unsigned. A half from 2^63 on has the same 64 bits
as a negative number: `ms` + 2^64. Entries keep the order of their unsigned IDs.
"""

from __future__ import annotations

import random
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import Any, Final, NamedTuple

import xxhash

from streamkeep.arrow.keys import key_text
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.storage.numbered import NumberedFiles

PARTITIONS: Final = ("bucket", "date")
ORIGIN: Final = ("store", "stream", "incarnation")
LAST_MS: Final = 253_402_300_799_999  # the end of 9999, the last year of ISO 8601
_DAY_MS: Final = 86_400_000
MOST_CONFLICTS: Final = 1000  # more means a defect: an error is better than a job without end
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.0
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_FILE_NAME: Final = re.compile(
    r"(\d{1,20}-\d{1,20})_(\d{1,20}-\d{1,20})\.([0-9a-f]{16})\.[0-9a-f]{8}\.parquet"
)


class LakeError(StreamkeepError):
    """A lake cannot be opened, or cannot hold some data."""


class NoSuchLakeError(LakeError):
    """There is no lake at the place that was named."""


def wait_after(conflicts: int) -> None:
    """Back off before the next try; `conflicts` counts the failed ones.

    Of simultaneous commits at least one succeeds, so all jobs get through in the end. The time is
    random, and longer after each conflict, so that many jobs do not meet again.
    """
    longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** min(conflicts, 10))
    time.sleep(random.uniform(0, longest))


def attempts(lake: str) -> Iterator[None]:
    """Yield for each try of a commit, with waits in between; raise LakeConflictError at the end."""
    for conflicts in range(MOST_CONFLICTS):
        yield
        wait_after(conflicts)
    raise LakeConflictError(f"{lake}: other jobs committed first, every time")


class LakeConflictError(LakeError):
    """Another job committed to the lake first; the files of this one are not valid."""


@dataclass(frozen=True, order=True)
class Origin:
    """The stream that entries come from.

    Attributes:
        store: UUID of its store.
        number: of the stream in its store: a stream that was deleted and created again has another,
            and one that was renamed keeps it.
    """

    store: str
    number: int
    key: bytes

    @property
    def stream(self) -> tuple[str, int]:
        """What stays the same when the key changes."""
        return self.store, self.number

    @cached_property
    def bucket(self) -> str:
        digest = xxhash.xxh3_64(self.store.encode())
        digest.update(self.number.to_bytes(8, "big"))
        digest.update(self.key)
        return digest.hexdigest()

    def __str__(self) -> str:
        return f"stream {key_text(self.key)!r} (number {self.number} of store {self.store})"


class Statistics(NamedTuple):
    """What the log of the table says of one column of a file, by which readers skip files.

    `low` and `high` are bounds of its values, and `nulls` the number of rows without one; None for
    what the log does not say.
    """

    low: Any
    high: Any
    nulls: int | None


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One Parquet file of a lake.

    Attributes:
        path: relative to the lake, as on disk.
        entries: the number of rows.
        first, last: the lowest and the highest ID.
    """

    path: str
    origin: Origin
    date: str | None
    entries: int
    size_bytes: int
    first: StreamId
    last: StreamId

    @property
    def store(self) -> str:
        return self.origin.store

    @property
    def foreign(self) -> bool:
        """Whether another program wrote it: its checksum is unknown, and IDs may be unordered."""
        return checksum_of_path(self.path) is None


def day_of(ms: int) -> str | None:
    if ms > LAST_MS:
        return None
    return str(date.fromordinal(date(1970, 1, 1).toordinal() + ms // _DAY_MS))


def folder_of(origin: Origin, day: str | None) -> str:
    return f"{stream_folder(origin)}/date={day or _NO_VALUE}"


def stream_folder(origin: Origin) -> str:
    return f"bucket={origin.bucket}"


def new_path(
    origin: Origin, day: str | None, first: StreamId, last: StreamId, checksum: str
) -> str:
    """Return a unique path for a new file.

    Args:
        checksum: XXH3-64 of the file, 16 hexadecimal digits.
    """
    own = secrets.token_hex(4)
    return f"{folder_of(origin, day)}/{first}_{last}.{checksum}.{own}.parquet"


def checksum_of_path(path: str) -> str | None:
    """Return the checksum in the name of a file; None for a file of another program."""
    found = _FILE_NAME.fullmatch(path.rsplit("/", 1)[-1])
    return None if found is None else found[3]


def ids_of_path(path: str) -> tuple[StreamId, StreamId] | None:
    """Return the first and the last ID in the name of a file; None for one of another program."""
    found = _FILE_NAME.fullmatch(path.rsplit("/", 1)[-1])
    return None if found is None else (StreamId.parse(found[1]), StreamId.parse(found[2]))


def ids_within(ids: Iterable[StreamId], first: StreamId, last: StreamId) -> tuple[StreamId, ...]:
    """Return the IDs that a file from `first` to `last` may hold."""
    return tuple(one for one in ids if first <= one <= last)


def signed(number: int) -> int:
    """Return one half of an ID as a lake has it."""
    return number - (1 << 64) if number >> 63 else number


def unsigned(number: int) -> int:
    """Return one half of an ID from the number that a lake has."""
    return number + (1 << 64) if number < 0 else number


# --- erased entries -------------------------------------------------------------------------------
#
# The IDs that were erased from a lake, so that no job copies one of them into it again.
#
# `_erased/<store>/<version>.json` has the IDs of a store's streams (`storage.numbered`); the
# application `streamkeep/erased/<store>` names it. An erasure commits it together with the files
# from which it took the entries, and adds the IDs that the lake did not have yet, too. Without it,
# an entry that was erased from the lake alone would come back with a segment that the store adopts
# later. The list is never shortened.

ERASED: Final = NumberedFiles("_erased", "streamkeep/erased", "which entries were erased")

Erased = Mapping[int, tuple[StreamId, ...]]  # by the number of the stream, ascending


def read_erased(lake: str, store: str, version: int | None) -> Erased:
    """Return the erased IDs of a version; nothing for None.

    Raises:
        CorruptionError: the file is missing or damaged.
    """
    if version is None:
        return {}
    return ERASED.read(
        lake,
        store,
        version,
        lambda value: {int(n): tuple(map(StreamId.parse, ids)) for n, ids in value.items()},
    )


def write_erased(lake: str, store: str, version: int, erased: Erased) -> None:
    """Write the erased IDs of a version, before the commit that names it."""
    ERASED.write(lake, store, version, {n: [str(one) for one in erased[n]] for n in erased})


def with_ids(erased: Erased, numbers: Iterable[int], ids: Iterable[StreamId]) -> Erased:
    """Return the list with more IDs of some streams."""
    wanted = set(ids)
    added = {n: tuple(sorted(wanted.union(erased.get(n, ())))) for n in numbers}
    return {**erased, **added}
