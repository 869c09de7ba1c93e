"""What the rows of each table consist of: the layouts of their codecs, and the bytes after these.

Whatever describes the bytes of rows reads them by these schemas. Rows of `streams`, `nodes` and
`retired` are envelopes (`node/envelope.py`) and have none.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamkeep.format.core import keys
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.rows import (
    extension,
    group_records,
    meta_rows,
    nacks,
    producers,
    records,
    retention,
)
from streamkeep.format.segment import manifest


class Repeated(NamedTuple):
    """A layout again and again, up to the end, or in as many bytes as a field before says."""

    layout: Layout
    size: str = ""  # name of that field


Parts = tuple[Layout | Repeated | str, ...]  # text names the bytes up to the end

_NUMBER: Final = Layout("number", (Field("number", "Q"),))
_BODY: Final[Parts] = ("body",)
_PARTS: Final[dict[int, Parts]] = {
    keys.KEYS: (_NUMBER, "name"),
    keys.GROUPS: (group_records.GROUP_RECORD, Repeated(nacks.NACK, "inline_size"), "name"),
    keys.CONSUMERS: (group_records.CONSUMER_RECORD, "name"),
    keys.PEL: (Repeated(nacks.NACK),),
    keys.PEL_ORDER: (Layout("page key", (Field("ms", "Q"), Field("seq", "Q"))),),
    keys.PRODUCERS: (producers.PRODUCER_ROW, "name"),
    keys.IDEMPOTENCY: (producers.MESSAGE_ROW, "message ID"),
    keys.IDEMPOTENCY_ORDER: (producers.MESSAGE_ROW, "message ID"),
    keys.GARBAGE: (records.GARBAGE_ROW, "path"),
    keys.SEGMENTS: (manifest.SEGMENT_RECORD, "path and key"),
    keys.ERASURES: (manifest.ERASURE,),
}
SECTIONS: Final = {  # of a stream record
    extension.IDEMPOTENCE: extension.IDEMPOTENCE_SECTION,
    extension.RETENTION: retention.RETENTION_SECTION,
}


def parts_of(table: int, db_key: bytes, size: int) -> Parts:
    """Return the parts of the body of a row, which has this size."""
    if table == keys.META and db_key.startswith(meta_rows.BATCH_PREFIX):
        return meta_rows.BATCH_ROW, "application"
    if table == keys.META and db_key in (meta_rows.META_BACKUP, meta_rows.META_LAST_BACKUP):
        return (meta_rows.BACKUP_ROW,)
    if table == keys.META:
        return (_NUMBER,) if size == _NUMBER.size else _BODY
    if table in (keys.CONSUMERS, keys.PRODUCERS) and not keys.is_name_key(db_key):
        return (_NUMBER,) if keys.is_lease_key(db_key) else _BODY
    return _PARTS.get(table, _BODY)
