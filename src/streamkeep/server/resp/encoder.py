"""Replies as bytes of RESP2 or RESP3. Compiled by mypyc.

Entries of ranges come as `SentEntries`, which were written from macro nodes straight to bytes.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from streamkeep.commands.replies import Named, NilArray, Status
from streamkeep.engine.commands.reply_budget import SentEntries
from streamkeep.format.core.errors import CommandError
from streamkeep.format.core.id_codec import id_text

_SHORT: Final[i64] = 256
_HEADS: Final[list[bytes]] = [b"$%d\r\n" % size for size in range(256)]
_ARRAYS: Final[list[bytes]] = [b"*%d\r\n" % size for size in range(256)]
_NUMBERS: Final[list[bytes]] = [b":%d\r\n" % number for number in range(256)]


def encode(reply: object, resp3: bool) -> bytes:
    if isinstance(reply, bytes):
        return bulk(reply)
    if isinstance(reply, SentEntries):
        return b"*%d\r\n%b" % (reply.count, reply.data)
    out = BytesWriter()
    _put(out, reply, resp3)
    return out.getvalue()


def bulk(text: bytes) -> bytes:
    size: i64 = len(text)
    if size < _SHORT:
        return _HEADS[size] + text + b"\r\n"
    return b"$%d\r\n%b\r\n" % (len(text), text)


def error_text(line: str) -> bytes:
    return error_line(line.encode("utf-8", "surrogateescape"))


def error_line(line: bytes) -> bytes:
    """Return an error; what could end the line earlier becomes spaces."""
    return b"-" + line.replace(b"\r", b" ").replace(b"\n", b" ") + b"\r\n"


def _put(out: BytesWriter, reply: object, resp3: bool) -> None:
    if isinstance(reply, bytes):
        _put_bulk(out, reply)
    elif reply is None:
        out.write(b"_\r\n" if resp3 else b"$-1\r\n")
    elif isinstance(reply, bool):
        out.write((b"#t\r\n" if reply else b"#f\r\n") if resp3 else b":%d\r\n" % int(reply))
    elif isinstance(reply, int):
        _put_integer(out, reply)
    elif isinstance(reply, Status):
        out.write(b"+" + reply.encode() + b"\r\n")
    elif isinstance(reply, tuple):
        _put_entry(out, reply, resp3)
    elif isinstance(reply, list):
        _put_list(out, reply, resp3)
    elif isinstance(reply, set):
        out.write(b"~%d\r\n" % len(reply) if resp3 else b"*%d\r\n" % len(reply))
        for one in sorted(reply):
            _put(out, one, resp3)
    elif isinstance(reply, dict):
        out.write(b"%%%d\r\n" % len(reply) if resp3 else b"*%d\r\n" % (2 * len(reply)))
        for name, value in reply.items():
            _put(out, name.encode() if isinstance(name, str) else name, resp3)
            _put(out, value, resp3)
    elif isinstance(reply, Named):
        streams = reply.streams
        out.write(b"%%%d\r\n" % len(streams) if resp3 else b"*%d\r\n" % len(streams))
        for stream in streams:
            if not resp3:
                out.write(b"*2\r\n")
            _put(out, stream[0], resp3)
            _put(out, stream[1], resp3)
    elif isinstance(reply, NilArray):
        out.write(b"_\r\n" if resp3 else b"*-1\r\n")
    elif isinstance(reply, CommandError):
        out.write(error_line(reply.redis_line))
    elif isinstance(reply, Sent):
        out.write(reply.data)
    elif isinstance(reply, SentEntries):
        out.write(b"*%d\r\n" % reply.count)
        out.write(reply.data)
    elif isinstance(reply, float):
        text = (b"%r" % reply) if reply != int(reply) else b"%d" % int(reply)
        out.write(b"," + text + b"\r\n" if resp3 else bulk(text))
    elif isinstance(reply, str):
        data = reply.encode("utf-8", "surrogateescape")
        out.write(b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data) if resp3 else bulk(data))
    else:
        raise TypeError(f"a reply is {type(reply).__name__}")


class Sent:
    """A reply that is bytes already, such as that of one command of EXEC."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def _put_list(out: BytesWriter, reply: list[object], resp3: bool) -> None:
    if len(reply) == 1:
        only = reply[0]
        if isinstance(only, SentEntries):
            out.write(b"*%d\r\n" % only.count)
            out.write(only.data)
            return
    size: i64 = len(reply)
    out.write(_ARRAYS[size] if size < _SHORT else b"*%d\r\n" % len(reply))
    for one in reply:
        _put(out, one, resp3)


def _put_entry(out: BytesWriter, reply: tuple[object, ...], resp3: bool) -> None:
    ms, seq, flat = reply[0], reply[1], reply[2]
    assert isinstance(ms, int)
    assert isinstance(seq, int)
    out.write(b"*%d\r\n" % (len(reply) - 1))
    _put_bulk(out, id_text(ms, seq))
    if flat is None:
        out.write(b"_\r\n" if resp3 else b"*-1\r\n")
    else:
        assert isinstance(flat, list)
        _put_list(out, flat, False)
    for more in reply[3:]:
        assert isinstance(more, int)
        _put_integer(out, more)


def _put_bulk(out: BytesWriter, text: bytes) -> None:
    size: i64 = len(text)
    out.write(_HEADS[size] if size < _SHORT else b"$%d\r\n" % len(text))
    out.write(text)
    out.append(13)
    out.append(10)


def _put_integer(out: BytesWriter, number: int) -> None:
    if 0 <= number < 256:
        out.write(_NUMBERS[number])
    else:
        out.write(b":%d\r\n" % number)
