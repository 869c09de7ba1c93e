"""Which batch this is: names and numbers under which a store notes batches. Runs on the driver.

**A streaming query.** The text of `checkpointLocation` does not identify it: two programs may both
write `checkpoint`, from different folders, and a deleted checkpoint is made again under the same
name. In both cases the batches begin at 0 again, and would be taken for batches that were already
applied. Spark gives every new checkpoint a random ID, in its file `metadata`, before the first
batch.

Nor does its number alone identify a batch: a checkpoint that was put back from a copy plans a batch
of the same number again, with other entries. Spark writes the plan of a batch into
`offsets/NUMBER`, with the time, before the batch runs, and never again. So a batch that is repeated
has the same file, and one that was planned again has another.

**A batch job** is identified by its `txnAppId`, and each of its streams by itself: a job that
writes two streams, one after the other, uses one `txnVersion` for both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from streamkeep.engine.commands.rows import newest_batch, note_batch
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.storage.places import located, read_bytes


class BatchError(StreamkeepError):
    """A batch of a query cannot be told from batches that another query has written."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a streaming query.

    Attributes:
        query: the ID that Spark gave the checkpoint when it made it.
        number: of the batch, from 0 on without gaps.
        plan: a checksum of what the checkpoint says of the batch.
    """

    query: str
    number: int
    plan: int


def find_batch(checkpoint: str, number: int) -> Batch:
    """Return a batch as its checkpoint describes it.

    Args:
        checkpoint: path or URI; a relative path starts at the folder of the driver.

    Raises:
        BatchError: the checkpoint cannot be read from here.
    """
    place = located(checkpoint)
    name = "metadata"
    try:
        metadata = json.loads(read_bytes(place, name))
        query = str(metadata["id"])
        name = f"offsets/{number}"
        return Batch(query, number, xxhash.xxh3_64_intdigest(read_bytes(place, name)))
    except (OSError, ValueError, KeyError, TypeError, StreamkeepError) as error:
        raise BatchError(
            f"{place}: the checkpoint's file {name!r}, which identifies the batch, cannot be "
            f"read ({error}); next: use a checkpoint that the driver reaches under this path or URI"
        ) from error


def is_new(txn: WriteTxn, batch: Batch, application: str | None, key: bytes | None) -> bool:
    """Record that this transaction applies a batch of a streaming query.

    Args:
        application: the option `txnAppId`; None for the checkpoint alone.
        key: the option `stream`; None if each row has its key.

    Returns:
        False if the same query has applied the batch before, so that it must not be applied again.

    Raises:
        BatchError: another query has written under this name, or the checkpoint or the store is
            older than the other one. Nothing was changed.
    """
    of_query = (application or "").encode(), batch.query.encode()
    own, plan = _name(b"query", *of_query), _name(b"plan", *of_query)
    before = newest_batch(txn, own)
    if before is not None and batch.number <= before:
        if batch.number == before and newest_batch(txn, plan) == batch.plan:
            return False
        other = " with another plan of it" if batch.number == before else ""
        raise BatchError(
            f"batch {batch.number} comes again, but this checkpoint has written up to batch "
            f"{before}{other}: it was set back, perhaps from a copy. What it would write now may "
            "differ from what it wrote then; next: continue with the newest state of the "
            "checkpoint, or begin with a new checkpoint and startingOffsets after the last entry "
            "that was written"
        )
    name = None
    if application is not None:
        target = b"" if key is None else b"stream/" + key
        name = _name(b"application", application.encode(), target)
        others = newest_batch(txn, name)
        if before is None and others is not None:
            raise BatchError(
                f"txnAppId {application!r} has written up to batch {others} with another "
                f"checkpoint, and this checkpoint begins with batch {batch.number}, so batches "
                "could be taken for those and be lost; next: use the former checkpoint, or another "
                "txnAppId"
            )
    expected = 0 if before is None else before + 1
    if batch.number != expected:
        has = "no batch" if before is None else f"batches up to {before}"
        raise BatchError(
            f"batch {batch.number} comes, but this store has {has} of this query, so those from "
            f"{expected} to {batch.number - 1} are missing: another store was put in its place, "
            "perhaps an older copy; next: put back the newest state of the store, or begin with a "
            "new checkpoint and startingOffsets after the last entry that this store has"
        )
    if name is not None:
        note_batch(txn, name, batch.number)
    note_batch(txn, own, batch.number)
    note_batch(txn, plan, batch.plan)
    return True


def new_streams(txn: WriteTxn, version: int, application: str, keys: Iterable[bytes]) -> set[bytes]:
    """Record that this transaction applies a version of a batch job.

    Returns:
        The streams to which the job has not written this version, nor a higher one.
    """
    new = set()
    for key in keys:
        name = _name(b"job", application.encode(), key)
        newest = newest_batch(txn, name)
        if newest is None or version > newest:
            note_batch(txn, name, version)
            new.add(key)
    return new


def _name(*parts: bytes) -> bytes:
    """Return a name of some parts; no other parts have the same."""
    return b"".join(b"%d:%b," % (len(part), part) for part in parts)
