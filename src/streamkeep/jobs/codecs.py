"""How payloads and results become bytes. JSON, unless a program names another codec.

The name of the codec travels with each payload, so a queue may hold several kinds, and a reader
needs no setting. `pickle` is used only if a program names it for reading as well: to unpickle bytes
that an attacker has written runs the attacker's code.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given
from streamkeep.jobs.errors import PayloadError

JSON: Final = "json"
BYTES: Final = "bytes"
MSGSPEC: Final = "msgspec"
PICKLE: Final = "pickle"


class Codec(NamedTuple):
    """How values become bytes, and back."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _encode_bytes(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"the codec `bytes` takes bytes, not {type(value).__name__}")
    return bytes(value)


def _encode_msgspec(value: object) -> bytes:
    import msgspec

    data: bytes = msgspec.msgpack.encode(value)
    return data


def _decode_msgspec(data: bytes) -> object:
    import msgspec

    value: object = msgspec.msgpack.decode(data)
    return value


_codecs: Final[dict[str, Codec]] = {
    JSON: Codec(_encode_json, json.loads),
    BYTES: Codec(_encode_bytes, bytes),
    MSGSPEC: Codec(_encode_msgspec, _decode_msgspec),
    PICKLE: Codec(pickle.dumps, pickle.loads),
}


def register_codec(
    name: str, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Add a codec, which queues and tasks can then name.

    Programs that read the queue must register it under the same name.

    Raises:
        ArgumentError: the name is that of another codec.
    """
    known = _codecs.get(name)
    if known is not None and known != Codec(encode, decode):
        raise ArgumentError(f"there is another codec called {name!r}; choose another name")
    _codecs[name] = Codec(encode, decode)


def check_codec(name: str) -> str:
    if not isinstance(name, str) or name not in _codecs:
        known = ", ".join(sorted(_codecs))
        raise ArgumentError(
            f"there is no codec {as_given(name)}; known: {known}; see `register_codec`"
        )
    return name


def encode(name: str, value: object, what: str, most: int) -> bytes:
    """Return a value as bytes.

    Args:
        what: names the value in errors.
        most: the number of bytes that it may have.

    Raises:
        PayloadError: the codec refuses it, or it is too large.
    """
    try:
        data = _codecs[name].encode(value)
    except ImportError as error:
        raise PayloadError(f"the codec {name!r} needs a package: {error}") from error
    except Exception as error:
        hint = "; next: pass a text (of a time, `isoformat()`), or choose codec='msgspec'"
        hint = hint if name == JSON else ""
        raise PayloadError(f"{what} cannot be encoded as {name}: {error}{hint}") from error
    if len(data) > most:
        raise PayloadError(
            f"{what} has {len(data):,} bytes as {name}, at most {most:,} are possible; next: store "
            "it elsewhere and pass its name"
        )
    return data


def decode(name: str, data: bytes, what: str, trusted: str) -> Any:
    """Return the value of bytes.

    Args:
        trusted: the codec that this program has named for its queue; pickle only runs if it is
            that one.

    Raises:
        PayloadError: the bytes are not of this codec, or this program does not know it.
    """
    codec = _codecs.get(name)
    if codec is None:
        raise PayloadError(f"{what} was encoded by {name!r}, which this program does not know")
    if name == PICKLE and trusted != PICKLE:
        raise PayloadError(
            f"{what} is a pickle, which can run any code when it is read; next: open the queue "
            "with codec='pickle' if all its writers are trusted"
        )
    try:
        return codec.decode(data)
    except Exception as error:
        raise PayloadError(f"{what} cannot be decoded as {name}: {error}") from error
