"""The stream or group that a command needs, or the error of Redis when it is missing."""

from __future__ import annotations

from streamkeep.engine.tables.group import Group, find_group
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import NoSuchGroupError, NoSuchKeyError


def existing_stream(txn: Txn, name: bytes, problem: str = "no such key") -> Stream:
    """Return the stream `name`; raise NoSuchKeyError when it is missing."""
    stream = txn.find_stream(name)
    if stream is None:
        raise NoSuchKeyError(problem)
    return stream


def group_in(txn: Txn, stream: Stream, group_name: bytes) -> Group:
    """Return a group of a stream; raise the error of XGROUP and XINFO when it is missing."""
    group = find_group(txn, stream, group_name)
    if group is None:
        raise _no_group(
            b"NOGROUP No such consumer group '%b' for key name '%b'", group_name, stream.name
        )
    return group


def existing_group(
    txn: Txn, name: bytes, group_name: bytes, ending: str = ""
) -> tuple[Stream, Group]:
    """Return a stream and its group; raise one error when either is missing.

    Args:
        ending: how the text of the error ends.
    """
    stream = txn.find_stream(name)
    group = None if stream is None else find_group(txn, stream, group_name)
    if stream is None or group is None:
        raise _no_group(
            b"NOGROUP No such key '%b' or consumer group '%b'" + ending.encode(), name, group_name
        )
    return stream, group


def _no_group(line: bytes, first: bytes, second: bytes) -> NoSuchGroupError:
    """Return the error whose line has two names."""
    line = line % (_as_line(first), _as_line(second))
    error = NoSuchGroupError(line.decode("utf-8", "replace"))
    error.raw_line = line
    return error


def shown(name: bytes) -> str:
    """Return a name as redis-py shows it in an error line of Redis.

    That line is a C string: it ends at NUL, and line breaks in the name must not end it earlier.
    """
    return _as_line(name).decode("utf-8", "replace")


def _as_line(name: bytes) -> bytes:
    end = name.find(b"\0")
    line = name if end < 0 else name[:end]
    return line.replace(b"\r", b" ").replace(b"\n", b" ")
