"""Python arguments to bytes and numbers, by redis-py's rules, and IDs by Redis's. Compiled by
mypyc.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, CommandError, InvalidIdError
from streamkeep.format.core.id_codec import MAX, cut_id, id_text, next_id, parse_id, previous_id
from streamkeep.format.core.values import as_given, whole

_TOO_LARGE: Final = 1 << 63
_MOST_DIGITS: Final = 19
_LATEST_MS: Final = (
    1 << 42
)  # a time in the 22nd century; the end of a wait must come before it, too
NOT_INTEGER: Final = "value is not an integer or out of range"
_WHOLE: Final = "a number from -9223372036854775808 to 9223372036854775807 is expected"
NODE_LIMITS: Final = (4096, 100)  # bytes and entries of a macro node: the defaults of Redis
_MOST_OF_NODE: Final = (1 << 32) - 2
POLICIES: Final = ("KEEPREF", "DELREF", "ACKED")  # in the order of `references`


def refused(problem: str, parameter: str, value: object, expected: str) -> CommandError:
    """Return the error of a server, with the value and what is expected."""
    error = CommandError(problem)
    error.add_note(f"{parameter} is {as_given(value)}; {expected}")
    return error


def no_arguments(command: str) -> CommandError:
    """Return the error of a server for a command without the arguments that it needs."""
    return CommandError(f"wrong number of arguments for '{command}' command")


def to_bytes(value: object, parameter: str = "") -> bytes:
    """Return a key, field, value or name as bytes; raise ArgumentError as redis-py would."""
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return repr(value).encode()
    except ValueError:  # lone surrogates, or an int of more digits than Python prints
        raise ArgumentError(
            f"{parameter or 'a value'} is {as_given(value)}, which cannot be encoded as UTF-8; "
            "next: give it as bytes"
        ) from None
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    subject = f"{parameter} is {as_given(value)}" if parameter else as_given(value)
    raise ArgumentError(
        f"Invalid input of type: '{type(value).__name__}'. "
        f"Convert to a bytes, string, int or float first: {subject}"
    )


def _to_value(name: object, value: object) -> bytes:
    """As `to_bytes`, for the value of a field, which an error names."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return repr(value).encode()
    except ValueError:
        pass  # the call below raises it, with the name of the field
    return to_bytes(value, f"the value of field {as_given(name)}")


def to_flat(fields: object) -> list[bytes]:
    """Return field, value, field, value, ... of a dict, or of (field, value) pairs."""
    flat: list[bytes] = []
    if isinstance(fields, dict):
        for name, value in fields.items():
            flat.append(name if isinstance(name, bytes) else to_bytes(name, "a field"))
            flat.append(value if isinstance(value, bytes) else _to_value(name, value))
    elif isinstance(fields, Mapping):
        for name in fields:
            flat.append(to_bytes(name, "a field"))
            flat.append(_to_value(name, fields[name]))
    elif isinstance(fields, Iterable) and not isinstance(fields, (str, bytes)):
        for pair in fields:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise ArgumentError(
                    "an entry is a dict, or a sequence of (field, value) pairs; "
                    f"{as_given(pair)} is not a pair"
                )
            flat.append(to_bytes(pair[0], "a field"))
            flat.append(_to_value(pair[0], pair[1]))
    if not flat:
        raise ArgumentError(
            f"XADD fields must be a non-empty dict, or (field, value) pairs, not {as_given(fields)}"
        )
    return flat


def to_id_text(value: object) -> bytes:
    """Return the text of an ID argument, which may be bytes, str, int or a StreamId."""
    if isinstance(value, StreamId):
        return id_text(value[0], value[1])
    return to_bytes(value, "an ID")


def to_id(value: object) -> tuple[int, int]:
    """Parse an ID where `-` and `+` are not allowed."""
    return parse_id(to_id_text(value), 0)


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
        raise _no_bound("start", value, "there is no ID after it")
    return next_id(ms, seq)


def range_end(value: object) -> tuple[int, int]:
    """Parse the end of an interval: as `range_start`, but the seq is the highest unless given."""
    text = to_id_text(value)
    if text[:1] != b"(":
        return _range_id(text, MAX)
    ms, seq = parse_id(text[1:], MAX)
    if ms == 0 and seq == 0:
        raise _no_bound("end", value, "there is no ID before it")
    return previous_id(ms, seq)


def _no_bound(end: str, value: object, why: str) -> InvalidIdError:
    error = InvalidIdError(f"invalid {end} ID for the interval")
    error.add_note(f"{end} is {as_given(value)}: {why}")
    return error


def _range_id(text: bytes, default_seq: int) -> tuple[int, int]:
    text = cut_id(text)
    if text == b"-":
        return 0, 0
    if text == b"+":
        return MAX, MAX
    return parse_id(text, default_seq)


def to_integer(parameter: str, value: object, problem: str = NOT_INTEGER) -> int:
    """Return a number that redis-py sends as it is: an int, or text that a server reads as one.

    Raises:
        CommandError: a server would refuse it, saying `problem`.
        ArgumentError: redis-py does not send it.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if -_TOO_LARGE <= value < _TOO_LARGE:
            return value
        raise refused(problem, parameter, value, _WHOLE)
    text = to_bytes(value, parameter)
    if not _is_number(text):
        raise refused(problem, parameter, value, _WHOLE)
    return to_integer(parameter, int(text), problem)


def _is_number(text: bytes) -> bool:
    """Return whether a server reads text as an integer: no spaces, no plus, no leading zeros."""
    digits = text[1:] if text[:1] == b"-" else text
    if len(digits) > _MOST_DIGITS or not digits.isdigit():
        return False
    return digits[0] != 48 or text == b"0"


def to_optional_integer(parameter: str, value: object) -> int | None:
    return None if value is None else to_integer(parameter, value)


def check_integer(
    problem: str, parameter: str, value: object, least: int | None, server: str = NOT_INTEGER
) -> int:
    """Return an int that redis-py checks before it sends it.

    Args:
        problem: the error of redis-py for a value that is not an int, or is below `least`.
        server: the error of a server for a value out of range. (Also for a bool: redis-py takes
            it for an int, and sends it as "True".)
    """
    # Compiled code converts a value that is known to be an int to a plain int, so test bool first.
    sent: object = str(value) if isinstance(value, bool) else value
    if not isinstance(value, int) or (least is not None and value < least):
        raise ArgumentError(f"{problem}, not {as_given(value)}")
    return to_integer(parameter, sent, server)


def check_not_negative(
    problem: str, parameter: str, value: object, server: str = NOT_INTEGER
) -> int:
    """Return a number that redis-py checks as `int(value)`, and sends as it is.

    Args:
        problem: the error of redis-py for a negative number.
        server: the error of a server for text that is not a number.
    """
    if isinstance(value, (int, float, str, bytes)):
        try:
            negative = int(value) < 0
        except (ValueError, OverflowError):
            negative = True  # redis-py raises a ValueError here
        if negative:
            raise ArgumentError(f"{problem}, not {as_given(value)}")
    return to_integer(parameter, value, server)


def check_count(command: str, name: str, value: object) -> int:
    """Return an optional positive count, 0 for None; raise as redis-py and a server would."""
    if value is None:
        return 0
    return check_integer(f"{command} {name} must be a positive integer", name, value, 1)


def check_block(command: str, value: object) -> int:
    """Return how many milliseconds a command may wait; 0 for no limit."""
    wait_ms = check_integer(
        f"{command} block must be a non-negative integer",
        "block",
        value,
        0,
        "timeout is not an integer or out of range",
    )
    if wait_ms >= _TOO_LARGE - _LATEST_MS:
        raise refused("timeout is out of range", "block", value, "the wait must end in this era")
    return wait_ms


def check_policy(command: str, policy: object) -> int:
    """Return the number of a reference policy; raise as redis-py would."""
    if policy not in POLICIES:
        raise ArgumentError(
            f"{command} ref_policy must be one of: KEEPREF, DELREF, ACKED, not {as_given(policy)}"
        )
    return POLICIES.index(str(policy))


def check_node_limits(most_bytes: object, most_entries: object) -> tuple[int, int] | None:
    """Return both limits of a macro node, or None where neither is given."""
    if most_bytes is None and most_entries is None:
        return None
    limits = (
        NODE_LIMITS[0]
        if most_bytes is None
        else whole(most_bytes, "node_max_bytes", 0, _MOST_OF_NODE),
        NODE_LIMITS[1]
        if most_entries is None
        else whole(most_entries, "node_max_entries", 0, _MOST_OF_NODE),
    )
    if not any(limits):  # an append writes its node again, so a stream would cost its square
        raise ArgumentError(
            "node_max_bytes and node_max_entries cannot both be 0: the node would have no limit, "
            "and each append would be slower than the one before; next: give one of them"
        )
    return limits
