"""Columns for the fields of streams, inferred from a sample: the option `inferSchema`.

A field gets the narrowest type that all of its sampled values have:

    bigint      whole numbers, without zeros in front, which codes and telephone numbers have, and
                that it can hold: a double would lose digits of others
    double      numbers
    boolean     true and false
    date, timestamp   as in ISO 8601, of days that exist
    struct, array     JSON objects and arrays; their members get types in the same way
    string      any other text
    binary      what is not UTF-8

Half of the sample is from the oldest entries of a range, half from the newest, so that fields that
came later are seen as well. A value that does not fit is null then, as in any column. Runs on the
driver.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from itertools import islice
from typing import Any, Final

from pyspark.sql import types

from streamkeep.arrow.batches import SYSTEM_COLUMNS
from streamkeep.pipeline.options import ReadOptions
from streamkeep.pipeline.source.executor import read_slices
from streamkeep.pipeline.source.plan import plan_pins
from streamkeep.pipeline.source.slices import Pin, Slice

_log = logging.getLogger(__name__)

_MOST_STREAMS: Final = 16  # of which entries are sampled
_LONGEST: Final = len(str(-(1 << 63)))  # of a bigint
_DEEPEST: Final = 16  # levels of JSON; deeper ones are text
_PAIR: Final = types.StructType(
    [types.StructField("field", types.BinaryType()), types.StructField("value", types.BinaryType())]
)
_FIELDS: Final = types.StructType([types.StructField("fields", types.ArrayType(_PAIR))])

_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_BOOLEAN: Final = re.compile(r"true|false", re.IGNORECASE | re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME: Final = re.compile(
    rf"({_DATE.pattern})[T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{{1,6}})?)?"
    r"(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)?"
)

Sample = dict[bytes, list[bytes]]  # the values of each field


def inferred_columns(options: ReadOptions, pins: Sequence[Pin]) -> list[types.StructField]:
    """Return a column for each field of the sampled entries, in the order in which they came.

    A field that has the name of a column of every read, or of a column such as `field.NAME`, is the
    column `field.` and its name. One whose name is not UTF-8, or differs from another only in case,
    has none; the log says so.
    """
    samples: Sample = {}
    chosen = list(pins)[:: max(1, -(-len(pins) // _MOST_STREAMS))]
    count = max(1, options.sample_entries // max(1, len(chosen)))
    for pin in chosen:
        for pairs in _sampled(options, pin, count):
            for field, value in pairs:
                samples.setdefault(field, []).append(value)
    columns: dict[str, types.StructField] = {}
    for field, values in samples.items():
        try:
            name = field.decode()
        except UnicodeDecodeError:
            _log.warning("field %r is not UTF-8 and gets no column", field)
            continue
        if name.lower() in SYSTEM_COLUMNS or not name or name.startswith("field."):
            name = f"field.{name}"
        if name.lower() in columns:
            _log.warning("field %r differs from another only in case and gets no column", name)
            continue
        columns[name.lower()] = types.StructField(name, type_of_texts(values))
    return list(columns.values())


def _sampled(options: ReadOptions, pin: Pin, count: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the fields of the oldest and of the newest entries of a range."""
    planned = replace(options, min_partitions=None, max_records=None)
    parts = plan_pins(planned, (pin,))
    slices = [one for part in parts for one in part]
    if not slices:
        return
    half = -(-count // 2)
    first = list(islice(_pairs(options, slices[:1]), count))
    yield from first[:half]
    if len(slices) == 1:
        rest = _pairs(options, slices)
        taken = sum(1 for _ in islice(rest, half))
        yield from deque(rest, count - taken)
    else:
        yield from deque(_pairs(options, slices[-1:]), count - half)


def _pairs(options: ReadOptions, slices: Sequence[Slice]) -> Iterator[list[tuple[bytes, bytes]]]:
    for batch in read_slices(_FIELDS, tuple(slices), options.mode):
        for fields in batch.column(0).to_pylist():
            yield [(one["field"], one["value"]) for one in fields]


# --- types ----------------------------------------------------------------------------------------


def type_of_texts(values: Iterable[bytes]) -> types.DataType:
    """Return the narrowest type of all values; string if there are none but empty ones."""
    found: types.DataType | None = None
    for value in values:
        if value:
            found = _merged(found, _type_of_text(value))
    return found if found is not None else types.StringType()


def _type_of_text(value: bytes) -> types.DataType:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return types.BinaryType()
    if _WHOLE.fullmatch(text):
        return _type_of_whole(int(text)) if len(text) <= _LONGEST else types.StringType()
    if _NUMBER.fullmatch(text):
        return types.DoubleType()
    if _BOOLEAN.fullmatch(text):
        return types.BooleanType()
    if _DATE.fullmatch(text) and _exists(text):
        return types.DateType()
    if (found := _TIME.fullmatch(text)) and _exists(found[1]):
        return types.TimestampType()
    if text[0] in "{[":
        try:
            return _type_of_json(json.loads(text), 0) or types.StringType()
        except (ValueError, RecursionError):
            return types.StringType()
    return types.StringType()


def _exists(day: str) -> bool:
    try:
        date.fromisoformat(day)
    except ValueError:
        return False
    return True


def _type_of_whole(number: int) -> types.DataType:
    """Return bigint, or string for a number beyond it, of which a double would lose digits."""
    return types.LongType() if -(1 << 63) <= number < 1 << 63 else types.StringType()


def _type_of_json(value: Any, depth: int) -> types.DataType | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return types.BooleanType()
    if isinstance(value, int):
        return _type_of_whole(value)
    if isinstance(value, float):
        return types.DoubleType()
    if depth < _DEEPEST and isinstance(value, list):
        element: types.DataType | None = None
        for one in value:
            element = _merged(element, _type_of_json(one, depth + 1))
        return types.ArrayType(element or types.StringType())
    if depth < _DEEPEST and isinstance(value, dict) and value:
        return types.StructType(
            [
                types.StructField(name, _type_of_json(one, depth + 1) or _NOTHING)
                for name, one in value.items()
            ]
        )
    return types.StringType()


class _Nothing(types.StringType):
    """The type of a member that was null in all values so far: a string, unless one has a type."""


_NOTHING: Final = _Nothing()


def _merged(left: types.DataType | None, right: types.DataType | None) -> types.DataType | None:
    """Return the narrowest type of values of both."""
    if left is None or isinstance(left, _Nothing):
        return right if right is not None else left
    if right is None or isinstance(right, _Nothing) or left == right:
        return left
    kinds = {type(left), type(right)}
    if kinds == {types.LongType, types.DoubleType}:
        return types.DoubleType()
    if kinds == {types.DateType, types.TimestampType}:
        return types.TimestampType()
    if isinstance(left, types.ArrayType) and isinstance(right, types.ArrayType):
        return types.ArrayType(_merged(left.elementType, right.elementType) or types.StringType())
    if isinstance(left, types.StructType) and isinstance(right, types.StructType):
        members = {one.name: one.dataType for one in left}
        for one in right:
            members[one.name] = _merged(members.get(one.name), one.dataType) or _NOTHING
        return types.StructType([types.StructField(name, kind) for name, kind in members.items()])
    return types.BinaryType() if types.BinaryType in kinds else types.StringType()
