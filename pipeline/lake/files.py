"""The files of a lake: their names, partitions and ranges, for the driver and for executors.

The files of a partition are in `stream=<key>/date=<day>/`. Their names contain the first and the
last ID and a checksum of the file.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Final

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import StreamkeepError

PARTITIONS: Final = ("stream", "date")  # of the lake of one store
FLEET_PARTITIONS: Final = ("store", *PARTITIONS)  # of the lake of a fleet
LAST_MS: Final = 253_402_300_799_999  # the end of 9999, the last year of ISO 8601
_DAY_MS: Final = 86_400_000
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"[\x00-\x1f\"#%'*/:=?\\\x7f{}\[\]^]")
_FILE_NAME: Final = re.compile(
    r"(\d{1,20}-\d{1,20})_(\d{1,20}-\d{1,20})\.([0-9a-f]{16})\.[0-9a-f]{8}\.parquet"
)


class LakeError(StreamkeepError):
    """A lake cannot be opened, or cannot hold some data."""


class LakeConflictError(LakeError):
    """Another job committed to the lake first; the files of this one are not valid."""


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One Parquet file of a lake.

    Attributes:
        path: relative to the lake, as on disk.
        entries: the number of rows.
        first, last: the lowest and the highest ID.
        store: UUID of the store, in the lake of a fleet; otherwise "".
    """

    path: str
    key: bytes
    date: str | None
    entries: int
    size_bytes: int
    first: StreamId
    last: StreamId
    store: str = ""

    def as_json(self) -> str:
        """Return the file as text, which a worker sends to the driver."""
        key = self.key.hex()
        ids = (str(self.first), str(self.last))
        facts = [self.path, key, self.date, self.entries, self.size_bytes, *ids, self.store]
        return json.dumps(facts)

    @classmethod
    def from_json(cls, text: str) -> LakeFile:
        """Return the file from the text of `as_json`."""
        path, key, day, entries, size, first, last, store = json.loads(text)
        ids = (StreamId.parse(first), StreamId.parse(last))
        return cls(path, bytes.fromhex(key), day, entries, size, *ids, store)


# --- names ----------------------------------------------------------------------------------------


def day_of(ms: int) -> str | None:
    """Return the day of an ID, `2024-06-10`; None after the year 9999."""
    if ms > LAST_MS:
        return None
    return str(date.fromordinal(date(1970, 1, 1).toordinal() + ms // _DAY_MS))


def partition_name(key: bytes) -> str:
    """Return a key as the value of the partition column `stream`."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise LakeError(
            f"the key {key!r} cannot name a partition of a lake, which takes UTF-8 that is not "
            "empty; next: rename the stream, or restore it under another key first"
        )
    return text


def folder_of(key: bytes, day: str | None, store: str = "") -> str:
    """Return the folder of a partition, with the escapes of Hive and Spark."""
    return f"{stream_folder(key, store)}/date={day or _NO_VALUE}"


def stream_folder(key: bytes, store: str = "") -> str:
    """Return the folder of all partitions of a stream."""
    escaped = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", partition_name(key))
    return f"store={store}/stream={escaped}" if store else f"stream={escaped}"


def new_path(
    key: bytes, day: str | None, first: StreamId, last: StreamId, checksum: str, store: str = ""
) -> str:
    """Return a unique path for a new file.

    Args:
        checksum: XXH3-64 of the file, 16 hexadecimal digits.
    """
    own = secrets.token_hex(4)
    return f"{folder_of(key, day, store)}/{first}_{last}.{checksum}.{own}.parquet"


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
