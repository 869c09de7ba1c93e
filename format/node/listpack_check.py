"""Checking every byte of a listpack's elements, and converting backlens for another Redis.

Reading (`listpack`) only checks what it needs to stay in bounds. Compiled by mypyc.
"""

from __future__ import annotations

from librt.strings import BytesWriter
from mypy_extensions import i64

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node import listpack


def checked_step(data: bytes, position: i64, end: i64) -> i64:
    """Return the offset after the element at `position`; check its size and its backlen."""
    if position >= end:
        raise listpack.corrupt("found the end of the listpack, expected an element", position)
    first: i64 = i64(data[position])
    if first < 0xC0:  # a small number, or a short string
        size: i64 = 1 if first < 0x80 else 1 + (first & 63)
        stop: i64 = position + size
        if stop >= end:
            raise listpack.corrupt(listpack.TRUNCATED, position)
        if i64(data[stop]) != size:
            raise _wrong_backlen(i64(data[stop]), size, stop)
        return stop + 1
    size = listpack.element_size(data, position, end)
    stop = position + size
    after: i64 = stop + listpack.backlen_size(data, stop, size, end)
    if after > end:
        raise listpack.corrupt("a backlen is truncated", position)
    _check_backlen(data, stop, after, size)
    return after


def _check_backlen(data: bytes, start: i64, stop: i64, size: i64) -> None:
    """Raise unless the bytes from `start` to `stop` are the backlen of an element of `size`."""
    value: i64 = 0
    index: i64 = start
    while index < stop:
        byte: i64 = i64(data[index])
        if (byte >= 128) != (index > start):
            raise listpack.corrupt("a backlen has a wrong continuation bit", index)
        value = (value << 7) | (byte & 127)
        index += 1
    if value != size:
        raise _wrong_backlen(value, size, start)


def _wrong_backlen(value: i64, size: i64, offset: i64) -> CorruptionError:
    return listpack.corrupt(
        f"a backlen is {int(value)}, the element takes {int(size)} bytes", offset
    )


def convert_backlens(data: bytes, newer: bool) -> bytes:
    """Return a valid listpack with backlens in the form of Redis 8.10 and Valkey 9.1, or older.

    The forms differ for elements of three sizes only. A server takes the other form for damage and
    aborts, unless it is configured to check the payload.

    Args:
        newer: True for the form of Redis 8.10 and Valkey 9.1, False for Redis up to 8.6.
    """
    if len(data) < 16383:
        return data
    reader = listpack.open_elements(data)
    pieces: list[bytes] = []
    copied: i64 = 0
    while reader.position < reader.end:
        stop: i64 = reader.position + listpack.element_size(data, reader.position, reader.end)
        size: i64 = stop - reader.position
        reader.skip()
        if size != 16383 and size != 2097151 and size != 268435455:
            continue
        writer = BytesWriter()
        listpack.put_backlen(writer, size)
        wanted = writer.getvalue()
        if newer:  # its first byte, 0, is left out
            wanted = bytes([wanted[1] & 127]) + wanted[2:]
        if reader.position - stop == len(wanted):
            continue
        pieces += [data[copied:stop], wanted]
        copied = reader.position
    if copied == 0:
        return data
    pieces.append(data[copied:])
    changed = b"".join(pieces)
    return len(changed).to_bytes(4, "little") + changed[4:]
