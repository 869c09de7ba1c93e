"""The part of the audit of a fleet on executors: manifests, and every byte of archived segments."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.jobs.executor.audit import archived_problems
from streamkeep.pipeline.lake.files import Origin
from streamkeep.pipeline.store_fleet.executor.manifests import Ask, read_manifest
from streamkeep.pipeline.store_fleet.pieces import (
    Piece,
    Positions,
    deleted_streams,
    pack_groups,
    stream_pieces,
    streams_gone_back,
    unpack_group,
)
from streamkeep.pipeline.store_fleet.progress_files import read_positions


@dataclass(frozen=True)
class Check:
    """Segments that one worker reads, in packed groups."""

    groups: tuple[str, ...]


def describe_stores(asks: tuple[Ask, ...]) -> list[str]:
    """Return a line for each store: its segments in groups, and what a lake should have of it."""
    lines = []
    for ask in asks:
        try:
            lines.append(json.dumps(_described(ask)))
        except StreamkeepError as error:
            facts = {"store": ask.member.store, "groups": [], "segments": 0, "streams": []}
            lines.append(json.dumps({**facts, "problems": [str(error)]}))
    return lines


def _described(ask: Ask) -> dict[str, Any]:
    member, manifest = read_manifest(ask.member)
    positions = Positions()
    if ask.lake:
        positions = read_positions(ask.lake, member.store, ask.version)
    expected: dict[int, int] = defaultdict(int)
    pieces = []
    for number, stream in sorted(manifest.streams.items()):
        end = positions.end_of(number)
        segments = manifest.of_stream(number)
        for piece in stream_pieces(member, stream.key, segments):
            record = piece.record
            assert record is not None
            whole = (piece.start, piece.end) == (record.first_id, record.last_id)
            if whole and piece.end <= end:
                expected[number] += piece.entries
        for one in segments:
            record = one.record
            ends = (record.first_id, record.last_id)
            size, count = record.raw_bytes, record.entries
            pieces.append(
                Piece(
                    member.store,
                    number,
                    stream.key,
                    *ends,
                    size,
                    count,
                    record,
                    one.sealed,
                    uri=member.uri,
                )
            )
    living = {number: one.key for number, one in manifest.streams.items() if one.exists}
    losses = deleted_streams(positions, living) | streams_gone_back(positions, manifest)
    return {
        "store": member.store,
        "groups": pack_groups(pieces),
        "segments": len(pieces),
        "problems": [
            f"{Origin(member.store, number, positions.streams[number].key)}: {text}"
            for number, text in sorted(losses.items())
        ],
        "streams": [
            [
                number,
                expected[number],
                [str(one) for one in stream.erased],
            ]
            for number, stream in sorted(manifest.streams.items())
        ],
    }


def check_segments(task: Check) -> list[str]:
    """Read every byte of a task's segments; return the facts of each group."""
    lines = []
    for text in task.groups:
        entries = size = 0
        problems: list[str] = []
        for piece in unpack_group(text):
            record = piece.record
            assert record is not None
            entries += record.entries
            size += record.size_bytes
            found = archived_problems(piece.uri, piece.store, record, sealed=piece.sealed)
            problems += [f"store {piece.store}: {one}" for one in found]
        lines.append(json.dumps({"entries": entries, "size_bytes": size, "problems": problems}))
    return lines
