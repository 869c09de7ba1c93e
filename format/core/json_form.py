"""The JSON form of bytes, of lines of JSON, and of rows about groups; types of what was read.

Keys, fields, values and names are arbitrary bytes. UTF-8 becomes a JSON string; other bytes become
the object `{"base64": "..."}`, so nothing is lost. A line is one object in ASCII without control
characters; its first member is usually `type`. Dumps, `--json` output and lost+found use this form.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

JsonBytes = str | dict[str, str]

Row = TypeVar("Row", bound=tuple[Any, ...])

_MEMBER: Final = "base64"


def json_bytes(data: bytes) -> JsonBytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return json_base64(data)


def json_base64(data: bytes) -> dict[str, str]:
    """Return bytes as an object of base64, even if they are UTF-8."""
    return {_MEMBER: base64.b64encode(data).decode()}


def json_pairs(pairs: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[JsonBytes, JsonBytes]]:
    """Return fields and values in their JSON form, in order and with repeated fields."""
    try:
        return [(field.decode(), value.decode()) for field, value in pairs]
    except UnicodeDecodeError:
        return [(json_bytes(field), json_bytes(value)) for field, value in pairs]


def from_json(value: object) -> bytes:
    """Return the bytes of a JSON form; raise ValueError for any other value."""
    if type(value) is str:
        return value.encode()
    if isinstance(value, Mapping) and list(value) == [_MEMBER]:
        text = value[_MEMBER]
        if isinstance(text, str):
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                raise ValueError("invalid base64") from None
    raise ValueError('expected a string or {"base64": "..."}')


def _of_other(value: object) -> JsonBytes:
    """Return bytes among the members of an object; nothing else is unknown to JSON."""
    if isinstance(value, bytes):
        return json_bytes(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode: Final = json.JSONEncoder(separators=(",", ":"), default=_of_other).encode


def json_line(kind: str, **members: Any) -> str:
    """Return an object of a type as one line, without the newline; bytes have their JSON form."""
    return json_object({"type": kind, **members})


def json_object(members: Mapping[str, Any]) -> str:
    """Return an object as one line, without the newline."""
    text = _encode(members)
    return text.replace("\x7f", "\\u007f") if "\x7f" in text else text


def pending_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of XPENDING, as redis-py has it; an entry without a consumer has null there."""
    idle: int = row["time_since_delivered"]
    return {
        "id": row["message_id"].decode(),
        "consumer": json_bytes(row["consumer"]) if idle >= 0 else None,
        "idle_ms": idle if idle >= 0 else None,
        "times_delivered": row["times_delivered"],
    }


def consumer_json(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of XINFO CONSUMERS, as redis-py has it."""
    inactive: int = row["inactive"]
    return {
        "name": json_bytes(row["name"]),
        "pending": row["pending"],
        "idle_ms": row["idle"],
        "inactive_ms": inactive if inactive >= 0 else None,
    }


def of_types(row: Row, like: Row) -> Row:
    """Return a named tuple that was read if its members are of the types of another one.

    Raises:
        ValueError: one is not, or is a number that no counter reaches.
    """
    for value, expected in zip(row, like, strict=True):
        if type(value) is not type(expected) or (type(value) is int and abs(value) >> 64):
            raise ValueError(f"{str(value)[:100]!r} in the place of {expected!r}")
    return row
