"""The Spark data source `streamkeep`: batch and streaming writes.

    >>> frame.write.format("streamkeep").option("stream", "orders").mode("append").save("s.store")

Tasks stage their rows in files (`executor.stage`), and `commit` on the driver applies all files in
one transaction. So readers see the whole batch or nothing of it, and failed attempts of a task
leave nothing.

**Exactly once**: the transaction also stores the number of the batch under the name of the
application (`engine/commands/rows`, `identity`). For a streaming query, the name is that of its
checkpoint, and Spark gives the number. If the driver dies after the transaction and before Spark
has recorded the batch, Spark runs the batch again, and `commit` finds its number and does nothing.
A batch job that may be repeated gives `txnAppId` and `txnVersion` itself.

`abort` only removes staged files and never undoes a commit, because Spark also calls it when
`commit` fails after the data is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from streamkeep.engine.api.store import Store
from streamkeep.engine.store.survey import STAGING_FOLDER, check_files
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.modes import set_up
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.options import OptionError, WriteOptions
from streamkeep.pipeline.sink.apply import apply_staged
from streamkeep.pipeline.sink.executor import RowReader, stage
from streamkeep.pipeline.sink.identity import find_batch, is_new, new_streams
from streamkeep.pipeline.storage.places import new_folder, plain, remove_folder, sweep

if TYPE_CHECKING:
    import pyarrow as pa

    from streamkeep.pipeline.sink.executor import Staged

_log = logging.getLogger(__name__)


@dataclass
class StagedMessage(WriterCommitMessage):
    """The message of a task to the driver."""

    folder: str
    staged: Staged


class _Writer:
    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError(
                "streams can only be appended to; next: use .mode('append'), or "
                ".outputMode('append') or ('update'). DEL removes a stream"
            )
        # It raises if such rows cannot be written.
        RowReader(to_arrow_schema(schema, timezone="UTC"), options.key)
        self.options = options
        if not options.staging:  # a folder in the store, with its modes, to which tasks write
            path = Path(options.path)
            if files.create_folder(path):
                set_up(path, None)
            store = Folder(path)
            check_files(store, readonly=False)
            store.make_folder(STAGING_FOLDER, durable=False)
        self.staging = plain(options.staging or str(Path(options.path) / STAGING_FOLDER))
        self.folder = new_folder(self.staging)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context is not None else 0
        partition = context.partitionId() if context is not None else 0
        name = f"{partition:06d}-{attempt}.arrow"
        return StagedMessage(self.folder, stage(iterator, self.folder, name, self.options.key))

    def apply(
        self,
        messages: Sequence[WriterCommitMessage | None],
        note: Callable[[WriteTxn, set[bytes]], Collection[bytes]],
    ) -> None:
        """Append all staged rows in one transaction, unless this batch was already applied.

        Args:
            note: records the batch of some streams in the transaction; returns those to which it
                was not applied before.
        """
        received = [one for one in messages if isinstance(one, StagedMessage)]
        if len(received) != len(messages):
            raise StreamkeepError(
                f"{len(messages) - len(received)} partitions sent no message about their files"
            )
        options = self.options
        failpoints.hit("sink:staged")
        with Store(options.path) as store:
            with store.transaction() as transaction:
                txn = transaction.txn
                staged = [one.staged for one in received]
                keys = {run.key for one in staged for run in one.runs}
                new = note(txn, keys)
                if keys - set(new):
                    _log.warning(
                        "%s: the batch was already applied to %d of %d streams",
                        options.path,
                        len(keys - set(new)),
                        len(keys),
                    )
                chosen = [
                    replace(one, runs=tuple(run for run in one.runs if run.key in new))
                    for one in staged
                ]
                for key in apply_staged(txn, chosen):
                    if options.maxlen is not None or options.minid is not None:
                        minid = None if options.minid is None else str(options.minid)
                        limit = 0 if options.approximate else None
                        transaction.xtrim(
                            key, options.maxlen, options.approximate, minid=minid, limit=limit
                        )
                failpoints.hit("sink:applied")
            if not new:  # nothing was waited for, and who applied it may have died before the sync
                store.sync()
            failpoints.hit("sink:committed")
        self.clean(messages)
        sweep(self.staging)

    def clean(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        for folder in {one.folder for one in messages if isinstance(one, StagedMessage)}:
            remove_folder(folder)


class StreamkeepWriter(_Writer, DataSourceArrowWriter):
    """Writes a DataFrame into a store."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if options.application is not None and options.version is None:
            raise OptionError(
                "without 'txnVersion', the option 'txnAppId' does not keep a batch that is written "
                "again from coming twice; next: give both, or neither"
            )
        super().__init__(options, schema, overwrite)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.apply(messages, self._note)

    def _note(self, txn: WriteTxn, keys: set[bytes]) -> Collection[bytes]:
        """Record the batch that the options number, if they do."""
        application, version = self.options.application, self.options.version
        if application is None or version is None:
            return keys
        return new_streams(txn, version, application, keys)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        remove_folder(self.folder)


class StreamkeepStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query into a store."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if options.checkpoint is None:
            raise OptionError(
                "a streaming write needs .option('checkpointLocation', ...), which identifies the "
                "query: the store records its batches; next: set it on the writer, not in the "
                "settings of Spark, which do not reach the sink"
            )
        self._checkpoint = options.checkpoint

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append all rows, unless this batch was already appended."""
        batch = find_batch(self._checkpoint, batchId)
        options = self.options

        def note(txn: WriteTxn, keys: set[bytes]) -> Collection[bytes]:
            return keys if is_new(txn, batch, options.application, options.key) else ()

        self.apply(messages, note)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged files; appended rows remain."""
        self.clean(messages)
