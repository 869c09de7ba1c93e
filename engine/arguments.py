"""Python arguments to bytes and numbers, by redis-py's rules, and IDs by Redis's. Compiled by
mypyc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamkeep.format.entry import StreamId
from streamkeep.format.errors import ArgumentError, InvalidIdError
from streamkeep.format.id_codec import (
    MAX,
    clean,
    id_text,
    next_id,
    parse_id,
    previous_id,
)

_TOO_LARGE: Final = 1 << 63
_LATEST_MS: Final = 1 << 42  # a time in the 22nd century; the end of a wait must be one, too
POLICIES: Final = ("KEEPREF", "DELREF", "ACKED")  # in the order of `references`


def to_bytes(value: object) -> bytes:
    """Return a key, field, value or name as bytes; raise ArgumentError as redis-py would."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value).encode()
    raise ArgumentError(
        f"Invalid input of type: '{type(value).__name__}'. "
        "Convert to a bytes, string, int or float first."
    )


def to_pairs(fields: object) -> list[bytes]:
    """Return field, value, field, value, ... of a non-empty dict."""
    flat: list[bytes] = []
    if isinstance(fields, dict):
        for name, value in fields.items():
            flat.append(name if isinstance(name, bytes) else to_bytes(name))
            flat.append(value if isinstance(value, bytes) else to_bytes(value))
    elif isinstance(fields, Mapping):
        for name in fields:
            flat.append(to_bytes(name))
            flat.append(to_bytes(fields[name]))
    if not flat:
        raise ArgumentError("XADD fields must be a non-empty dict")
    return flat


def pairs_to_flat(pairs: object) -> list[bytes]:
    """Return field, value, ... of (field, value) pairs, in order, duplicates kept; or of a dict."""
    if isinstance(pairs, Mapping):
        return to_pairs(pairs)
    flat: list[bytes] = []
    if isinstance(pairs, (list, tuple)):
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise ArgumentError("an entry is a dict, or a sequence of (field, value) pairs")
            flat.append(to_bytes(pair[0]))
            flat.append(to_bytes(pair[1]))
    if not flat:
        raise ArgumentError("an entry needs at least one field")
    return flat


def to_id_text(value: object) -> bytes:
    """Return the text of an ID argument, which may be bytes, str, int or a StreamId."""
    if isinstance(value, StreamId):
        return id_text(value[0], value[1])
    return to_bytes(value)


def to_id(value: object, default_seq: int = 0) -> tuple[int, int]:
    """Parse an ID where `-` and `+` are not allowed."""
    return parse_id(to_id_text(value), default_seq)


def parse_ids(texts: list[bytes]) -> list[tuple[int, int]]:
    """Parse all IDs of a command, before it changes anything."""
    return [parse_id(text, 0) for text in texts]


def range_start(value: object) -> tuple[int, int]:
    """Parse the start of an interval: `-`, `+`, `(id`, or an ID, whose seq is 0 unless given."""
    text = to_id_text(value)
    if text[:1] != b"(":
        return _range_id(text, 0)
    ms, seq = parse_id(text[1:], 0)
    if ms == MAX and seq == MAX:
        raise InvalidIdError("invalid start ID for the interval")
    return next_id(ms, seq)


def range_end(value: object) -> tuple[int, int]:
    """Parse the end of an interval: as `range_start`, but the seq is the highest unless given."""
    text = to_id_text(value)
    if text[:1] != b"(":
        return _range_id(text, MAX)
    ms, seq = parse_id(text[1:], MAX)
    if ms == 0 and seq == 0:
        raise InvalidIdError("invalid end ID for the interval")
    return previous_id(ms, seq)


def _range_id(text: bytes, default_seq: int) -> tuple[int, int]:
    """Parse `-`, `+` or an ID."""
    text = clean(text)
    if text == b"-":
        return 0, 0
    if text == b"+":
        return MAX, MAX
    return parse_id(text, default_seq)


def check_count(command: str, name: str, value: object) -> int:
    """Return an optional positive count, 0 for None; raise as redis-py would."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{command} {name} must be a positive integer")
    return to_integer(value)


def check_block(command: str, value: object) -> int:
    """Return how many milliseconds a command may wait, 0 for ever; raise as redis-py does."""
    if not isinstance(value, int) or value < 0:
        raise ArgumentError(f"{command} block must be a non-negative integer")
    if value >= _TOO_LARGE:
        raise ArgumentError("timeout is not an integer or out of range")
    if value >= _TOO_LARGE - _LATEST_MS:
        raise ArgumentError("timeout is out of range")
    return int(value)


def to_integer(value: object) -> int:
    """Return a number that a server could read, which takes signed 64-bit ones."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError("value is not an integer or out of range")
    if not -_TOO_LARGE <= value < _TOO_LARGE:
        raise ArgumentError("value is not an integer or out of range")
    return value


def to_optional_integer(value: object) -> int | None:
    """As `to_integer`; None stays None."""
    return None if value is None else to_integer(value)


def check_policy(command: str, policy: object) -> int:
    """Return the number of a reference policy; raise as redis-py would."""
    if policy is None:
        return 0
    if policy not in POLICIES:
        raise ArgumentError(f"{command} ref_policy must be one of: KEEPREF, DELREF, ACKED")
    return POLICIES.index(str(policy))
