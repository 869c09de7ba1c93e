"""The plan of archived stores, on executors: their manifests against the positions of a lake."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.format.core.errors import StreamkeepError, UnreachableError
from streamkeep.format.segment.remote import Manifest
from streamkeep.pipeline.lake.files import read_erased
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.storage.places import StorageError
from streamkeep.pipeline.store_fleet.pieces import (
    NO_HEAD,
    FleetError,
    Member,
    deleted_streams,
    new_pieces,
    pack_groups,
    read_positions,
    streams_gone_back,
    without_erased,
)


@dataclass(frozen=True)
class Ask:
    """A store to plan.

    Attributes:
        lake: its URI; "" for nothing.
        version: of the positions that the lake has; None before the first.
        erased: the version of the list of IDs that were erased from the lake; None for none.
        options: which streams are copied; None for all.
    """

    member: Member
    lake: str = ""
    version: int | None = None
    erased: int | None = None
    options: ReadOptions | None = None


def plan_stores(asks: tuple[Ask, ...]) -> list[str]:
    """Return a line of JSON for each store: its new positions, and its pieces in groups.

    A store that cannot be planned has a line with its error.
    """
    lines = []
    for ask in asks:
        try:
            lines.append(json.dumps(_planned(ask)))
        except (UnreachableError, StorageError):
            raise
        except StreamkeepError as error:
            lines.append(json.dumps({"store": ask.member.store, "problem": str(error)}))
    return lines


def _planned(ask: Ask) -> dict[str, Any]:
    def chosen(key: bytes) -> bool:
        return ask.options is None or ask.options.wants(key)

    member, manifest = read_manifest(ask.member)
    before = read_positions(ask.lake, member.store, ask.version)
    pieces, positions = new_pieces(member, manifest, before, chosen)
    erased = read_erased(ask.lake, member.store, ask.erased)
    living = {number: one.key for number, one in manifest.streams.items() if one.exists}
    losses = {
        "deleted": deleted_streams(before, living),
        "back": streams_gone_back(before, manifest),
    }
    return {
        "store": member.store,
        "version": member.version,
        "positions": positions.as_json(),
        "groups": pack_groups(without_erased(pieces, erased)),
        "late": any(piece.late for piece in pieces),
        "changed": positions != before,
        "absent": before.absent,
        "losses": {
            kind: [[one, text] for one, text in found.items() if chosen(before.streams[one].key)]
            for kind, found in losses.items()
        },
        "keys": sorted({one.key.hex() for one in manifest.streams.values() if chosen(one.key)})
        if ask.options is not None
        else [],
    }


def read_manifest(member: Member) -> tuple[Member, Manifest]:
    newest = RemoteArchive(open_objects(member.uri), member.store).newest()
    if newest is None:
        raise FleetError(f"store {member.store}: its archive in {member.uri} {NO_HEAD}")
    head, manifest = newest
    return Member.archived(head, member.uri), manifest
