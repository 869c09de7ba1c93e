"""`streamkeep changes`: of a store, of a copy, and what cannot be gone on with."""

from __future__ import annotations

import json
import select
import signal
from pathlib import Path

import streamkeep
from cli_runner import objects, run, start
from conftest import assert_sound
from patience import line_of, wait_until
from replayed import state_of
from streamkeep.recovery import ship


def _changed(path: Path) -> int:
    """Make a commit of each kind that has members of its own; return the first number."""
    with streamkeep.open(path) as store:
        store.xadd("a", {"n": "1"}, id="1-1")
        first = state_of(store)[0]
        ship(store, str(path.with_name("copy")))
        store.xadd("two words", {b"raw": b"\xff", "n": "1"}, id="1-1")
        store.xadd("two words", {"n": "2"}, id="2-1")
        store.xgroup_create("two words", "g", "0")
        store.xreadgroup("g", "c", {"two words": ">"})
        store.xnack("two words", "g", "FAIL", "1-1")
        store.xtrim("two words", maxlen=1, approximate=False)
        store.xsetid("two words", "9-9", entries_added=5)
        store.rename("two words", "b")
        ship(store, str(path.with_name("copy")))
        return first


def test_what_is_printed_of_a_copy(tmp_path: Path) -> None:
    first = _changed(tmp_path / "store")
    printed = run("changes", str(tmp_path / "copy"))
    lines = [line.split("  ", 1)[1] for line in printed.stdout.splitlines()]
    assert lines == [
        'stream_created  "two words"',
        r'added  "two words"  1-1  raw="\xff" n=1',
        'added  "two words"  2-1  n=2',
        'group_created  "two words"  group=g  0-0  read=-1',
        'group_moved  "two words"  group=g  2-1  read=2',
        'consumer_created  "two words"  group=g  consumer=c',
        'delivered  "two words"  group=g  consumer=c  1-1 2-1  deliveries=1',
        'returned  "two words"  group=g  1-1  deliveries=1',
        'trimmed  "two words"  1-1  count=1',
        'id_set  "two words"  9-9  added=5',
        'stream_renamed  "two words"  to=b',
    ]
    assert "11 effects of 8 commits; --from " in printed.stderr
    *commits, summary = objects("changes", str(tmp_path / "copy"))
    assert [one["number"] for one in commits] == list(range(first + 1, first + 9))
    assert summary["position"] == commits[-1]["position"]
    added = commits[0]["effects"][1]
    fields = [["raw", {"base64": "/w=="}], ["n", "1"]]
    assert added == {"kind": "added", "key": "two words", "ids": ["1-1"], "fields": fields}
    (delivered,) = [one for one in commits[3]["effects"] if one["kind"] == "delivered"]
    assert delivered.pop("time_ms") > 0
    assert list(delivered.values()) == ["delivered", "two words", "g", "c", ["1-1", "2-1"], 1]
    rest = run("changes", str(tmp_path / "copy"), "--from", commits[-2]["position"], "--json")
    assert json.loads(rest.stdout.splitlines()[0]) == commits[-1]
    place = summary["position"]
    [summary] = objects("changes", str(tmp_path / "copy"), "--from", place)
    assert (summary["commits"], summary["position"]) == (0, place)  # whoever keeps it goes on there
    assert "no commits" in run("changes", str(tmp_path / "copy"), "--from", place).stderr
    assert_sound(tmp_path / "store")


def test_what_cannot_be_gone_on_with(tmp_path: Path) -> None:
    first = _changed(tmp_path / "store")
    gone = run("changes", str(tmp_path / "store"), "--from", str(first), status=3)
    assert f"after commit {first} are gone" in gone.stderr
    assert f"streamkeep changes file://{tmp_path}/copy --from {first}" in gone.stderr
    assert (
        "begin with a full read"
        in run("changes", str(tmp_path / "copy"), "--from", "0", status=3).stderr
    )
    wrong = run("changes", str(tmp_path / "copy"), "--from", "x", status=2)
    assert "--from: 'x' is neither the number" in wrong.stderr
    run("changes", str(tmp_path / "nothing"), status=6)


def test_following_a_store_until_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with streamkeep.open(path) as store:
        store.xadd("a", {"n": "1"}, id="1-1")
        with start("changes", str(path), "--from", "$", "--follow") as process:
            printed = process.stdout
            assert printed is not None

            # Again and again: the first ones may come before the feed has its place.
            def has_printed() -> bool:
                store.xadd("a", {"n": "2"})
                return bool(select.select([printed], [], [], 0.05)[0])

            wait_until(has_printed)
            assert line_of(process).endswith(b"n=2\n")
            process.send_signal(signal.SIGTERM)
            printed.read()
        assert process.returncode == 0
    assert_sound(path)
