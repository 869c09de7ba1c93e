"""Finding the streams of a read, and fixing the range of each. Runs on the driver."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from streamkeep.arrow.keys import key_text
from streamkeep.engine.commands import keys
from streamkeep.engine.tables.manifest import find_segment, iter_segments
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import MAX_ID, MIN_ID, StreamId
from streamkeep.format.core.errors import NoSuchKeyError
from streamkeep.pipeline.options import ARCHIVE, EARLIEST, LATEST, Offset, OptionError, ReadOptions
from streamkeep.pipeline.source.slices import Pin


def find_streams(txn: Txn, options: ReadOptions, *, all_there: bool) -> dict[bytes, int]:
    """Return the keys and numbers of the requested streams.

    A deleted stream may still have segments under its old number. A read of the archive also finds
    these, if no stream has the key now.

    Args:
        all_there: raise for a key that does not exist.
    """
    numbers = dict(keys.iter_keys(txn))
    if options.source == ARCHIVE:
        living = set(numbers.values())
        for record in iter_segments(txn):
            if record.stream_number not in living and numbers.get(record.key, 0) not in living:
                numbers[record.key] = record.stream_number
    chosen = chosen_keys(options, list(numbers), all_there=all_there)
    return {key: numbers[key] for key in chosen}


def chosen_keys(options: ReadOptions, known: list[bytes], *, all_there: bool) -> list[bytes]:
    """Return the requested ones of the known keys, in the order of the option."""
    shown = {key_text(name): name for name in known}
    if options.pattern is not None:
        return [name for text, name in sorted(shown.items()) if options.pattern.fullmatch(text)]
    existing = set(known)
    if all_there:
        for sentence in absent_keys(options, known):
            raise NoSuchKeyError(sentence)
    return [key for key in options.keys or () if key in existing]


def absent_keys(options: ReadOptions, known: Iterable[bytes]) -> list[str]:
    """Return a sentence about each key of the option `subscribe` that is none of the known ones."""
    shown = {key_text(name): name for name in known}
    sentences = []
    for text in map(key_text, options.keys or ()):
        if text not in shown:
            near = difflib.get_close_matches(text, shown, n=3)
            advice = f"did you mean {', '.join(near)}?" if near else f"it has {len(shown)} others"
            sentences.append(f"{options.path}: no stream {text!r}; {advice}")
    return sentences


def pin_streams(txn: Txn, options: ReadOptions) -> tuple[Pin, ...]:
    """Return the ranges of a batch read, fixed at this moment."""
    pins = []
    for key, number in find_streams(txn, options, all_there=True).items():
        stream, last = txn.find_stream(key), MAX_ID
        if options.source == ARCHIVE:  # which grows by what is there already
            last = newest_archived(txn, number)
        elif stream is not None and stream.number == number:
            last = StreamId(stream.record.last_ms, stream.record.last_seq)
        pins.append(pin_between(options, key, number, last))
    return tuple(pins)


def newest_archived(txn: Txn, number: int) -> StreamId:
    """Return the last ID of a stream in the archive; MIN_ID if nothing of it is there."""
    segment = find_segment(txn, number, *MAX_ID)
    return MIN_ID if segment is None else StreamId(*segment.last_id)


def pin_between(options: ReadOptions, key: bytes, number: int, last: StreamId) -> Pin:
    """Return the range of a batch read in a stream whose newest entry is `last`."""
    starting = EARLIEST if options.starting is None else options.starting.of(key)
    if starting == LATEST:
        raise OptionError("a batch read cannot start at 'latest': no entry follows it")
    ending = options.ending.of(key)
    if ending == EARLIEST:
        raise OptionError("a read cannot end at 'earliest': no entry precedes it")
    return Pin(key, number, _resolved(starting, MIN_ID), min(last, _resolved(ending, MAX_ID)))


def _resolved(offset: Offset, bound: StreamId) -> StreamId:
    return offset if isinstance(offset, StreamId) else bound
