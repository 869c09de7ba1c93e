"""The plan of archived stores, on executors: their manifests against the positions of a lake."""

from __future__ import annotations

import json
from dataclasses import dataclass

from streamkeep.engine.model.remote_archive import RemoteArchive
from streamkeep.engine.system.object_store import open_objects
from streamkeep.format.segment.remote import Manifest
from streamkeep.pipeline.fleet.pieces import (
    Member,
    Positions,
    new_pieces,
    pack_groups,
    stream_pieces,
)
from streamkeep.pipeline.fleet.progress_files import read_positions


@dataclass(frozen=True)
class Ask:
    """A store to plan.

    Attributes:
        lake: its URI; "" to read everything, for a DataFrame.
        version: of the positions that the lake has; None before the first.
    """

    member: Member
    lake: str = ""
    version: int | None = None


def plan_stores(asks: tuple[Ask, ...]) -> list[str]:
    """Return a line of JSON for each store: its new positions, and its pieces in groups."""
    lines = []
    for ask in asks:
        member, manifest = read_manifest(ask.member)
        if not ask.lake:
            positions = Positions()
            pieces = [
                piece
                for number, stream in sorted(manifest.streams.items())
                for piece in stream_pieces(member, stream.key, manifest.of_stream(number))
            ]
        else:
            before = read_positions(ask.lake, member.store, ask.version)
            pieces, positions = new_pieces(member, manifest, before)
        lines.append(
            json.dumps(
                {
                    "store": member.store,
                    "version": member.version,
                    "positions": positions.encode().decode(),
                    "groups": pack_groups(pieces),
                    "late": any(piece.late for piece in pieces),
                }
            )
        )
    return lines


def read_manifest(member: Member) -> tuple[Member, Manifest]:
    """Return a store with the version of its newest manifest, and the manifest."""
    newest = RemoteArchive(open_objects(member.uri), member.store).newest()
    if newest is None:
        return member, Manifest({}, ())
    head, manifest = newest
    newer = Member(
        member.store,
        head.name,
        head.labels,
        uri=member.uri,
        version=head.version,
        segments=head.segments,
        sealed_ms=head.sealed_ms,
    )
    return newer, manifest
