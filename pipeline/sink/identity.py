"""Which query writes: the identity that Spark keeps inside of a checkpoint. Runs on the driver.

The text of `checkpointLocation` does not identify a query: two programs may both write
`checkpoint`, from different folders, and a deleted checkpoint is made again under the same name. In
both cases the batches begin at 0 again, and would be taken for batches that were already applied.
Spark gives every new checkpoint a random ID, in its file `metadata`, before the first batch.
"""

from __future__ import annotations

import json

from streamkeep.engine.tables.batches import newest_batch, note_batch
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.storage.places import file_system, located, reaching


class BatchError(StreamkeepError):
    """A batch of a query cannot be told from batches that another query has written."""


def checkpoint_id(checkpoint: str) -> str:
    """Return the ID that Spark gave a checkpoint when it made it.

    Args:
        checkpoint: path or URI; a relative path starts at the folder of the driver.

    Raises:
        BatchError: the checkpoint cannot be read from here.
    """
    place = located(checkpoint)
    system, path = file_system(place)
    try:
        with (
            reaching(place),
            system.open_input_stream(f"{path}/metadata") as file,
        ):
            return str(json.loads(file.read())["id"])
    except (OSError, ValueError, KeyError, StreamkeepError) as error:
        raise BatchError(
            f"{place}: the checkpoint's file 'metadata', which identifies the query, cannot be "
            f"read ({error}); next: use a checkpoint that the driver reaches under this path or URI"
        ) from error


def note_once(txn: WriteTxn, batch: int, application: str | None, checkpoint: str) -> bool:
    """Record that this transaction applies a batch of a streaming query.

    Args:
        application: the option `txnAppId`; None for the checkpoint alone.
        checkpoint: the result of `checkpoint_id`.

    Returns:
        False if the same query has applied the batch before, so that it must not be applied again.

    Raises:
        BatchError: another query has written under this name, or the checkpoint is older than what
            it has written. Nothing was changed.
    """
    own = f"{application or ''}@checkpoint/{checkpoint}".encode()
    before = newest_batch(txn, own)
    if before is not None and batch == before:
        return False
    if before is not None and batch < before:
        raise BatchError(
            f"batch {batch} comes again, but this checkpoint has written up to batch {before}: it "
            "was set back, perhaps from a copy. What it would write now may differ from what it "
            "wrote then; next: continue with the newest state of the checkpoint, or begin with a "
            "new checkpoint and startingOffsets after the last entry that was written"
        )
    if application is not None:
        others = newest_batch(txn, application.encode())
        if before is None and others is not None:
            raise BatchError(
                f"txnAppId {application!r} has written up to batch {others} with another "
                f"checkpoint, and this checkpoint begins with batch {batch}, so batches could be "
                "taken for those and be lost; next: use the former checkpoint, or another txnAppId"
            )
        note_batch(txn, application.encode(), batch)
    note_batch(txn, own, batch)
    return True
