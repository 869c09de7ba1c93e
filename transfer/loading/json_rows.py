"""Rows of JSON Lines.

Each line is an object, whose members become fields. Strings are taken as they are; numbers, true,
false and null as they are written, so that no digit is lost; nested values as compact JSON.

A line with `"type": "entry"` and `fields` is one that `streamkeep range --json` printed: ID, order,
duplicate fields and binary values are restored. With `key`, the line also names
its stream. The reader skips the `summary`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from streamkeep.format.core.json_form import from_json
from streamkeep.transfer.loading.rows import Columns, Row, parse_full_id
from streamkeep.transfer.loading.text_lines import BOM, BOMS_OF_UTF_16, RowError, bounded_lines


class _Number(str):
    """A JSON number, as it is written."""

    __slots__ = ()


class _Object(list[tuple[str, object]]):
    """A JSON object: its members in order, duplicates kept."""


def _refuse_constant(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


_decode = json.JSONDecoder(
    object_pairs_hook=_Object,
    parse_int=_Number,
    parse_float=_Number,
    parse_constant=_refuse_constant,
).decode


def read_jsonl(stream: io.BufferedReader[Any], columns: Columns, max_line: int) -> Iterator[Row]:
    """Yield the rows of a JSON Lines file."""
    for number, data in enumerate(bounded_lines(stream, max_line), 1):
        if number == 1:
            if data[:2] in BOMS_OF_UTF_16:
                raise RowError(1, "UTF-16 text", hint="iconv -f utf-16 -t utf-8 FILE")
            data = data.removeprefix(BOM)
        if data.isspace() or not data:
            continue
        row = _json_row(number, _parse(number, data), columns)
        if row is not None:
            yield row


def _parse(line: int, data: bytes) -> _Object:
    """Return the object on a line."""
    try:
        value = _decode(data.decode())
    except UnicodeDecodeError as error:
        raise RowError(line, f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        hint = ""
        if line == 1 and data.strip() in (b"{", b"["):
            hint = (
                "one object per line is expected; `jq -c . FILE` writes them so, or `jq -c '.[]'`"
            )
        raise RowError(line, f"not JSON: {error.msg} at column {error.colno}", hint=hint) from None
    except RecursionError:
        raise RowError(line, "nested too deeply") from None
    except ValueError as error:
        raise RowError(line, str(error)) from None
    if isinstance(value, _Object):
        return value
    hint = "`jq -c '.[]' FILE` writes an array as lines" if isinstance(value, list) else ""
    raise RowError(line, f"{_kind(value)}, but an object is expected", hint=hint)


def _kind(value: object) -> str:
    if isinstance(value, _Number):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "an array"
    return "null" if value is None else "true or false"


def _json_row(line: int, members: _Object, columns: Columns) -> Row | None:
    """Return the entry that an object describes; None for a summary line."""
    known = dict(members)
    if known.get("type") == "entry" and isinstance(known.get("fields"), list):
        return _lossless_row(line, known)
    if known.get("type") == "summary" and "command" in known and "entries" in known:
        return None
    if not members:
        raise RowError(line, "an object without members; an entry has at least one field")
    text = None
    if columns.name is not None:
        if columns.name not in known:
            raise RowError(line, f"no member {columns.name!r}; there are {', '.join(known)}")
        value = known[columns.name]
        if not isinstance(value, str):
            raise RowError(line, f"member {columns.name!r} is {_kind(value)}")
        text = value
    ms, seq = columns.place(line, text)
    pairs = [(_encoded(line, name), _encoded(line, _text(value))) for name, value in members]
    return Row(line, dict(pairs) if len(known) == len(pairs) else pairs, ms, seq)


def _text(value: object) -> str:
    """Return a JSON value as text: a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else _compact(value)


def _compact(value: object) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, _Object):
        members = (f"{_compact(name)}:{_compact(item)}" for name, item in value)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    return {None: "null", True: "true", False: "false"}[value]  # type: ignore[index]


def _encoded(line: int, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RowError(line, "a string holds half of a surrogate pair, which is no text") from None


def _lossless_row(line: int, known: dict[str, object]) -> Row:
    """Return an entry as `streamkeep range --json` prints it."""
    entry_id, fields = known.get("id"), known["fields"]
    key = _lossless(line, known["key"]) if "key" in known else None
    if type(entry_id) is not str:
        raise RowError(line, "an entry whose 'id' is not a string")
    try:
        ms, seq = parse_full_id(entry_id)
    except ValueError as error:
        raise RowError(line, f"id: {error}") from None
    if type(fields) is not list or set(map(type, fields)) != {list} or set(map(len, fields)) != {2}:
        raise RowError(line, "an entry whose 'fields' are not [field, value] pairs, at least one")
    if set(map(type, chain.from_iterable(fields))) == {str}:  # nearly always
        with suppress(UnicodeEncodeError):
            pairs = [(field.encode(), value.encode()) for field, value in fields]
            return Row(line, pairs, ms, seq, key)
    pairs = [(_lossless(line, field), _lossless(line, value)) for field, value in fields]
    return Row(line, pairs, ms, seq, key)


def _lossless(line: int, value: object) -> bytes:
    """Return the bytes of a string, or of a `{"base64": "..."}`."""
    if type(value) is str:
        return _encoded(line, value)
    try:
        return from_json(dict(value) if isinstance(value, _Object) else value)
    except ValueError as error:
        raise RowError(line, f"a key, field or value: {error}") from None
