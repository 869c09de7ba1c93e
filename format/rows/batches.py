"""Rows of `meta` with the last batch that an application applied, so that none is applied twice.

An application that writes in numbered batches, such as a Spark query, repeats a batch if it does
not know whether it was stored. The transaction that applies a batch also stores its number, and for
a query, under another name, a checksum of what Spark had planned for it (`pipeline/sink/identity`).
The key of the row is `batch:` and the application's name (`keys.name_key`).
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
        Field("batch", "Q", "number of the newest batch, or a checksum of its plan"),
        Field("time_ms", "Q", "Unix time at which it was applied"),
    ),
)


def batch_key(application: bytes) -> bytes:
    return name_key(PREFIX, application)


def encode_batch(batch: int, time_ms: int, application: bytes) -> bytes:
    """Return the body of a row: the layout, then the application's whole name."""
    return BATCH_ROW.struct.pack(batch, time_ms) + application


def decode_batch(body: bytes, db_key: bytes) -> tuple[int, int, bytes]:
    """Return batch, time and application of a row; raise CorruptionError."""
    where = "meta batch row"
    batch, time_ms = BATCH_ROW.unpack(body, where, more=True)
    application = body[BATCH_ROW.size :]
    if batch_key(application) != db_key:
        problem = f"the row names application {application!r}, its key another one"
        raise CorruptionError(where, problem)
    return batch, time_ms, application
