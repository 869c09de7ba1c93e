"""Exactly once for those who repeat: the newest batch of each application (`format/batches`)."""

from __future__ import annotations

from streamkeep.engine.txn import Txn, WriteTxn
from streamkeep.format.batches import batch_key, decode_batch, encode_batch
from streamkeep.format.keys import META


def newest_batch(txn: Txn, application: bytes) -> int | None:
    """Return the number of the newest batch of an application; None before its first."""
    db_key = batch_key(application)
    body = txn.get_row(META, db_key, "meta batch row")
    return None if body is None else decode_batch(body, db_key)[0]


def note_batch(txn: WriteTxn, application: bytes, batch: int) -> None:
    """Note that this transaction applies a batch."""
    txn.put_row(META, batch_key(application), encode_batch(batch, txn.now_ms(), application))
