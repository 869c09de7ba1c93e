"""The progress of a streaming query as a consumer group, for XINFO GROUPS to show."""

from __future__ import annotations

from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import NoSuchGroupError
from streamkeep.pipeline.offsets import Positions
from streamkeep.pipeline.options import LIVE
from streamkeep.pipeline.tailing import TailedStream


def mirror_positions(store: Store[bytes], group: bytes, positions: Positions) -> None:
    """Set last_delivered_id and entries_read of the group on each stream, made where missing.

    The lag that XINFO GROUPS then shows is that of live entries, as of any group.
    """
    for key, position in positions.items():
        with store.snapshot() as snapshot:
            stream = snapshot.txn.find_stream(key)
            if stream is None or stream.number != position.number:
                continue
            tailed = TailedStream(snapshot.txn, stream, LIVE)
            read = stream.record.entries_added - tailed.entries_behind(position.id)
        try:
            store.xgroup_setid(key, group, str(position.id), entries_read=read)
        except NoSuchGroupError:
            store.xgroup_create(key, group, str(position.id), entries_read=read)
