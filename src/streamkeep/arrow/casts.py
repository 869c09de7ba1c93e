"""Conversion of stored text to Arrow types.

A conversion gives null where a text is not of the type. If all texts are, it takes a single pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

# The texts that may be converted to a type; other texts give null.
_NUMBER: Final = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:inf|infinity|nan)$"
_INTEGER: Final = r"^-?\d+$"
_BOOLEAN: Final = r"^(?i:true|false|0|1)$"
_DATE: Final = r"^\d{4}-\d\d-\d\d$"
_TIME: Final = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
_NANO_TIME: Final = _TIME.replace("{1,6}", "{1,9}")
_MOST_US: Final = ((1 << 63) - 1) // 1000  # since 1970, that a time in ns can be
_ZONED: Final = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"

# A number is too large for its type; half of a surrogate pair, which JSON can escape, is no text.
_MISFITS: Final = (pa.ArrowInvalid, OverflowError, UnicodeEncodeError)


def converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that converts stored values to `kind`; None for an unsupported type."""
    types = pa.types
    if types.is_binary(kind):
        return lambda raw: raw
    if types.is_string(kind):
        return lambda raw: cast(raw, kind)
    if types.is_integer(kind):
        return lambda raw: _parsed(raw, _INTEGER, kind)
    if types.is_floating(kind) or types.is_decimal(kind):
        return lambda raw: _parsed(raw, _NUMBER, kind)
    if types.is_boolean(kind):
        return lambda raw: _parsed(raw, _BOOLEAN, kind)
    if types.is_date32(kind):
        return lambda raw: _parsed(raw, _DATE, kind)
    if types.is_timestamp(kind):
        return lambda raw: _times(raw, kind)
    if types.is_nested(kind) and _is_json(kind):
        return lambda raw: _from_json(raw, kind)
    return None


# --- JSON -----------------------------------------------------------------------------------------


def _is_json(kind: pa.DataType) -> bool:
    """Return whether JSON has values of a type: structs, lists and maps of them, and scalars."""
    types = pa.types
    if types.is_struct(kind):
        return all(_is_json(one.type) for one in kind)
    if types.is_list(kind):
        return _is_json(kind.value_type)
    if types.is_map(kind):
        return bool(types.is_string(kind.key_type)) and _is_json(kind.item_type)
    scalars = (types.is_string, types.is_boolean, types.is_floating, types.is_integer)
    return any(is_type(kind) for is_type in scalars)


def _from_json(raw: Any, kind: pa.DataType) -> Any:
    """Return JSON texts as structs, lists or maps; null where a text is not of the type."""
    values: list[Any] = []
    for text in raw.to_pylist():
        value = None
        if text is not None:
            with suppress(ValueError, OverflowError, RecursionError):
                value = _fitting(json.loads(text), kind)
        values.append(value)
    try:
        return pa.array(values, kind)
    except _MISFITS:
        return pa.concat_arrays([_one(value, kind) for value in values])


def _one(value: Any, kind: pa.DataType) -> Any:
    try:
        return pa.array([value], kind)
    except _MISFITS:
        return pa.nulls(1, kind)


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as Arrow takes it for a type; raise ValueError if it does not fit.

    Anything is a string: what is not one is its JSON.
    """
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind) and isinstance(value, dict):
        return {one.name: _fitting(value.get(one.name), one.type) for one in kind}
    if types.is_list(kind) and isinstance(value, list):
        return [_fitting(one, kind.value_type) for one in value]
    if types.is_map(kind) and isinstance(value, dict):
        return [(name, _fitting(one, kind.item_type)) for name, one in value.items()]
    if types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if types.is_boolean(kind) and isinstance(value, bool):
        return value
    if types.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if types.is_floating(kind) and is_number:
        return float(value)
    raise ValueError(f"{value!r} is not {kind}")


# --- text -----------------------------------------------------------------------------------------


def _parsed(raw: Any, pattern: str, kind: pa.DataType) -> Any:
    """Return text as `kind`; null where it does not match the pattern."""
    with suppress(pa.ArrowInvalid):
        text = raw.cast(pa.string())
        found = text.cast(kind)
        # Arrow takes 0x10 for 16.
        if pattern != _INTEGER or not any(
            pc.any(pc.starts_with(text, start)).as_py() for start in ("0x", "0X")
        ):
            return _without_overflow(text, found)
    text = _matching(cast(raw, pa.string()), pattern)
    return _without_overflow(text, cast(text, kind))


def _without_overflow(text: Any, found: Any) -> Any:
    """Return what Arrow has made of text; null for a decimal of which it has lost high bits."""
    if not pa.types.is_decimal(found.type):
        return found
    expected = cast(text, pa.float64())
    error = pc.abs(pc.subtract(found.cast(pa.float64()), expected))
    right = pc.less_equal(error, pc.multiply(pc.abs(expected), 1e-9))
    return pc.if_else(right, found, pa.scalar(None, found.type))


def _times(raw: Any, kind: pa.DataType) -> Any:
    """Return text as times; a text without an offset is taken as UTC."""
    unit = "ns" if kind.unit == "ns" else "us"
    text = _matching(cast(raw, pa.string()), _NANO_TIME if unit == "ns" else _TIME)
    if unit == "ns":  # older versions of Arrow make another time of one that does not fit
        in_us = _times(pc.replace_substring_regex(text, r"(\.\d{6})\d+", r"\1"), TIMESTAMP)
        in_us = in_us.view(pa.int64())
        fits = pc.and_(pc.less_equal(in_us, _MOST_US), pc.greater(in_us, -_MOST_US - 2))
        text = pc.if_else(fits, text, pa.scalar(None, pa.string()))
    zoned = pc.match_substring_regex(text, _ZONED)
    nothing = pa.scalar(None, pa.string())
    in_utc = pa.timestamp(unit, tz="UTC")
    with_zone = cast(pc.if_else(zoned, text, nothing), in_utc)
    without = cast(pc.if_else(zoned, nothing, text), pa.timestamp(unit))
    found = pc.coalesce(with_zone, without.view(in_utc)).view(pa.timestamp(unit, kind.tz))
    return found if kind.unit == unit else cast(found, kind)


def _matching(text: Any, pattern: str) -> Any:
    """Return the text; null where it does not match."""
    return pc.if_else(pc.match_substring_regex(text, pattern), text, pa.scalar(None, pa.string()))


def cast(array: Any, kind: pa.DataType) -> Any:
    """Return the array as `kind`; null where a value cannot be converted."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        return cast_each(array, kind)[0]


def cast_each(array: Any, kind: pa.DataType) -> tuple[Any, list[int]]:
    """Return the array as `kind`, null where a value cannot be converted, and these positions."""
    # Bisection down to single failing values: a few bad values among many cost little.
    done: list[Any] = []
    bad: list[int] = []
    todo = [(0, len(array))]
    while todo:
        start, stop = todo.pop()
        try:
            done.append(array.slice(start, stop - start).cast(kind))
        except pa.ArrowInvalid:
            if stop - start == 1:
                done.append(pa.nulls(1, kind))
                bad.append(start)
            else:
                middle = (start + stop) // 2
                todo += [(middle, stop), (start, middle)]
    return pa.concat_arrays(done), bad


# Names of types that programs write and Arrow does not know, or means something else with.
_NAMES: Final[dict[str, pa.DataType]] = {
    "str": pa.string(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "int": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "datetime": TIMESTAMP,
    "timestamp": TIMESTAMP,
    "timestamp[s]": pa.timestamp("s", tz="UTC"),
    "timestamp[ms]": pa.timestamp("ms", tz="UTC"),
    "timestamp[us]": TIMESTAMP,
    "timestamp[ns]": pa.timestamp("ns", tz="UTC"),
}
_CLASSES: Final[dict[object, pa.DataType]] = {
    str: pa.string(),
    bytes: pa.binary(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    date: pa.date32(),
    datetime: TIMESTAMP,
}
_DECIMAL: Final = re.compile(r"decimal(?:128)?\( *(\d+) *, *(\d+) *\)")
NAMED: Final = (
    "str, bytes, int, float, bool, date, datetime, 'int8' to 'uint64', 'float32', "
    "'timestamp[ms]', 'decimal(10,2)' or a pyarrow.DataType"
)


def arrow_type(given: object) -> pa.DataType:
    """Return an Arrow type that a program names by class, by text or as it is.

    Times without a unit have microseconds; all named ones are in UTC.

    Raises:
        ValueError: there is no such type.
    """
    if isinstance(given, pa.DataType):
        return given
    if isinstance(given, type) and given in _CLASSES:
        return _CLASSES[given]
    if isinstance(given, str):
        name = given.strip()
        if name in _NAMES:
            return _NAMES[name]
        if found := _DECIMAL.fullmatch(name):
            with suppress(pa.ArrowInvalid):
                return pa.decimal128(int(found[1]), int(found[2]))
        with suppress(ValueError):
            return pa.type_for_alias(name)
    raise ValueError(f"{given!r} is not a type; expected {NAMED}")
