"""Options of the data source: which are understood, and the errors for the rest."""

from __future__ import annotations

import pytest

from streamkeep.format.core.entry import MAX_U64, StreamId
from streamkeep.pipeline.options import (
    EARLIEST,
    LATEST,
    Offsets,
    OptionError,
    is_read,
    parse_read,
    parse_write,
)

BASE = {"path": "s", "subscribe": "orders"}


def test_names_are_case_insensitive_and_defaults_those_of_kafka() -> None:
    options = parse_read({"PATH": "s", "SubScribe": "a, b,a", "MINPARTITIONS": "3"})
    assert options.keys == (b"a", b"b")
    assert (options.min_partitions, options.fail_on_data_loss) == (3, True)
    assert (options.starting, options.ending) == (None, Offsets(LATEST))
    assert (options.source, options.mode, options.fields_as) == ("auto", "PERMISSIVE", "array")


def test_a_json_array_holds_any_key() -> None:
    assert parse_read({"path": "s", "subscribe": '["a,b", " c"]'}).keys == (b"a,b", b" c")


@pytest.mark.parametrize(
    ("name", "value", "starting", "ending"),
    [
        ("Offsets", "Earliest", EARLIEST, EARLIEST),
        ("Offsets", "latest", LATEST, LATEST),
        ("Offsets", "5-3", StreamId(5, 3), StreamId(5, 3)),
        ("Offsets", "5", StreamId(5, 0), StreamId(5, MAX_U64)),
        ("Offsets", "(5-3", StreamId(5, 4), StreamId(5, 2)),
        ("Timestamp", "1000", StreamId(1000, 0), StreamId(999, MAX_U64)),
        ("Timestamp", "1970-01-01T00:00:01Z", StreamId(1000, 0), StreamId(999, MAX_U64)),
        ("Timestamp", "1970-01-01 01:00:01+01:00", StreamId(1000, 0), StreamId(999, MAX_U64)),
        ("Timestamp", "1970-01-01 00:00:01", StreamId(1000, 0), StreamId(999, MAX_U64)),
    ],
)
def test_where_to_begin_and_end(name: str, value: str, starting: object, ending: object) -> None:
    first = parse_read({**BASE, f"starting{name}": value}).starting
    assert first is not None
    assert first.of(b"orders") == starting
    assert parse_read({**BASE, f"ending{name}": value}).ending.of(b"orders") == ending


def test_offsets_of_single_streams() -> None:
    starting = parse_read({**BASE, "startingOffsets": '{"a": "5-1", "b": "latest"}'}).starting
    assert starting is not None
    assert [starting.of(key) for key in (b"a", b"b", b"c")] == [StreamId(5, 1), LATEST, EARLIEST]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"path": "s"}, "one of the options 'subscribe' and 'subscribePattern'"),
        ({**BASE, "subscribePattern": "o.*"}, "one of the options"),
        ({"subscribe": "a"}, "'path' is missing"),
        ({**BASE, "minPartition": "3"}, "'minPartition'; did you mean minPartitions"),
        ({**BASE, "starting_offsets": "latest"}, "did you mean startingOffsets"),
        ({**BASE, "zzz": "3"}, "the options are path, fleet, subscribe"),
        ({**BASE, "minPartitions": "0"}, "a number from 1 on"),
        ({**BASE, "maxEntriesPerTrigger": "many"}, "a number from 1 on"),
        ({**BASE, "maxEntriesPerTrigger": "1", "maxOffsetsPerTrigger": "2"}, "another name"),
        ({**BASE, "failOnDataLoss": "yes"}, "true or false"),
        ({**BASE, "source": "disk"}, "one of auto, live, archive"),
        ({**BASE, "startingOffsets": "soon"}, "an entry ID such as"),
        ({**BASE, "startingOffsets": "{x"}, "not JSON"),
        ({**BASE, "startingOffsets": "1-1", "startingTimestamp": "5"}, "exclude each other"),
        ({**BASE, "startingTimestamp": "yesterday"}, "a time such as"),
        ({**BASE, "endingOffsets": "(0-0"}, "excludes every entry"),
        ({"path": "s", "subscribePattern": "("}, "not a regular expression"),
        ({"path": "s", "subscribe": "[1]"}, "a JSON array of keys"),
    ],
)
def test_what_is_wrong_with_reading(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_read(options)
    assert problem in str(error.value)


def test_a_table_of_a_catalog_adds_options_of_its_own() -> None:
    added = {"provider": "streamkeep", "owner": "me", "option.subscribe": "s", "external": "true"}
    table = {
        "location": "file:/data/s",
        "option.subscribe": "a",
        "option.serialization.format": "1",
    }
    assert parse_read(table).keys == (b"a",)
    assert is_read(table)
    for place in ({"location": "file:/data/a%20b"}, {"path": "file:/data/a%20b", "location": "x"}):
        assert parse_read({"subscribe": "s", **added, **place}).path == "/data/a b"
    with pytest.raises(OptionError, match="there is no option 'locatio'"):
        parse_read({"subscribe": "s", "path": "p", "locatio": "x"})


def test_each_stream_may_begin_at_a_time_of_its_own() -> None:
    times = '{"a": 5000, "b": "1970-01-01T00:00:07Z"}'
    starting = parse_read({"path": "p", "subscribe": "a,b,c", "startingTimestamp": times}).starting
    assert starting is not None
    assert [starting.of(key) for key in (b"a", b"b", b"c")] == [
        StreamId(5000, 0),
        StreamId(7000, 0),
        EARLIEST,
    ]


def test_options_of_writing() -> None:
    options = parse_write({"path": "s", "stream": "o", "maxlen": "10", "checkpointLocation": "c"})
    assert (options.key, options.maxlen, options.checkpoint) == (b"o", 10, "c")
    assert parse_write({"path": "s", "minId": "5"}).minid == StreamId(5, 0)
    for bad, problem in (
        ({"path": "s", "maxLen": "1", "minId": "5"}, "exclude each other"),
        ({"path": "s", "txnVersion": "1"}, "also needs 'txnAppId'"),
        ({"path": "s", "subscribe": "a"}, "there is no option"),
        ({"path": "s", "maxlength": "3"}, "did you mean maxLen"),
    ):
        with pytest.raises(OptionError, match=problem):
            parse_write(bad)
