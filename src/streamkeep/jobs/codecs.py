"""How payloads and results become bytes: JSON, unless a program names `bytes` or `pickle`.

The name of the codec travels with each payload, so a queue may hold several kinds, and a reader
needs no setting. `pickle` is used only if a program names it for reading as well: to unpickle bytes
that an attacker has written runs the attacker's code.
"""

from __future__ import annotations

import json
import pickle
from typing import Any, Final

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given
from streamkeep.jobs.errors import PayloadError

JSON: Final = "json"
BYTES: Final = "bytes"
PICKLE: Final = "pickle"
_CODECS: Final = (JSON, BYTES, PICKLE)


def check_codec(name: str) -> str:
    if name not in _CODECS:
        raise ArgumentError(f"there is no codec {as_given(name)}; known: {', '.join(_CODECS)}")
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
        if name == JSON:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            data = text.encode()
        elif name == PICKLE:
            data = pickle.dumps(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            data = bytes(value)
        else:
            raise TypeError(f"the codec `bytes` takes bytes, not {type(value).__name__}")
    except Exception as error:
        hint = "; next: pass a text (of a time, `isoformat()`), or bytes with codec='bytes'"
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
        PayloadError: the bytes are not of this codec, or there is no such codec.
    """
    if name not in _CODECS:
        raise PayloadError(f"{what} was encoded by {name!r}, which is no codec")
    if name == PICKLE and trusted != PICKLE:
        raise PayloadError(
            f"{what} is a pickle, which can run any code when it is read; next: open the queue "
            "with codec='pickle' if all its writers are trusted"
        )
    try:
        if name == BYTES:
            return data
        return json.loads(data) if name == JSON else pickle.loads(data)
    except Exception as error:
        raise PayloadError(f"{what} cannot be decoded as {name}: {error}") from error
