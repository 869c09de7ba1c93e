"""The plan of a fleet by simulation: many stores with generated manifests, and no segments.

    python -m benchmarks.fleet STORES SEGMENTS [FOLDER]

It measures what a run costs before it copies anything: finding the stores, a run with nothing new,
and the plan of everything; the tasks run one after the other in this process. It prints the time of
each, on the clock and of the processor, the time per segment, and the highest memory.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from streamkeep.engine.system.object_store import open_objects, put_bytes
from streamkeep.format.core.entry import MIN_ID, StreamId
from streamkeep.format.segment.manifest import ARCHIVED, SegmentRecord
from streamkeep.format.segment.remote import (
    HEAD,
    Head,
    Manifest,
    RemoteSegment,
    RemoteStream,
    checksum_of,
    encode_manifest,
    manifest_name,
)
from streamkeep.pipeline.jobs.subscription import read_options
from streamkeep.pipeline.jobs.to_lake import group_tasks, plan
from streamkeep.pipeline.lake.table import Lake
from streamkeep.pipeline.store_fleet.members import find_members
from streamkeep.pipeline.store_fleet.pieces import unpack_group
from streamkeep.pipeline.store_fleet.progress_files import head_application

_STREAMS = 10  # of a store
_ENTRIES = 100_000  # of a segment


class _Here:
    """Spark, as far as `run_units` needs it, in this process."""

    def createDataFrame(self, rows: Any) -> _Here:
        """Take the units of the tasks."""
        self._batches = rows.to_batches(max_chunksize=1)
        return self

    def repartition(self, partitions: int) -> _Here:
        """Do nothing: there is one process."""
        return self

    def mapInArrow(self, function: Any, schema: str) -> _Here:
        """Take the function of the tasks."""
        self._function = function
        return self

    def collect(self) -> list[Any]:
        """Run the tasks."""
        parts = self._function(iter(self._batches))
        return [SimpleNamespace(**row) for part in parts for row in part.to_pylist()]


def generate(uri: str, stores: int, segments: int) -> None:
    """Write heads and manifests of stores whose segments do not exist."""
    objects = open_objects(uri)
    for number in range(stores):
        store = str(uuid.UUID(int=number + 1))
        streams, found = {}, []
        for stream in range(1, _STREAMS + 1):
            key = f"stream-{stream}".encode()
            at = 1_717_200_000_000
            for sequence in range(segments // _STREAMS):
                end = at + _ENTRIES - 1
                path = f"{stream}-{key.decode()}/{at}-0_{end}-0.1-{sequence}.seg"
                record = SegmentRecord(
                    *(stream, at, 0, end, 0, _ENTRIES, 1000, 2 << 20, 32 << 20, 7),
                    *(sequence + 1, at, 0, 1, ARCHIVED, path, key),
                )
                found.append(RemoteSegment(record, False))
                at = end + 1
            last = StreamId(at - 1, 0) if found else MIN_ID
            streams[stream] = RemoteStream(stream, key, True, last, 0, 0, last)
        data = encode_manifest(Manifest(streams, tuple(found)))
        head = Head(
            *(uuid.UUID(store), f"store-{number}", {}, 1, manifest_name(1, "0"), len(data)),
            *(checksum_of(data), len(found), len(found) * _ENTRIES, 0, 0, None),
        )
        put_bytes(objects, f"{store}/{head.manifest}", data)
        put_bytes(objects, f"{store}/{HEAD}", head.encode())


def main(stores: int, segments: int, folder: Path) -> None:
    """Measure and print."""
    spark: Any = _Here()
    uri = (folder / "fleet").as_uri()
    generate(uri, stores, segments)
    table = Lake.create(str(folder / "lake"))
    began = time.perf_counter()
    members = find_members(uri)
    found_s = time.perf_counter() - began
    began, busy = time.perf_counter(), time.process_time()
    options = read_options(uri, None, None, fleet=True)
    planned = plan(spark, table, members, options).stores
    groups = [group for one in planned for group in one.groups]
    tasks = group_tasks(groups, 2)
    plan_s, plan_cpu_s = time.perf_counter() - began, time.process_time() - busy
    count = sum(len(unpack_group(text)) for task in tasks[:1] for text in task)
    shipped = sum(len(text) for text in (text for task in tasks for text in task))
    table = table.commit(
        "benchmark", [], versions={head_application(one.store): one.version for one in members}
    )
    began, busy = time.perf_counter(), time.process_time()
    nothing = plan(spark, table, find_members(uri), options).stores
    nothing_s, nothing_cpu_s = time.perf_counter() - began, time.process_time() - busy
    assert nothing == []
    total = stores * segments
    print(
        json.dumps(
            {
                "stores": stores,
                "segments": total,
                "find_s": round(found_s, 2),
                "plan_s": round(plan_s, 2),
                "plan_cpu_s": round(plan_cpu_s, 2),
                "plan_cpu_us_per_segment": round(1e6 * plan_cpu_s / total, 1),
                "nothing_new_s": round(nothing_s, 2),
                "nothing_new_cpu_s": round(nothing_cpu_s, 2),
                "tasks": len(tasks),
                "segments_in_first_task": count,
                "shipped_bytes_per_segment": round(shipped / total, 1),
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            }
        )
    )


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(dir=sys.argv[3] if len(sys.argv) > 3 else None))
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), place)
    finally:
        shutil.rmtree(place)
