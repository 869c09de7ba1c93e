"""Step two of a repair: rebuild all derived data of the new store, and its rows of `meta`."""

from __future__ import annotations

import uuid

from streamkeep.engine.commands.idempotency import NEXT_IDEMPOTENCE
from streamkeep.engine.crash_recovery.stored_version import META_EPOCH, META_FORMAT, META_UUID
from streamkeep.engine.store.meta import META_CREATED
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.tables.group import NEXT_GROUP
from streamkeep.engine.txn.txn import NEXT_STREAM
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import META, STREAMS
from streamkeep.format.core.versions import STORE_VERSION
from streamkeep.format.journal.checkpoint import CheckpointSlot
from streamkeep.format.rows.batches import PREFIX as BATCH_PREFIX
from streamkeep.format.rows.records import LAST_EPOCH, decode_number, encode_number
from streamkeep.recovery.fsck.rows import check_meta_row
from streamkeep.recovery.pages.tree import Hole
from streamkeep.recovery.salvage.groups import GroupRebuilder
from streamkeep.recovery.salvage.losses import Report
from streamkeep.recovery.salvage.lost_found import LostAndFound
from streamkeep.recovery.salvage.messages import MessageRebuilder
from streamkeep.recovery.salvage.new_store import BulkStore
from streamkeep.recovery.salvage.streams import StreamRebuilder


def rebuild(
    out: BulkStore,
    report: Report,
    lost: LostAndFound,
    *,
    slot: CheckpointSlot | None,
    highest_epoch: int,
    holes: list[Hole],
    highest_stream: int = 0,
) -> None:
    """Rebuild the derived data of a store that was filled by `Salvage` and `ArchiveSalvage`.

    Args:
        slot: the newest checkpoint of the damaged store.
        highest_epoch: the highest epoch found in its pages.
        holes: ranges of keys of `nodes` in which rows may be missing.
        highest_stream: the highest stream number in the archive.
    """
    known = max(highest_epoch, _number(out, META_EPOCH), 0 if slot is None else slot.epoch)
    epoch = min(1 + known, LAST_EPOCH)
    out.put_row(META, META_EPOCH, encode_number(epoch))
    streams = StreamRebuilder(out, report, lost, epoch, holes)
    streams.run()
    groups = GroupRebuilder(out, report, lost)
    groups.run()
    messages = MessageRebuilder(out, report, lost, epoch)
    messages.run()
    streams.name_losses()
    _identity(out, slot, report)
    last_stream = out.last(STREAMS)
    highest = 0 if last_stream is None else int.from_bytes(last_stream, "big")
    highest = max(highest, highest_stream)
    for counter, used in (
        (NEXT_STREAM, highest),
        (NEXT_GROUP, groups.highest),
        (NEXT_IDEMPOTENCE, messages.highest),
    ):
        following = _number(out, counter)
        if used >= max(following, 1):
            report.rebuild("counters of `meta`")
            out.put_row(META, counter, encode_number(used + 1))


def drop_meta(out: BulkStore, report: Report) -> None:
    """Remove the rows of `meta` that cannot be read; `rebuild` makes the required ones."""
    for name, value in out.rows(META):
        try:
            check_meta_row(name, open_row(META, name, value, "meta"), "meta")
        except CorruptionError as error:
            out.delete(META, name)
            if name.startswith(BATCH_PREFIX):
                report.other.append(f"the last batch of an application: {error.problem}")
            else:
                report.rebuild("rows of `meta`")


def _identity(out: BulkStore, slot: CheckpointSlot | None, report: Report) -> None:
    """Set UUID, format version and creation time if they are missing; keep the UUID if known."""
    if out.get(META, META_UUID) is None:
        report.rebuild("rows of `meta`")
        store_uuid = uuid.uuid4().bytes if slot is None else slot.store_uuid
        out.put_row(META, META_UUID, store_uuid)
    if _number(out, META_FORMAT) != STORE_VERSION:
        report.rebuild("rows of `meta`")
        out.put_row(META, META_FORMAT, encode_number(STORE_VERSION))
    if out.get(META, META_CREATED) is None:
        report.rebuild("rows of `meta`")
        out.put_row(META, META_CREATED, encode_number(Clock().now_ms()))


def _number(out: BulkStore, name: bytes) -> int:
    """Return a number of `meta`; 0 if it is missing."""
    body = out.get_row(META, name, "meta")
    return 0 if body is None else decode_number(body, "meta")
