"""Trimmed entries on the command line: retention, archive run, trim --range, history."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import lines, objects, run


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def fill(count: int) -> None:
    for number in range(1, count + 1):
        run("add", "s", "k", "n", str(number), "--id", f"{number}-0")


def test_settings_are_told_in_words_and_as_json() -> None:
    fill(1)
    limits = ("--maxlen", "9", "--archive", "--archive-max-age", "30d")
    keeping = ("--keep-unacknowledged", "--keep-max-bytes", "1000000")
    (told,) = lines("retention", "set", "s", "k", *limits, *keeping)
    assert told == (
        "'k': at most 9 entries, after every group has acknowledged, from 976.6 KiB on it refuses "
        "entries, what is trimmed is archived, segments for 30d"
    )
    assert lines("retention", "show", "s", "k") == [told]
    shown = objects("retention", "show", "s", "k")[0]
    assert (shown["maxlen"], shown["keep_max_bytes"], shown["when_full"]) == (9, 1000000, "refuse")
    assert shown["archive_max_age_ms"] == 30 * 86_400_000
    assert "no stream 'other'" in run("retention", "show", "s", "other", status=6).stderr
    assert (
        "'-7' is not a number, or none"
        in run("retention", "set", "s", "k", "--maxlen", "-7", status=2).stderr
    )


def test_what_is_trimmed_is_archived_and_shown() -> None:
    fill(6)
    run("retention", "set", "s", "k", "--archive")
    everything = lines("range", "s", "k")
    assert lines("trim", "s", "k", "--range", "2", "3") == ["2 entries removed"]
    assert lines("trim", "s", "k", "--range", "9", "8") == ["0 entries removed"]
    assert lines("trim", "s", "k", "--minid", "6", "--exact") == ["3 entries removed"]
    assert lines("range", "s", "k") == everything[5:]
    assert lines("range", "s", "k", "--history") == everything
    run("trim", "s", "k", "--maxlen", "0", "--exact")
    report = objects("archive", "run", "s")[-1]
    assert (report["type"], report["entries"], report["segments"]) == ("summary", 6, 1)
    assert lines("range", "s", "k", "--history") == everything
    assert lines("tail", "s", "k", "--history", "-n", "2") == everything[4:]
    assert objects("archive", "run", "s")[-1]["segments"] == 0


def test_a_mistyped_stream_gets_no_retention_unless_it_is_to_be_created() -> None:
    fill(1)
    told = run("retention", "set", "s", "orderz", "--maxlen", "9", status=6).stderr
    assert "no stream 'orderz'" in told
    assert "next: streamkeep streams s; --create makes the stream" in told
    assert run("streams", "s").stdout.count("orderz") == 0
    run("retention", "set", "s", "orderz", "--maxlen", "9", "--create")
    assert lines("retention", "show", "s", "orderz") == [
        "'orderz': at most 9 entries, nothing is archived"
    ]
