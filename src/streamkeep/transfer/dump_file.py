"""`dump`: streams of a store in a file, in any of the formats of `formats.py`."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, Literal, NamedTuple, assert_never

from streamkeep.commands.strings import DEADLINES
from streamkeep.engine.api.command_base import Key, RangeId, end_bound, start_bound
from streamkeep.engine.commands.arguments import to_bytes
from streamkeep.engine.commands.rows import check_space
from streamkeep.engine.system.clock import current_clock
from streamkeep.engine.system.files import behind_links, path_of, replacing
from streamkeep.engine.tables.existing import existing_stream, group_in
from streamkeep.engine.tables.lag import lag
from streamkeep.engine.tables.scan import rows_with
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, TargetExistsError
from streamkeep.format.core.keys import GROUPS, ROWS
from streamkeep.format.core.values import whole
from streamkeep.format.redis.stream_dump import EXPIRY_LOSS, TARGETS, Losses
from streamkeep.format.rows.extension import IDEMPOTENCE, RETENTION, split_sections
from streamkeep.transfer.dumping.jsonl import JsonWriter
from streamkeep.transfer.dumping.redis_files import write_commands, write_payloads, write_rdb
from streamkeep.transfer.dumping.source import Limits, Source
from streamkeep.transfer.dumping.tables import Chosen, TextWriter, write_csv, write_parquet
from streamkeep.transfer.formats import DumpFormat, dump_format
from streamkeep.transfer.stores import AnySource, Progress, ProgressCallback, reading

DEFAULT_REDIS: Final = "7.2"  # every Valkey reads it, too
REDIS_VERSIONS: Final = tuple(TARGETS)
ROW_LOSS: Final = "row of a queue or a program; a backup has them"
MESSAGES_LOSS: Final = "messages and settings of idempotent XADD of a stream"
_WHOLE: Final[tuple[DumpFormat, ...]] = ("dump", "rdb")
_TABLES: Final[tuple[DumpFormat, ...]] = ("csv", "parquet")

DumpTarget = str | os.PathLike[str] | BinaryIO


class DumpReport(NamedTuple):
    """What a dump has written.

    Attributes:
        format: the format of the file.
        streams, entries: how many were written.
        dropped: what the format cannot hold, and how often it occurred.
        newer_keeps_more: a newer `redis` keeps some of that.
        unfinished: streams that the dump has left out, because the loads that bring them have not
            ended or were killed.
        size_bytes: of the file; None for an open file and a device.
        seconds: how long the dump took.
    """

    format: DumpFormat
    streams: int
    entries: int
    dropped: dict[str, int]
    newer_keeps_more: bool
    unfinished: int
    size_bytes: int | None
    seconds: float


def dump(
    store: AnySource,
    target: DumpTarget,
    *,
    format: DumpFormat | None = None,
    keys: Key | Iterable[Key] | None = None,
    start: RangeId | None = None,
    end: RangeId | None = None,
    count: int | None = None,
    history: bool = False,
    redis: str = DEFAULT_REDIS,
    fields: Key | Iterable[Key] | None = None,
    types: Mapping[Any, object] | None = None,
    errors: Literal["raise", "null"] = "raise",
    repeated: Literal["raise", "last"] = "raise",
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> DumpReport:
    """Write streams of a store to a file, in another form.

    The store does not change. The dump is of one moment, whatever other threads and processes write
    at the same time: of a snapshot, which the store keeps until the dump ends. A file appears under
    its name when it is whole and on disk; a dump that fails leaves no file, and leaves the file
    that it would have replaced as it was. Memory does not grow with the number of entries.

    Args:
        store: an open store, a snapshot of one, or the path of a store, which is opened read-only.
        target: a path, or a binary file that is open for writing, which stays open.
        format: "jsonl" (loses nothing of a stream), "text" (for people), "csv", "parquet", "resp"
            (commands for `redis-cli --pipe`), "dump" (what Redis's DUMP returns: of one stream as
            it is, else a line of JSON per stream) or "rdb" (a file that Redis starts from). None:
            the ending of the file name gives it.
        keys: the stream or the streams to write; None for all of them.
        start, end: the first and the last ID of each stream, both included, or times, as `min` and
            `max` of `Store.xrange`. Not for "dump" and "rdb", which hold whole streams.
        count: how many entries of each stream at most; not for "dump" and "rdb".
        history: also the entries that were trimmed while the stream archived; not for "dump" and
            "rdb".
        redis: for "rdb", "dump" and "resp": the oldest Redis that is to read it: "5.0", "7.0",
            "7.2" (also every Valkey), "8.6", "8.8" or "8.10".
        fields: for "csv" and "parquet": the fields that become columns; others are left out.
            None: all; "parquet" then has one column of pairs.
        types, errors, repeated: for "parquet" with `fields`: {field: type}, and what becomes of
            values that do not fit, as in `Store.to_arrow`.
        overwrite: replace a file that exists; otherwise it is an error.
        progress: is called with a `Progress` every thousand entries or so.

    Raises:
        ArgumentError: the format is unknown, or an argument does not go with it.
        TargetExistsError: the file exists, and `overwrite` is false.
        NoSuchKeyError: one of `keys` is not a stream.
        TransferError: a package is missing, or entries have too many fields for a table.
        ValueMismatchError: a value does not fit its column.
        CorruptionError: the store is damaged; or with `history` a segment of the archive is.
        StoreError: the store cannot be opened or read.
        OSError: the file cannot be written.
    """
    is_file = hasattr(target, "write") and not isinstance(target, os.PathLike)
    name = None if is_file else str(path_of(target, "target"))
    kind = dump_format(format, name)
    now_ms = current_clock().now_ms
    limits = Limits(
        StreamId(*start_bound("start", "-" if start is None else start, now_ms)),
        StreamId(*end_bound("end", "+" if end is None else end, now_ms)),
        count,
        history,
    )
    if (history or not limits.whole) and kind in _WHOLE:
        raise ArgumentError(
            f"start=, end=, count= and history= are not for {kind}, which holds whole streams"
        )
    if fields is not None and kind not in _TABLES:
        raise ArgumentError("fields= is for csv and parquet")
    if (types or errors != "raise" or repeated != "raise") and (
        kind != "parquet" or fields is None
    ):
        raise ArgumentError("types=, errors= and repeated= are for parquet with fields=")
    whole(0 if count is None else count, "count", 0)
    if isinstance(target, io.TextIOBase):
        raise ArgumentError("the target is a file of text; open it in binary mode")
    if redis not in REDIS_VERSIONS:
        raise ArgumentError(f"redis must be one of {', '.join(TARGETS)}, not {redis!r}")
    columns = None if fields is None else _names(fields, "fields")
    if name is not None and (os.path.isdir(name) or str(target).endswith("/")):
        raise ArgumentError(f"{target} names a folder, and a dump is one file: name a file in it")
    if name is not None and not overwrite and os.path.isfile(name):
        raise TargetExistsError(
            f"{name}: the file exists", hint="overwrite=True replaces it; or give another name"
        )
    began = time.perf_counter()
    with reading(store) as snapshot:
        source = Source(snapshot, None if keys is None else _names(keys, "keys"), limits)
        if progress is not None:
            report, total = progress, source.total()
            source.moved = lambda entries: report(Progress(entries, entries, total))
        with _opened(target) as out:
            losses = Losses()
            if kind == "jsonl":
                JsonWriter(out.write).dump(source, snapshot.uuid, current_clock().now_ms())
            elif kind == "text":
                TextWriter(source, out.write).dump()
            elif kind == "csv":
                write_csv(source, columns, out.write)
            elif kind == "parquet":
                chosen = None
                if columns is not None:
                    chosen = Chosen(columns, types or {}, errors, repeated)
                write_parquet(source, chosen, out)
            elif kind == "resp":
                losses = write_commands(source, redis, out.write)
            elif kind == "dump":
                losses = write_payloads(source, redis, out.write)
            elif kind == "rdb":
                losses = write_rdb(source, redis, out.write)
            else:
                assert_never(kind)
            # Nothing is decoded: what is left out may be damaged.
            space, txn = check_space(DEADLINES), source.txn
            found = rows_with(txn, ROWS, space)
            ending = {int.from_bytes(key[len(space) :], "big") for key, _ in found}
            for key in source.names():
                stream = existing_stream(txn, key)
                losses.add(EXPIRY_LOSS, stream.number in ending)
                sections = split_sections(stream.record.extension, "stream record")
                if kind not in ("jsonl", "text"):
                    losses.add("retention of a stream", RETENTION in sections)
                if kind in _TABLES:
                    losses.add("stream without live entries", not stream.record.length)
                if kind in _TABLES or not limits.whole:
                    groups = sum(1 for _ in rows_with(txn, GROUPS, stream.db_key))
                    losses.add("consumer group", groups)
                if kind in _TABLES or kind == "text" or not limits.whole:
                    losses.add(MESSAGES_LOSS, IDEMPOTENCE in sections)
            if limits.whole and source.keys is None:
                ends = losses.get(EXPIRY_LOSS, 0)
                losses.add(ROW_LOSS, sum(1 for _ in rows_with(txn, ROWS, b"")) - ends)
    size = os.path.getsize(name) if name is not None and os.path.isfile(name) else None
    return DumpReport(
        kind,
        source.streams,
        source.entries,
        dict(losses),
        losses.newer,
        source.unnamed,
        size,
        time.perf_counter() - began,
    )


def _names(given: Key | Iterable[Key], what: str) -> list[bytes]:
    """Return some names, each once; a single one counts as such, not as its characters."""
    if isinstance(given, (bytes, str, memoryview)) or not isinstance(given, Iterable):
        given = [given]
    return [*dict.fromkeys(to_bytes(one, what) for one in given)]


def dump_group(
    store: AnySource,
    out: BinaryIO,
    key: Key,
    group: Key,
    *,
    format: Literal["jsonl", "text"] = "text",
) -> None:
    """Write one consumer group, with its consumers and pending entries, to an open file.

    Raises:
        NoSuchKeyError, NoSuchGroupError: there is no such stream or group.
    """
    with reading(store) as snapshot:
        stream = existing_stream(snapshot.txn, to_bytes(key, "key"))
        found = group_in(snapshot.txn, stream, to_bytes(group, "group"))
        if format == "jsonl":
            JsonWriter(out.write).group(found)
        else:
            writer = TextWriter(Source(snapshot, None, Limits()), out.write)
            writer.group(found, lag(stream.record, found.record))
        out.flush()


@contextmanager
def _opened(target: DumpTarget) -> Iterator[BinaryIO]:
    if isinstance(target, (str, os.PathLike)):
        with replacing(behind_links(path_of(target, "target"))) as out:
            yield out
    elif isinstance(target, io.RawIOBase):  # such as that of a socket, which may take a part
        buffered = io.BufferedWriter(target)
        try:
            yield buffered
        finally:
            buffered.detach()
    else:
        yield target
        target.flush()
