"""Dictionaries for archive segments: trained from a stream's data, and used only where they pay.

A block is compressed alone, so it has to spell out once what every block of the stream says: field
names, hosts, paths, agents. A dictionary says it once for the whole segment. But it stands
in each segment, uncompressed, and where blocks are big or their data hardly repeat it costs more
than it saves. So a trial decides: the dictionary is trained from the older half of a sample, the
younger half is compressed with it and without, in blocks as they would be written, and what that
saves is projected onto the whole segment.

Training takes several times as long as compressing. Raw entries in the place of a dictionary tell
for almost nothing how much one can save: in trials they saved 70% to 100% as much. Where that is
not enough, nothing is trained.
"""

from __future__ import annotations

from typing import Final

import zstandard

from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.tombstones import history_form

DICTIONARY_BYTES: Final = 110 << 10  # what `zstd --train` makes; less saved less in every trial
SAMPLE_BYTES: Final = 8 << 20
_LEAST_SAMPLES: Final = 100  # nodes to train from; zstd finds nothing in fewer
_LEAST_GAIN: Final = 0.05  # of the segment's size; below, point reads without one are worth more
_LEAST_HOPE: Final = 0.03  # the same, with raw entries for a dictionary
_LEAST_RAW: Final = 32 * DICTIONARY_BYTES  # smaller segments never earn a dictionary


def choose_dictionary(
    nodes: list[bytes], raw_bytes: int, *, level: int, block_bytes: int
) -> bytes | None:
    """Return a dictionary for a segment; None when the segment is smaller without one.

    Costs 0.1 s for the look, and where that is promising about 0.1 s per MiB of the sample for
    training. Only what history shows of the nodes is used.

    Args:
        nodes: envelopes of the stream, oldest first; the first `SAMPLE_BYTES` of them are looked
            at.
        raw_bytes: how many bytes of envelopes the segment will hold, about.
        level, block_bytes: how the segment will be written.

    Raises:
        CorruptionError: a node is damaged.
    """
    if raw_bytes < _LEAST_RAW:
        return None
    sample = _shown(nodes)
    half = len(sample) // 2
    if half < _LEAST_SAMPLES:
        return None
    test = sample[half:]
    scale = raw_bytes / sum(map(len, test))

    def size(dictionary: zstandard.ZstdCompressionDict | None) -> float:
        """Return the size of the whole segment, about."""
        compressor = zstandard.ZstdCompressor(level=level, dict_data=dictionary)
        stored = 0 if dictionary is None else DICTIONARY_BYTES
        return scale * _compressed_size(test, compressor, block_bytes) + stored

    plain = size(None)
    entries = b"".join(sample[:half])[-DICTIONARY_BYTES:]
    raw = zstandard.ZstdCompressionDict(entries, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    if size(raw) > (1 - _LEAST_HOPE) * plain:
        return None
    try:
        dictionary = zstandard.train_dictionary(DICTIONARY_BYTES, [*sample[:half]])
    except zstandard.ZstdError:  # nothing in the sample repeats
        return None
    return dictionary.as_bytes() if size(dictionary) <= (1 - _LEAST_GAIN) * plain else None


def _shown(nodes: list[bytes]) -> list[bytes]:
    """Return the listpacks of a sample as history shows them."""
    sample: list[bytes] = []
    size = 0
    for envelope in nodes:
        if size >= SAMPLE_BYTES:
            break
        found = decode_envelope(envelope, "node to train a dictionary from")
        data = history_form(found.listpack, found.ms, found.seq, found.trimmed)
        if data:
            sample.append(data)
            size += len(data)
    return sample


def _compressed_size(
    parts: list[bytes], compressor: zstandard.ZstdCompressor, block_bytes: int
) -> int:
    """Return the size of these parts in blocks as a segment has them."""
    total = size = 0
    held: list[bytes] = []
    for part in parts:
        if held and size + len(part) > block_bytes:
            total += len(compressor.compress(b"".join(held)))
            held, size = [], 0
        held.append(part)
        size += len(part)
    return total + len(compressor.compress(b"".join(held)))
