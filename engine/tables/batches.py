"""The newest batch of each application, so that a writer that repeats a batch writes it only once.

See `format/rows/batches`.
"""

from __future__ import annotations

from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.keys import META
from streamkeep.format.rows.batches import batch_key, decode_batch, encode_batch


def newest_batch(txn: Txn, application: bytes) -> int | None:
    """Return the number of the newest batch of an application; None before its first one."""
    db_key = batch_key(application)
    body = txn.get_row(META, db_key, "meta batch row")
    return None if body is None else decode_batch(body, db_key)[0]


def note_batch(txn: WriteTxn, application: bytes, batch: int) -> None:
    txn.put_row(META, batch_key(application), encode_batch(batch, txn.now_ms(), application))
