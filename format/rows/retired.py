"""Rows of `retired`: trimmed macro nodes that are not in a segment yet.

The key is stream number and node key; the value is the envelope from `nodes`, possibly with more
slots marked. The archiver copies the node's history form (`tombstones.history_form`) to a segment.

Deleting a stream leaves its rows in `retired` and its segments, but removes its name, under which
an erasure looks for them. So the name is kept in a row under the ID 0-0, which no node has, as long
as there are such rows, or segments that were written before the stream was renamed.
"""

from __future__ import annotations

from streamkeep.format.core.checksum import row_body, with_checksum
from streamkeep.format.core.keys import RETIRED, node_key


def former_name_key(stream_number: int) -> bytes:
    return node_key(stream_number, 0, 0)


def is_former_name(ms: int, seq: int) -> bool:
    """Return whether a row with this ID holds the name of a deleted stream instead of a node."""
    return ms == 0 and seq == 0


def encode_former_name(stream_number: int, name: bytes) -> bytes:
    return with_checksum(RETIRED, former_name_key(stream_number), name)


def decode_former_name(stream_number: int, value: bytes, where: str) -> bytes:
    return row_body(RETIRED, former_name_key(stream_number), value, where)
