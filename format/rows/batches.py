"""Which batch of an application a store has taken last: a row of `meta`, so that none counts twice.

An application that writes in numbered batches, such as a Spark query, may repeat one when it does
not know whether the store has it. The number is set in the transaction that applies the batch. The
row stands under `batch:` and the application's name, by the rule of names (`keys.name_key`).
"""

from __future__ import annotations

from typing import Final

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import name_key
from streamkeep.format.core.layout import Field, Layout

PREFIX: Final = b"batch:"

BATCH_ROW: Final = Layout(
    "batch row",
    (
        Field("batch", "Q", "number of the newest batch that was applied"),
        Field("time_ms", "Q", "when that was, Unix time"),
    ),
)


def batch_key(application: bytes) -> bytes:
    """Return the LMDB key of an application's row in `meta`."""
    return name_key(PREFIX, application)


def encode_batch(batch: int, time_ms: int, application: bytes) -> bytes:
    """Return the body of a row: the layout, then the application's whole name."""
    return BATCH_ROW.struct.pack(batch, time_ms) + application


def decode_batch(body: bytes, db_key: bytes) -> tuple[int, int, bytes]:
    """Return batch, time and application of a row; raise CorruptionError."""
    where = "meta batch row"
    if len(body) < BATCH_ROW.size:
        raise CorruptionError(where, f"{len(body)} bytes, at least {BATCH_ROW.size} expected")
    batch, time_ms = BATCH_ROW.struct.unpack_from(body)
    application = body[BATCH_ROW.size :]
    if batch_key(application) != db_key:
        raise CorruptionError(where, f"it is of application {application!r}, its key of another")
    return batch, time_ms, application
