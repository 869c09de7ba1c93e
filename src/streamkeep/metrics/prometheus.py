r"""Figures as Prometheus text (the exposition format, version 0.0.4).

`prometheus_text` is what an endpoint of an application returns; `write_textfile` writes it for the
textfile collector of the node exporter. Names of streams and groups are bytes: what is not UTF-8 in
a label is shown as an escape such as \xff. In a name with such bytes, or with such text, each
backslash is doubled, so that no two names get one label.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.system import files
from streamkeep.metrics.figures import Figures, GroupFigures, StreamFigures, figures_of

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_LIKE_AN_ESCAPE: Final = re.compile(r"\\x[89a-f][0-9a-f]")

Labels = dict[str, bytes | str]
Value = int | float | None


class Metric(NamedTuple):
    """One metric with its samples; a sample without a value is left out.

    Attributes:
        samples: of a histogram, those of its buckets.
        total: of a histogram, the sum and the number of what it counts.
    """

    name: str
    kind: str  # gauge, counter or histogram
    text: str
    samples: list[tuple[Labels, Value]]
    total: tuple[float, int] | None = None


def prometheus_text(store: Store[Any]) -> str:
    """Return the figures of a store as Prometheus text."""
    return text_of(metrics_of(figures_of(store)))


def write_textfile(store: Store[Any], path: str | os.PathLike[str]) -> None:
    """Write the figures of a store to a file, whose name should end with `.prom`.

    The file is replaced at once, so that the node exporter never reads a half of it. A link stays,
    and what it leads to is replaced. A device or a pipe is written directly.
    """
    target = files.behind_links(files.path_of(path, "path"))
    ordinary = target.is_file() or not target.exists()
    text = prometheus_text(store)
    with files.replacing(target) as out:
        out.write(text.encode())
        if ordinary:
            os.fchmod(out.fileno(), 0o644)  # the node exporter is another user


def text_of(metrics: Iterable[Metric]) -> str:
    return "".join(line + "\n" for line in _lines(metrics))


def metrics_of(figures: Figures) -> list[Metric]:
    return [*_of_store(figures), *_of_streams(figures), *_of_groups(figures), *_of_queues(figures)]


def _of_store(figures: Figures) -> Iterator[Metric]:
    store, archive = figures.store, figures.archive
    behind = None if store.durable_commit is None else store.last_commit - store.durable_commit
    for name, text, value in (
        ("commit_number", "The newest commit.", store.last_commit),
        ("epoch", "A number that every recovery raises.", store.epoch),
        ("commits_not_durable", "Commits that are not known to be on disk.", behind),
        ("data_file_bytes", "Size of the data file.", store.data_bytes),
        ("used_bytes", "Bytes of the data file that were ever used.", store.used_bytes),
        ("reusable_bytes", "Used bytes that are free.", store.reusable_bytes),
        ("journal_bytes", "Size of the journal.", store.journal_bytes),
        ("disk_free_bytes", "Free bytes on its disk.", store.disk_free_bytes),
        ("snapshots", "Open snapshots of all processes.", store.snapshots),
        (
            "oldest_snapshot_commits",
            "Commits since the oldest open snapshot.",
            store.oldest_snapshot_commits,
        ),
        ("background_failures", "Kinds of work that fail and are tried again.", store.failures),
        ("archive_segments", "Segments of the archive.", archive.segments),
        ("archive_entries", "Entries in the archive.", archive.entries),
        ("archive_bytes", "Size of the archive.", archive.bytes),
        ("retired_entries", "Trimmed entries that wait to be archived.", archive.retired_entries),
        (
            "retired_bytes",
            "Size of the trimmed entries that wait to be archived.",
            archive.retired_bytes,
        ),
    ):
        yield Metric(f"streamkeep_{name}", "gauge", text, [({}, value)])
    copies: list[tuple[Labels, Any]] = [({"target": one.target}, one) for one in store.copies]
    yield from _metrics(
        "streamkeep_copy",
        copies,
        (
            "behind_commits",
            "Commits that a copy elsewhere does not have yet.",
            lambda one: one.behind,
        ),
        (
            "shipped_timestamp_seconds",
            "Time at which commits reached a copy elsewhere.",
            lambda one: one.shipped_ms / 1000,
        ),
        (
            "proved_timestamp_seconds",
            "Time at which a copy elsewhere was verified.",
            lambda one: one.proved_ms / 1000,
        ),
    )
    yield from _metrics(
        "streamkeep_standby",
        [] if store.follows is None else [({"source": store.follows.source}, store.follows)],
        (
            "commit_timestamp_seconds",
            "Time of the newest commit that a standby has.",
            lambda one: one.time_ms / 1000,
        ),
    )
    yield from _metrics(
        "streamkeep_redis",
        [] if store.redis is None else [({"source": store.redis.source}, store.redis)],
        (
            "offset_bytes",
            "Offset, in the commands of the Redis server that the store follows, of the last one "
            "here.",
            lambda one: one.offset,
        ),
        ("timestamp_seconds", "Time at which that one came.", lambda one: one.time_ms / 1000),
        ("commands_total", "Commands of the Redis server that came.", lambda one: one.commands),
        (
            "full_synchronizations_total",
            "How often all streams of the Redis server were taken.",
            lambda one: one.full,
        ),
        (
            "lost_entries_total",
            "Entries that the Redis server had trimmed or deleted before they came.",
            lambda one: one.lost,
        ),
    )


def _metrics(
    prefix: str, of: Sequence[tuple[Labels, Any]], *each: tuple[str, str, Callable[[Any], Value]]
) -> Iterator[Metric]:
    """Yield a metric for each name, text and value of the objects with these labels."""
    for name, text, value in each:
        kind = "counter" if name.endswith("_total") else "gauge"
        samples = [(labels, value(one)) for labels, one in of]
        yield Metric(f"{prefix}_{name}", kind, text, samples)


def _of_streams(figures: Figures) -> Iterator[Metric]:
    def last_s(one: StreamFigures) -> Value:
        return None if one.last_entry_ms is None else one.last_entry_ms / 1000

    return _metrics(
        "streamkeep_stream",
        [({"stream": one.key}, one) for one in figures.streams],
        ("entries", "Entries.", lambda one: one.length),
        ("entries_added_total", "Entries that were ever added.", lambda one: one.entries_added),
        ("bytes", "Bytes of its macro nodes.", lambda one: one.node_bytes),
        ("last_entry_timestamp_seconds", "Time in the ID of the last entry.", last_s),
    )


def _of_groups(figures: Figures) -> Iterator[Metric]:
    def oldest_s(one: GroupFigures) -> Value:
        return one.oldest_pending_ms / 1000

    return _metrics(
        "streamkeep_group",
        [
            ({"stream": stream.key, "group": group.name}, group)
            for stream in figures.streams
            for group in stream.groups
        ],
        ("lag", "Entries that the group has not read.", lambda one: one.lag),
        ("pending", "Entries that are delivered and not acknowledged.", lambda one: one.pending),
        ("consumers", "Consumers.", lambda one: one.consumers),
        ("consumers_alive", "Consumers whose process lives.", lambda one: one.alive),
        ("consumers_dead", "Consumers whose process has died.", lambda one: one.dead),
        ("oldest_pending_seconds", "Age of the oldest delivery that is pending.", oldest_s),
    )


def _of_queues(figures: Figures) -> Iterator[Metric]:
    by_state: list[tuple[Labels, Value]] = [
        ({"queue": one.name, "state": state}, getattr(one.stats, state))
        for one in figures.queues
        for state in ("waiting", "running", "delayed", "failed")
    ]
    yield Metric("streamkeep_queue_jobs", "gauge", "Jobs by state.", by_state)
    yield from _metrics(
        "streamkeep_queue",
        [({"queue": one.name}, one.stats) for one in figures.queues],
        ("done_total", "Jobs that ended well.", lambda one: one.done),
        ("failed_total", "Jobs that failed for good: dead letters.", lambda one: one.buried),
        ("failed_attempts_total", "Attempts that failed.", lambda one: one.failed_attempts),
        ("cancelled_total", "Jobs that were cancelled.", lambda one: one.cancelled),
        ("oldest_waiting_seconds", "Age of the oldest job.", lambda one: one.oldest_ms / 1000),
        ("workers", "Processes that live and have taken a job.", lambda one: one.workers),
        ("parked", "Those of the waiting jobs whose task no worker has.", lambda one: one.parked),
        ("paused", "1 while no worker may take a job.", lambda one: int(one.paused)),
    )


# --- text ---------------------------------------------------------------------------------------


def _lines(metrics: Iterable[Metric]) -> Iterator[str]:
    for metric in metrics:
        samples = [(labels, value) for labels, value in metric.samples if value is not None]
        if not samples:
            continue
        yield f"# HELP {metric.name} {metric.text}"
        yield f"# TYPE {metric.name} {metric.kind}"
        sample = metric.name if metric.total is None else f"{metric.name}_bucket"
        for labels, value in samples:
            inside = ",".join(f'{name}="{_escaped(one)}"' for name, one in labels.items())
            yield f"{sample}{{{inside}}} {value}" if inside else f"{sample} {value}"
        if metric.total is not None:
            yield f"{metric.name}_sum {metric.total[0]:.6f}"
            yield f"{metric.name}_count {metric.total[1]}"


def _escaped(value: bytes | str) -> str:
    text = _text(value) if isinstance(value, bytes) else value
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _text(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    return text.replace("\\", "\\\\") if _LIKE_AN_ESCAPE.search(text) else text
