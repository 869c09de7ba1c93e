"""The options of the data source `streamkeep`, checked when a DataFrame is made, not in a task.

Names and meanings follow Spark's Kafka source where it has the same option. Names are
case-insensitive. An unknown name is an error that suggests similar names, because an option that is
silently ignored may lose data.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from streamkeep.arrow import FAILFAST, PERMISSIVE
from streamkeep.arrow.keys import key_of_text, key_text
from streamkeep.format.core.entry import MAX_ID, MAX_U64, MIN_ID, StreamId
from streamkeep.format.core.errors import CommandError, StreamkeepError

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
AUTO: Final = "auto"
LIVE: Final = "live"
ARCHIVE: Final = "archive"
TAIL: Final = "tail"  # everything outside of segments; for internal use only
READ_OPTIONS: Final = (
    "path", "fleet", "subscribe", "subscribePattern", "startingOffsets", "startingTimestamp",
    "endingOffsets", "endingTimestamp", "maxEntriesPerTrigger", "maxOffsetsPerTrigger",
    "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "source",
    "fieldsAs", "inferSchema", "sampleEntries", "mode", "groupName", "tailExport",
)  # fmt: skip
WRITE_OPTIONS: Final = (
    "path", "stream", "txnAppId", "txnVersion", "maxLen", "minId", "approximate", "stagingPath",
    "checkpointLocation",
)  # fmt: skip
_NO_PATH: Final = (
    "use .load(STORE); in SQL, use CREATE TEMPORARY VIEW, or SELECT ... FROM table WITH (path = "
    "'STORE', subscribe = 'KEY'), because Spark does not pass the options of a table to a source "
    "in Python"
)
EVERY_KEY: Final = "(?s).*"  # a pattern
_SAMPLE: Final = 1000  # entries
_FIELDS_AS: Final = ("array", "map", "none")
_NUMBERS: Final = re.compile(r"\d{1,20}")


class OptionError(StreamkeepError):
    """An option of the data source that does not exist, is missing, or has a bad value."""


Offset = str | StreamId  # EARLIEST, LATEST or an ID


@dataclass(frozen=True)
class Offsets:
    """Where to begin or end: a default, and exceptions for single streams.

    Attributes:
        by_id: as IDs, not as times.
    """

    default: Offset
    streams: Mapping[bytes, Offset] = field(default_factory=dict)
    by_id: bool = False

    def of(self, key: bytes) -> Offset:
        return self.streams.get(key, self.default)


@dataclass(frozen=True)
class ReadOptions:
    path: str
    keys: tuple[bytes, ...] | None  # None: the streams that match the pattern
    pattern: re.Pattern[str] | None
    starting: Offsets | None  # None: earliest in batch, latest in streaming
    ending: Offsets
    max_entries: int | None
    max_bytes: int | None
    min_partitions: int | None
    max_records: int | None
    fail_on_data_loss: bool
    source: str
    fields_as: str
    mode: str
    group: bytes | None
    tail_export: str | None = None
    fleet: bool = False  # the path is that of a fleet
    infer: bool = False  # columns for fields, by a sample
    sample_entries: int = 0

    def wants(self, key: bytes) -> bool:
        if self.pattern is not None:
            return self.pattern.fullmatch(key_text(key)) is not None
        return key in (self.keys or ())


@dataclass(frozen=True)
class WriteOptions:
    path: str
    key: bytes | None  # None: the column `stream` has the key
    application: str | None
    version: int | None
    checkpoint: str | None
    maxlen: int | None
    minid: StreamId | None
    approximate: bool
    staging: str | None


def is_read(options: Mapping[str, str]) -> bool:
    """Return whether options are those of a read: they name streams."""
    names = {name.lower() for name in _without_catalog(options)}
    return bool(names & {"subscribe", "subscribepattern", "fleet"})


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of reading; raise OptionError."""
    given = _Given(options, READ_OPTIONS)
    fleet = given.text("fleet")
    if fleet is not None and given.text("path") is not None:
        raise OptionError(
            "the option 'fleet' names what is read; next: leave out the path, and use .load()"
        )
    path = fleet or given.required("path", _NO_PATH)
    subscribe, pattern = given.text("subscribe"), given.text("subscribePattern")
    if fleet is not None and subscribe is None and pattern is None:
        pattern = EVERY_KEY
    if (subscribe is None) == (pattern is None):
        raise OptionError("one of the options 'subscribe' and 'subscribePattern' is required")
    keys = None
    if subscribe is not None:
        keys = tuple(dict.fromkeys(_key("subscribe", part) for part in _split_keys(subscribe)))
    if given.text("maxEntriesPerTrigger") and given.text("maxOffsetsPerTrigger"):
        raise OptionError(
            "'maxOffsetsPerTrigger' is another name of 'maxEntriesPerTrigger'; next: use only one"
        )
    max_entries = given.number("maxEntriesPerTrigger") or given.number("maxOffsetsPerTrigger")
    infer = given.flag("inferSchema", False)
    if given.text("sampleEntries") and not infer:
        raise OptionError("the option 'sampleEntries' needs inferSchema=true")
    if infer and fleet is not None:
        raise OptionError(
            "the option 'inferSchema' is for a store or a folder of segments; next: name the "
            "columns of a fleet with .schema(...)"
        )
    fields_as = given.choice("fieldsAs", _FIELDS_AS)
    if infer and given.text("fieldsAs") is None:
        fields_as = "none"
    group = given.text("groupName")
    return ReadOptions(
        path=path,
        keys=keys,
        pattern=None if pattern is None else _pattern(pattern),
        starting=_offsets(given, "startingOffsets", "startingTimestamp", ending=False),
        ending=_offsets(given, "endingOffsets", "endingTimestamp", ending=True) or Offsets(LATEST),
        max_entries=max_entries,
        max_bytes=given.number("maxBytesPerTrigger"),
        min_partitions=given.number("minPartitions"),
        max_records=given.number("maxRecordsPerPartition"),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        source=given.choice("source", (AUTO, LIVE, ARCHIVE)),
        fields_as=fields_as,
        mode=given.choice("mode", (PERMISSIVE, FAILFAST)),
        group=None if group is None else group.encode(),
        tail_export=given.text("tailExport"),
        fleet=fleet is not None,
        infer=infer,
        sample_entries=given.number("sampleEntries") or _SAMPLE,
    )


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of writing; raise OptionError."""
    given = _Given(options, WRITE_OPTIONS)
    path = given.required("path", "use .save(STORE)")
    key = given.text("stream")
    version = given.number("txnVersion", least=0)
    application = given.text("txnAppId")
    if version is not None and application is None:
        raise OptionError("the option 'txnVersion' also needs 'txnAppId', which it belongs to")
    if version is not None and version >= 1 << 64:
        raise OptionError(f"option 'txnVersion' is '{version}', expected a number up to 2^64-1")
    maxlen, minid = given.number("maxLen", least=0), given.text("minId")
    if maxlen is not None and minid is not None:
        raise OptionError("the options 'maxLen' and 'minId' exclude each other; next: use only one")
    return WriteOptions(
        path=path,
        key=None if key is None else _key("stream", key),
        application=application,
        version=version,
        checkpoint=given.text("checkpointLocation"),
        maxlen=maxlen,
        minid=None if minid is None else _parse_id("minId", minid),
        approximate=given.flag("approximate", True),
        staging=given.text("stagingPath"),
    )


def with_full_paths(options: ReadOptions) -> ReadOptions:
    """Return options with absolute paths, because executors have another working directory."""
    from streamkeep.pipeline.storage.places import located, plain  # needs pyarrow

    export = None if options.tail_export is None else plain(options.tail_export)
    return replace(options, path=located(options.path), tail_export=export)


def read_options(
    place: str,
    streams: Sequence[str] | None,
    pattern: str | None,
    *,
    fleet: bool = False,
    tail_export: str | None = None,
    fail_on_data_loss: bool = True,
) -> ReadOptions:
    """Return the options of the data source for a job on streams of a store, or of a fleet."""
    given = {"fleet" if fleet else "path": place, **subscription(streams, pattern)}
    given["failOnDataLoss"] = str(fail_on_data_loss)
    if tail_export is not None:
        given["tailExport"] = tail_export
    return with_full_paths(parse_read(given))


def subscription(streams: Sequence[str] | None, pattern: str | None) -> dict[str, str]:
    """Return the options of the data source that select streams; without either, all."""
    if streams is not None:
        return {"subscribe": json.dumps(list(streams))}
    return {"subscribePattern": pattern if pattern is not None else EVERY_KEY}


_OF_CATALOG: Final = "option."

# What Spark adds to the options of a table that CREATE TABLE made.
_OF_TABLES: Final = (
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
    "serialization.format",
)  # fmt: skip


def _without_catalog(options: Mapping[str, str]) -> dict[str, str]:
    """Return options without those that a catalog adds; its location is the path.

    A catalog writes a path as `file:/a/b`, and an option as `option.NAME`.
    """
    given = {}
    location = None
    for name, value in options.items():
        if name.lower() == "location":
            location = value
        elif name.lower() not in _OF_TABLES and not name.lower().startswith(_OF_CATALOG):
            given[name] = value
    known = {name.lower() for name in given}
    for name, value in options.items():
        plain = name[len(_OF_CATALOG) :]
        if name.lower().startswith(_OF_CATALOG) and plain.lower() not in (*known, *_OF_TABLES):
            given[plain] = value
    if location is not None and "path" not in {name.lower() for name in given}:
        given["path"] = location
    for name, value in given.items():
        if name.lower() == "path" and value.startswith("file:/") and value[6:7] != "/":
            given[name] = unquote(value.removeprefix("file:"))
    return given


class _Given:
    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        options = _without_catalog(options)
        self.values = {name.lower(): value for name, value in options.items()}
        spelled = {name.lower(): name for name in known}
        for name in options:
            if name.lower() not in spelled:
                near = difflib.get_close_matches(name.lower(), spelled, n=3, cutoff=0.5)
                names = [spelled[one] for one in near] or list(known)
                raise OptionError(
                    f"there is no option {name!r}; "
                    f"{'did you mean' if near else 'the options are'} {', '.join(names)}"
                )

    def text(self, name: str) -> str | None:
        return self.values.get(name.lower())

    def required(self, name: str, advice: str) -> str:
        value = self.text(name)
        if not value:
            raise OptionError(f"the option {name!r} is missing; next: {advice}")
        return value

    def number(self, name: str, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not _NUMBERS.fullmatch(value) or int(value) < least:
            raise OptionError(f"option {name!r} is {value!r}, expected a number from {least} on")
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError(f"option {name!r} is {value!r}, expected true or false")
        return value.lower() == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of the choices, the first by default."""
        value = self.text(name)
        if value is None:
            return choices[0]
        for one in choices:
            if one.lower() == value.lower():
                return one
        raise OptionError(f"option {name!r} is {value!r}, expected one of {', '.join(choices)}")


def _key(name: str, text: str) -> bytes:
    try:
        return key_of_text(text)
    except ValueError as error:
        raise OptionError(f"option {name!r}: {error}") from None


def _split_keys(text: str) -> list[str]:
    """Return the keys of `subscribe`: separated by commas, or a JSON array for arbitrary keys."""
    if text.startswith("["):
        keys = _json("subscribe", text)
        if isinstance(keys, list) and keys and all(isinstance(one, str) for one in keys):
            return keys
        raise OptionError(f"option 'subscribe' is {text!r}, expected a JSON array of keys")
    return [part.strip() for part in text.split(",")]


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(
            f"option 'subscribePattern' is {text!r}, not a regular expression: {error}"
        ) from None


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {name!r} is {text!r}, not JSON: {error}") from None


def _offsets(given: _Given, by_id: str, by_time: str, *, ending: bool) -> Offsets | None:
    ids, times = given.text(by_id), given.text(by_time)
    if ids is not None and times is not None:
        raise OptionError(
            f"the options {by_id!r} and {by_time!r} exclude each other; next: use only one"
        )
    by_ids = times is None
    name, text, parse = (by_id, ids, _offset) if by_ids else (by_time, times, _time_offset)
    if text is None:
        return None
    if not text.lstrip().startswith("{"):
        return Offsets(parse(name, text, ending=ending), by_id=by_ids)
    streams = {
        _key(name, key): parse(name, str(one), ending=ending)
        for key, one in _json(name, text).items()
    }
    return Offsets(LATEST if ending else EARLIEST, streams, by_id=by_ids)


def _offset(name: str, text: str, *, ending: bool) -> Offset:
    """Return an offset: `earliest`, `latest`, an ID, or `(` and an ID that is excluded."""
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    found = _parse_id(name, text.removeprefix("("), default_seq=MAX_U64 if ending else 0)
    if not text.startswith("("):
        return found
    if found == (MIN_ID if ending else MAX_ID):
        raise OptionError(f"option {name!r} is {text!r}, which excludes every entry")
    return found.previous() if ending else found.next()


def _time_offset(name: str, text: str, *, ending: bool) -> Offset:
    """Return the first ID from a time on; for an end, the last one before it."""
    if _NUMBERS.fullmatch(text):
        ms = int(text)
    else:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise OptionError(
                f"option {name!r} is {text!r}, expected milliseconds since 1970 or a time such as "
                "2024-06-10T07:33:20Z"
            ) from None
        ms = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= ms <= MAX_U64:
        raise OptionError(f"option {name!r} is {text!r}, expected a time from 1970 on")
    first = StreamId(ms, 0)
    return first.previous() if ending and first > MIN_ID else first


def _parse_id(name: str, text: str, default_seq: int = 0) -> StreamId:
    try:
        return StreamId.parse(text, default_seq=default_seq)
    except CommandError:
        raise OptionError(
            f"option {name!r} is {text!r}, expected {EARLIEST}, {LATEST} or an entry ID such as "
            "1718004800000-0"
        ) from None
