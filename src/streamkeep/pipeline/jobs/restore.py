"""The job `restore`: it writes entries of a lake or of an archive into a stream, with their IDs.

From a lake, workers read files, filter the range, and stage macro nodes in files. The driver
appends these nodes in transactions of about a megabyte, and records its progress in the target's
record (`engine/archive/restore.py`). After a crash, the same call continues there, and each entry
is written once. If the stream already has the IDs, its entries are compared with the nodes: a
restore that was complete changes nothing, and a different stream is refused, because IDs must rise.
Entries that were erased from the stream of that name in the target's store are not restored, even
if the lake still has them.

From the archive of a store, Spark is not needed, because its segments already hold nodes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamkeep.arrow.keys import key_text
from streamkeep.engine.api.store import Store
from streamkeep.engine.archive.iterate import ArchivedNode
from streamkeep.engine.archive.restore import restore_nodes
from streamkeep.engine.commands.arguments import range_end, range_start
from streamkeep.engine.store.survey import STAGING_FOLDER
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables.manifest import erased_ids
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.node import end_ids
from streamkeep.pipeline.distribution.packing import spread
from streamkeep.pipeline.distribution.units import Progress, Report, cores_of, run_units, timed
from streamkeep.pipeline.jobs.executor.restore import Task, make_nodes
from streamkeep.pipeline.lake.files import LakeError, LakeFile
from streamkeep.pipeline.lake.lake import Lake
from streamkeep.pipeline.sink.apply import staged_nodes
from streamkeep.pipeline.storage.places import new_folder, plain, remove_folder, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NAME: Final = "restore"
_ENTRY_BYTES: Final = 64  # the work per entry, in bytes of a file


def restore(
    spark: SparkSession,
    source: str,
    store: str,
    key: str | bytes,
    *,
    into: str | bytes | None = None,
    store_id: str | None = None,
    incarnation: int | None = None,
    start: str = "-",
    end: str = "+",
    staging: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write entries of a lake or of an archive into a stream, exactly once.

    If the stream already has all of them, and no other between them, nothing is changed; the
    report's detail `already` has their number.

    Args:
        source: a lake, or the directory of a store with an archive.
        store: directory of the store to write to; made if there is none.
        key: of the stream in the source. If it was renamed, all that a lake has of it is restored,
            under each of its keys.
        into: key of the stream to write to, by default the same; made if there is none.
        store_id: UUID of the store whose entries are restored; needed if the lake has the key from
            several stores.
        incarnation: number of the stream; needed if streams of this key have overlapping IDs.
        start, end: IDs, both included, as in `xrange`.
        staging: a folder that all hosts reach, path or URI, through which workers on other hosts
            send nodes to the driver; by default a folder in the store.

    Raises:
        LakeError: there is no such lake, or its files overlap.
        IdTooSmallError: the stream has the first ID or a higher one, and not the same entries.
        CommandError: another restore into the stream is unfinished, or the stream was appended to
            during this one.
    """
    name, target = (
        one.encode() if isinstance(one, str) else one
        for one in (key, into if into is not None else key)
    )
    # At first, so that no store is made if there is no lake, or nothing in it.
    lake = None if (Path(source) / "data.mdb").is_file() else Lake.open(source)
    files = [] if lake is None else _files_of(lake, name, store_id, incarnation)
    with timed(NAME) as report, Store(store) as opened:
        if lake is None:
            with Store(source, readonly=True, create=False) as origin:
                done = opened.restore_archive(target, name, from_store=origin, start=start, end=end)
        else:
            low, high = range_start(start), range_end(end)
            if not staging:
                opened._environment.folder.make_folder(STAGING_FOLDER, durable=False)
            folder = plain(staging or str(Path(store) / STAGING_FOLDER))
            done = _from_lake(spark, lake, files, opened, name, target, low, high, folder, progress)
        report.entries = done.entries
        report.details = {
            "stream": target.decode(errors="backslashreplace"),
            "first_id": None if done.first_id is None else str(done.first_id),
            "last_id": None if done.last_id is None else str(done.last_id),
            "resumed": done.resumed,
            "already": done.already,
        }
    return report


def _files_of(
    lake: Lake, name: bytes, store_id: str | None, incarnation: int | None
) -> list[LakeFile]:
    every = lake.files()
    streams = {one.origin.stream for one in every if one.origin.key == name}
    files = [
        one
        for one in every
        if one.origin.stream in streams
        and store_id in (None, one.origin.store)
        and incarnation in (None, one.origin.number)
    ]
    if not files:
        raise LakeError(f"{lake.uri}: the lake has no entries of {key_text(name)!r}")
    stores = sorted({one.origin.store for one in files})
    if len(stores) > 1:
        raise LakeError(
            f"{lake.uri}: {len(stores)} stores have a stream {key_text(name)!r}: "
            f"{', '.join(stores)}; next: name one with store_id"
        )
    files.sort(key=lambda one: one.first)
    for before, after in pairwise(files):
        if after.first > before.last:
            continue
        numbers = sorted({one.origin.number for one in files})
        if len(numbers) > 1:
            raise LakeError(
                f"{lake.uri}: {key_text(name)!r} was deleted and made again, with overlapping IDs: "
                f"incarnations {', '.join(map(str, numbers))}; next: name one with incarnation"
            )
        raise LakeError(
            f"{lake.uri}: {after.path} begins before {before.path} ends; next: `streamkeep "
            "spark audit` lists all problems of the lake"
        )
    return files


def _from_lake(
    spark: SparkSession,
    lake: Lake,
    files: list[LakeFile],
    store: Store[bytes],
    name: bytes,
    target: bytes,
    start: Id,
    end: Id,
    staging: str,
    progress: Progress | None,
) -> Any:
    environment = store._environment  # nodes are written below the public interface
    stream = environment.read(lambda txn: txn.find_stream(name))
    checked = None if stream is None else stream.number
    folder = new_folder(staging)

    def nodes_from(at: Id) -> Iterator[ArchivedNode]:
        """Let workers make the missing nodes, and yield them."""
        wanted = [one for one in files if one.last >= at and one.first <= end]
        gone = frozenset[StreamId]()
        if checked is not None:
            found = environment.read(erased_ids, checked, at, end)
            gone = frozenset(StreamId(*one) for one in found)
        parts = spread(
            wanted, lambda one: one.size_bytes + _ENTRY_BYTES * one.entries, cores_of(spark)
        )
        tasks = [
            Task(lake.uri, part, at, end, folder, f"{place:06d}-{uuid.uuid4().hex}.arrow", gone)
            for place, part in enumerate(parts)
        ]
        with lake.reading(wanted, NAME):
            made = run_units(spark, tasks, make_nodes, progress)
        failpoints.hit("restore:staged")
        for one in sorted(made, key=lambda one: one.location):
            for ms, seq, data in staged_nodes(one):
                yield ArchivedNode(ms, seq, data, end_ids(data, ms, seq))

    try:
        return restore_nodes(
            environment,
            target,
            start,
            nodes_from,
            lambda at: sum(one.entries for one in files if one.last >= at),
            lambda at: min((max(at, one.first) for one in files if at <= one.last), default=None),
            checked,
            wait=True,
        )
    finally:
        remove_folder(folder)
        sweep(staging)
