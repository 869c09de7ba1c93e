"""The progress of a streaming query as a consumer group, for XINFO GROUPS to show."""

from __future__ import annotations

from streamkeep.engine.api import Store
from streamkeep.format.errors import NoSuchGroupError
from streamkeep.pipeline.offsets import Positions
from streamkeep.pipeline.tailing import entries_behind


def mirror_positions(store: Store[bytes], group: bytes, positions: Positions) -> None:
    """Set last_delivered_id and entries_read of the group on each stream, made where missing."""
    for key, position in positions.items():
        with store.snapshot() as snapshot:
            stream = snapshot.txn.find_stream(key)
            if stream is None or stream.number != position.number:
                continue
            read = stream.record.entries_added - entries_behind(snapshot.txn, stream, position.id)
        try:
            store.xgroup_setid(key, group, str(position.id), entries_read=read)
        except NoSuchGroupError:
            store.xgroup_create(key, group, str(position.id), entries_read=read)
