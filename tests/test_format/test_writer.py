"""Writing segments: what is refused, and what adds nothing."""

from __future__ import annotations

import pytest

from segments import UUID, entries_of, nodes_of, opened, some, write
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import tombstones
from streamkeep.format.node.envelope import decode_envelope, encode_envelope
from streamkeep.format.segment.writer import SegmentWriter
from test_format.made_segments import NUMBER, trained


def test_a_node_of_which_nothing_is_left_adds_nothing() -> None:
    (data,) = nodes_of([(1, 0, [b"f", b"v"])])
    found = decode_envelope(data, "")
    empty = tombstones.mark(found.listpack, 1, 0, [(1, 0)], 0).data
    blank = encode_envelope(NUMBER, 1, 0, 1, 2, b"", empty, b"")
    writer = SegmentWriter(
        store_uuid=UUID, stream_number=NUMBER, key=b"", created_ms=0, epoch=0, file_number=0
    )
    assert writer.add(blank, "node") == b""
    assert (writer.first_id, writer.last_id, writer.entries) == (None, None, 0)
    with pytest.raises(ValueError, match="at least one entry"):
        writer.finish()


def test_nodes_that_do_not_belong_are_refused_and_the_writer_goes_on() -> None:
    first, second, *_ = nodes_of(some(40))
    writer = SegmentWriter(
        store_uuid=UUID, stream_number=NUMBER, key=b"", created_ms=0, epoch=0, file_number=0
    )
    data = writer.add(first, "node")
    for bad in (first, first[:-1], encode_envelope(8, 9999, 0, 1, 2, b"", b"", b"")):
        with pytest.raises(CorruptionError):
            writer.add(bad, "node")
    data += writer.add(second, "node")
    segment = opened(data + writer.finish())
    assert list(segment.check()) == []
    assert segment.trailer.nodes == 2


def test_a_dictionary_goes_with_the_segment() -> None:
    envelopes = nodes_of(some(3000), 400)
    dictionary = trained(4096, envelopes)
    plain = write(envelopes, block_bytes=800)
    data = write(envelopes, block_bytes=800, dictionary=dictionary)
    segment = opened(data)
    assert segment.dictionary() == dictionary
    assert list(segment.check()) == []
    assert entries_of(segment) == some(3000)
    assert len(data) < len(plain)
