"""The plan of archived stores, on executors: their manifests against the positions of a lake."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.format.core.errors import StreamkeepError, UnreachableError
from streamkeep.format.segment.remote import Manifest
from streamkeep.pipeline.lake.files import LakeFile, read_erased
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.storage.places import StorageError
from streamkeep.pipeline.store_fleet import pieces as fleet_pieces
from streamkeep.pipeline.store_fleet.pieces import FleetError, Member, Positions


@dataclass(frozen=True)
class Ask:
    """A store to plan.

    Attributes:
        lake: its URI.
        version: of the positions that the lake has; None before the first.
        erased: the version of the list of IDs that were erased from the lake; None for none.
        options: which streams are copied, and whether one that has lost entries is.
        some: not all streams are copied.
    """

    member: Member
    lake: str
    version: int | None
    erased: int | None
    options: ReadOptions
    some: bool


@dataclass
class Work:
    """What one run does for a store.

    Attributes:
        version: of its positions in the lake when the run was planned.
        head: the version of the head that was read; None for a live store, and if something of it
            was left out, so that the next run reads it again.
        late: whether segments were adopted below what the lake has.
        groups: of what is new, packed.
        problems: the errors of its streams, by number and key.
        absent: entries that earlier runs found gone.
        keys: those of the requested streams that were seen.
        is_new: whether there is anything to commit, or to report.
    """

    member: Member
    version: int | None
    positions: Positions
    head: int | None
    late: bool = False
    groups: list[tuple[int, bytes]] = field(default_factory=list)
    files: list[LakeFile] = field(default_factory=list)
    problems: dict[tuple[int, bytes], str] = field(default_factory=dict)
    absent: int = 0
    keys: set[bytes] = field(default_factory=set)
    is_new: bool = True


class NotPlanned(NamedTuple):
    """The error of a store."""

    store: str
    problem: str


def plan_stores(asks: tuple[Ask, ...]) -> list[Work | NotPlanned]:
    """Return the work for each store, or its error."""
    found: list[Work | NotPlanned] = []
    for ask in asks:
        try:
            found.append(_planned(ask))
        except (UnreachableError, StorageError):
            raise
        except StreamkeepError as error:
            found.append(NotPlanned(ask.member.store, str(error)))
    return found


def _planned(ask: Ask) -> Work:
    wants = ask.options.wants
    member, manifest = read_manifest(ask.member)
    before = fleet_pieces.read_positions(ask.lake, member.store, ask.version)
    pieces, positions = fleet_pieces.new_pieces(member, manifest, before, wants)
    changed = positions != before
    living = {number: one.key for number, one in manifest.streams.items() if one.exists}
    deleted, back = (
        {number: text for number, text in found.items() if wants(before.streams[number].key)}
        for found in (
            fleet_pieces.deleted_streams(before, living),
            fleet_pieces.streams_gone_back(before, manifest),
        )
    )
    problems = {}
    if ask.options.fail_on_data_loss:
        problems = {
            (number, positions.streams[number].key): text
            for number, text in (deleted | back).items()
        }
    else:
        positions = fleet_pieces.without_streams(positions, deleted)
    erased = read_erased(ask.lake, member.store, ask.erased)
    return Work(
        ask.member,
        ask.version,
        positions,
        None if ask.some else member.version,
        any(piece.late for piece in pieces),
        fleet_pieces.pack_groups(fleet_pieces.without_erased(pieces, erased)),
        problems=problems,
        absent=before.absent,
        keys={one.key for one in manifest.streams.values() if wants(one.key)},
        is_new=not ask.some or changed or bool(deleted or problems),
    )


def read_manifest(member: Member) -> tuple[Member, Manifest]:
    newest = RemoteArchive(open_objects(member.uri), member.store).newest()
    if newest is None:
        raise FleetError(
            f"store {member.store}: its archive in {member.uri} {fleet_pieces.NO_HEAD}"
        )
    head, manifest = newest
    return Member.archived(head, member.uri), manifest
