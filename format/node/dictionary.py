"""zstd dictionaries for archive segments, trained from a stream's data and used only if they pay.

Each block is compressed on its own, so every block repeats the field names, hosts and paths of the
stream. A dictionary stores them once per segment. But it takes space in each segment, uncompressed,
and with big blocks or data that hardly repeats it costs more than it saves. So a trial decides:

1. Compress the newer half of a sample with raw entries of the older half as the dictionary. This
   is almost free and in trials saved 70% to 100% of what a trained dictionary saved. Stop if the
   saving, projected onto the whole segment, is too small.
2. Train a dictionary from the older half, which takes several times as long as compressing, and
   compress the newer half with it, in blocks as they will be written. Use it if it saves enough.
"""

from __future__ import annotations

from typing import Final

import zstandard

from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.tombstones import history_form

# The default of `zstd --train`; smaller dictionaries saved less in every trial.
DICTIONARY_BYTES: Final = 110 << 10
SAMPLE_BYTES: Final = 8 << 20
_MIN_SAMPLES: Final = 100  # nodes to train from; with fewer, zstd finds nothing
_MIN_SAVING: Final = 0.05  # of the segment's size; less is not worth slower reads of one entry
_MIN_RAW_SAVING: Final = 0.03  # the same for raw entries as the dictionary
_MIN_RAW_BYTES: Final = 32 * DICTIONARY_BYTES  # in smaller segments a dictionary never pays


def choose_dictionary(
    nodes: list[bytes], raw_bytes: int, *, level: int, block_bytes: int
) -> bytes | None:
    """Return a dictionary for a segment; None if the segment is about as small without one.

    Step 1 takes 0.1 s, training about 0.1 s per MiB of the sample. The sample contains only what
    history shows of the nodes.

    Args:
        nodes: envelopes of the stream, oldest first; about the first `SAMPLE_BYTES` are used.
        raw_bytes: expected bytes of envelopes in the segment.
        level, block_bytes: compression level and block size of the segment.

    Raises:
        CorruptionError: a node is damaged.
    """
    if raw_bytes < _MIN_RAW_BYTES:
        return None
    sample = _history_listpacks(nodes)
    half = len(sample) // 2
    if half < _MIN_SAMPLES:
        return None
    test = sample[half:]
    scale = raw_bytes / sum(map(len, test))

    def size(dictionary: zstandard.ZstdCompressionDict | None) -> float:
        compressor = zstandard.ZstdCompressor(level=level, dict_data=dictionary)
        stored = 0 if dictionary is None else DICTIONARY_BYTES
        return scale * _compressed_size(test, compressor, block_bytes) + stored

    plain = size(None)
    entries = b"".join(sample[:half])[-DICTIONARY_BYTES:]
    raw = zstandard.ZstdCompressionDict(entries, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    if size(raw) > (1 - _MIN_RAW_SAVING) * plain:
        return None
    try:
        dictionary = zstandard.train_dictionary(DICTIONARY_BYTES, [*sample[:half]])
    except zstandard.ZstdError:  # nothing in the sample repeats
        return None
    return dictionary.as_bytes() if size(dictionary) <= (1 - _MIN_SAVING) * plain else None


def _history_listpacks(nodes: list[bytes]) -> list[bytes]:
    """Return the history forms of the first `SAMPLE_BYTES` of nodes."""
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
    """Return the compressed size of these parts in blocks of a segment."""
    total = size = 0
    held: list[bytes] = []
    for part in parts:
        if held and size + len(part) > block_bytes:
            total += len(compressor.compress(b"".join(held)))
            held, size = [], 0
        held.append(part)
        size += len(part)
    return total + len(compressor.compress(b"".join(held)))
