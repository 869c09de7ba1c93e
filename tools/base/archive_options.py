"""What the commands of `streamkeep archive` share: options, and the JSON of a segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.segment.manifest import ORIGINS, SegmentRecord
from streamkeep.format.segment.remote import segment_name
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES
from streamkeep.tools.base.arguments import Bytes, Id, Number

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

Function = TypeVar("Function", bound=Callable[..., Any])


def number_option(function: Function) -> Function:
    """Add --stream-number."""
    return click.option(
        "--stream-number",
        type=Number(min=1),
        help="The stream of this number instead of KEY. A deleted stream has no other name.",
    )(function)


def range_options(function: Function) -> Function:
    """Add --start and --end."""
    function = click.option(
        "--end",
        type=Id("to"),
        default="+",
        metavar="ID|TIME",
        help="Only up to this ID, included, or the first millisecond of this time.",
    )(function)
    return click.option(
        "--start",
        type=Id("from"),
        default="-",
        metavar="ID|TIME",
        help="Only from this ID or time on.",
    )(function)


def block_limit_option(function: Function) -> Function:
    """Add --max-block-bytes."""
    return click.option(
        "--max-block-bytes",
        type=Number(min=1),
        default=MAX_BLOCK_BYTES,
        show_default=True,
        help="Refuse a segment with a block that takes more memory; a small file can hold much.",
    )(function)


def check_chosen(key: bytes | None, stream_number: int | None) -> None:
    """Refuse two ways to name a stream."""
    if key is not None and stream_number is not None:
        raise click.UsageError("KEY and --stream-number cannot be used together")


optional_key = click.argument("key", metavar="[KEY]", type=Bytes(), default=None, required=False)


def segment_json(store: Store[bytes], record: SegmentRecord) -> dict[str, Any]:
    """Return the JSON members of one segment."""
    return {
        "key": json_bytes(record.key),
        "stream_number": record.stream_number,
        "file": segment_place(store, record),
        "first_id": str(record.first_id),
        "last_id": str(record.last_id),
        "first_time_ms": record.first_ms,
        "last_time_ms": record.last_ms,
        "entries": record.entries,
        "nodes": record.nodes,
        "size_bytes": record.size_bytes,
        "raw_bytes": record.raw_bytes,
        "checksum": f"{record.checksum:016x}",
        "sequence": record.sequence,
        "created_time_ms": record.created_ms,
        "erased": record.erased,
        "origin": ORIGINS[record.origin],
    }


def segment_place(store: Store[bytes], record: SegmentRecord) -> str:
    """Return where the file of a segment is: its path, or its URI in an object store."""
    path = store.segment_path(record)
    remote = store.remote_archive()
    if remote is None or path.exists():
        return str(path)
    return f"{remote.uri}/{store.uuid}/{segment_name(record.path)}"
