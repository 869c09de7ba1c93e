"""Rows of `retired`: trimmed macro nodes that no segment holds yet.

A row stands under stream number and node key and is the envelope that stood in `nodes`, perhaps
with more of its slots marked. What history shows of it (`node_marks.history_form`) is what the
archive is still owed.

A stream that is deleted leaves its rows behind, but takes along its name, which its segments are
to carry. So the name goes into a row of its own, under the ID 0-0, which is no node's, until the
archiver has taken the last node.
"""

from __future__ import annotations

from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.keys import RETIRED, node_key

retired_key = node_key


def former_name_key(stream_number: int) -> bytes:
    """Return the key of the row with the name of a deleted stream."""
    return node_key(stream_number, 0, 0)


def is_former_name(ms: int, seq: int) -> bool:
    """Say whether a row under this ID is not a node but the name of a deleted stream."""
    return ms == 0 and seq == 0


def encode_former_name(stream_number: int, name: bytes) -> bytes:
    """Return the row with the name of a deleted stream."""
    return seal_row(RETIRED, former_name_key(stream_number), name)


def decode_former_name(stream_number: int, value: bytes, where: str) -> bytes:
    """Return the name of a deleted stream; raise CorruptionError."""
    return open_row(RETIRED, former_name_key(stream_number), value, where)
