"""Reading a store on other hosts: its live and retired nodes are exported to segment files.

LMDB is a mapped file and works only on the host whose disk holds it. If the option `tailExport`
names a folder that all hosts reach, by path or URI, the driver writes the live and retired nodes of
a read there, as one segment file per stream. Executors then read only files: these, and segments.
If the archive of the store is published, they read those from the object store, and the driver also
copies segments to the folder that are not published yet. Otherwise they must reach `STORE/archive`
under the same path.

Manifest and nodes come from one snapshot, so an archiver at work does not move entries past the
export. Each read has a folder of its own. The folder of a job is removed with the job, and that of
a micro-batch when Spark reports the batch as done, which it does except for the last one. The
folder of a DataFrame is kept, because the DataFrame may be read again. Remaining folders are
removed after a week, by a later read with the same option.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from streamkeep.engine.api.store import Store
from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.tables.manifest import overlapping
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.node.envelope import encode_envelope
from streamkeep.format.segment.index import Index
from streamkeep.format.segment.segment import segment_path
from streamkeep.format.segment.writer import SegmentWriter
from streamkeep.pipeline.options import ARCHIVE, AUTO, LIVE, TAIL, ReadOptions
from streamkeep.pipeline.source.segment_folder import cut_segment
from streamkeep.pipeline.source.slices import Pin, Slice
from streamkeep.pipeline.source.stores import open_segment, stream_nodes
from streamkeep.pipeline.storage import places

_EPOCH: Final = 1  # for nodes that no commit wrote
_PIECE_BYTES: Final = 8 << 20


def cut_exported(
    store: Store[bytes],
    txn: Txn,
    options: ReadOptions,
    pins: tuple[Pin, ...],
    slice_bytes: int,
    folder: str,
) -> list[Slice]:
    """Return the pinned ranges as slices of files, with what a snapshot of the store has.

    Args:
        folder: gets what executors cannot reach otherwise.
    """
    slices: list[Slice] = []
    places.check(folder)
    archive = str(Path(options.path) / "archive")
    setting = store.remote_archive()
    for pin in pins:
        if pin.start > pin.end:
            continue
        if options.source != LIVE:
            for record in overlapping(txn, pin.number, pin.start, pin.end):
                if setting is None:
                    slices += _cut_file(archive, record.path, pin, slice_bytes)
                elif _copied(store.segment_path(record), folder, record.path):
                    slices += _cut_file(folder, record.path, pin, slice_bytes)
                else:
                    published = RemoteArchive(open_objects(setting.uri), store.uuid)
                    segment = published.segment(record)
                    slices += [
                        replace(one, store=store.uuid, path=setting.uri, record=record)
                        for one in cut_segment(segment, pin, slice_bytes)
                    ]
        if options.source != ARCHIVE:
            path = _write_tail(txn, options, pin, store.uuid, folder)
            if path is not None:
                slices += _cut_file(folder, path, pin, slice_bytes)
    return sorted(slices, key=lambda one: (one.key, one.number, one.start))


def _cut_file(root: str, path: str, pin: Pin, slice_bytes: int) -> list[Slice]:
    with open_segment(root, path) as segment:
        parts = cut_segment(segment, pin, slice_bytes)
    return [replace(one, path=root, segment=path) for one in parts]


def _copied(source: Path, folder: str, path: str) -> bool:
    """Copy a segment that is on the disk of the store; return False if it is there no more."""
    try:
        file = pa.OSFile(str(source))
    except FileNotFoundError:
        return False
    system, base = places.file_system(folder)
    places.make_folder(system, f"{base}/{path}".rpartition("/")[0])
    with (
        file,
        places.reaching(folder),
        system.open_output_stream(f"{base}/{path}", compression=None) as out,
    ):
        while piece := file.read(_PIECE_BYTES):
            out.write(piece)
    return True


def _write_tail(
    txn: Txn, options: ReadOptions, pin: Pin, store_uuid: str, folder: str
) -> str | None:
    """Write the nodes that are in no segment into a new one; return its path, None if none are."""
    source = TAIL if options.source == AUTO else LIVE
    stream = stream_nodes(txn, pin.key, pin.number, source)
    nodes = (
        encode_envelope(pin.number, ms, seq, _EPOCH, 1, b"", data, b"")
        for ms, seq, load in stream.nodes(pin.start, pin.end, None)
        if (data := load())
    )
    first = next(nodes, None)
    if first is None:
        return None
    writer = SegmentWriter(
        Index(bytes.fromhex(store_uuid.replace("-", "")), pin.number, pin.key, []),
        created_ms=Clock().now_ms(),
        epoch=_EPOCH,
        file_number=1,
    )
    path = segment_path(pin.number, pin.key, pin.start, pin.end, _EPOCH, 1)
    system, base = places.file_system(folder)
    target = f"{base}/{path}"
    places.make_folder(system, target.rpartition("/")[0])
    where = f"stream {pin.key!r}"
    with places.reaching(folder), system.open_output_stream(target, compression=None) as out:
        out.write(writer.add(first, where))
        for envelope in nodes:
            out.write(writer.add(envelope, where))
        out.write(writer.finish())
    return path
