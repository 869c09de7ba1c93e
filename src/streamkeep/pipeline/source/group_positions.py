"""The progress of a streaming query as a consumer group, which XINFO GROUPS shows."""

from __future__ import annotations

from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import NoSuchGroupError
from streamkeep.pipeline.options import LIVE
from streamkeep.pipeline.source.offsets import Positions
from streamkeep.pipeline.source.triggers import TriggerStream


def set_group_positions(store: Store[bytes], group: bytes, positions: Positions) -> None:
    """Set last_delivered_id and entries_read of the group on each stream; make missing groups.

    XINFO GROUPS then shows the lag in live entries, as for any group.
    """
    for key, position in positions.items():
        with store.snapshot() as snapshot:
            stream = snapshot.txn.find_stream(key)
            if stream is None or stream.number != position.number:
                continue
            entries_left = TriggerStream(snapshot.txn, stream, LIVE).entries_after(position.id)
            read = stream.record.entries_added - entries_left
        try:
            store.xgroup_setid(key, group, str(position.id), entries_read=read)
        except NoSuchGroupError:
            store.xgroup_create(key, group, str(position.id), entries_read=read)
