"""dump of what a store is made of: nodes, groups, rows, and files, as entries and as bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_runner import lines, objects, run
from conftest import ROOT
from dumped_stores import fill

pytestmark = pytest.mark.usefixtures("sound_folder")


def test_a_node_as_entries_and_as_bytes() -> None:
    fill()
    found = lines("dump", "s", "k", "--node", "5-0")
    assert found[0].startswith("macro node 1-0 in nodes: listpack of ")
    assert found[1] == "   0  live     1-0  n=1 pad=x"
    assert found[7].startswith("   6  deleted  7-0  n=7")
    slots = objects("dump", "s", "k", "--node", "5-0")
    assert slots[1]["fields"] == [["n", "1"], ["pad", "x"]]
    assert slots[7]["state"] == "deleted"
    found = lines("dump", "s", "k", "--node", "5-0", "--bytes")
    assert found[0].startswith("nodes: ")
    assert found[1].split() == ["0-2", "534b4e", "magic", "'SKN'", '"SKN"']
    assert found[-1].split()[-1] == "right"
    tail = lines("dump", "s", "k", "--node", "9999999999999999-0", "--bytes")
    assert tail[0].startswith("streams: ")
    assert any("entries_added" in line for line in tail)
    fields = objects("dump", "s", "k", "--node", "5-0", "--bytes")
    data = bytes.fromhex("".join(one["hex"] for one in fields if one["type"] == "field"))
    assert len(data) == fields[0]["size_bytes"]
    assert fields[-1] == {"type": "summary", "command": "dump", "damaged": 0}


def test_a_group_and_rows_of_a_table() -> None:
    fill()
    found = lines("dump", "s", "k", "--group", "g")
    assert found[0].startswith("  group 'g': last delivered ID 67-0")
    rows = lines("dump", "s", "k", "--group", "g", "--bytes")
    assert sum(line.startswith("pel ") for line in rows) == 2
    # Of each of two consumers: its row, its number, and its lease.
    assert sum(line.startswith("consumers ") for line in rows) == 6
    assert [one["type"] for one in objects("dump", "s", "k", "--group", "g")][:2] == [
        "group",
        "consumer",
    ]
    told = run("dump", "s", "k", "--group", "x", "--bytes", status=6).stderr
    assert "No such consumer group 'x'" in told
    for table in ("meta", "keys", "streams", "idempotency", "garbage", "segments"):
        shown = lines("dump", "s", "--table", table)
        assert bool(shown) == (table not in ("garbage", "segments"))
        assert not [line for line in shown if "damage" in line or "WRONG" in line]
    assert len(objects("dump", "s", "k", "--table", "streams", "--count", "1")) > 10


def test_files_of_a_store_and_of_the_archive() -> None:
    fill()
    (journal,) = Path("s/journal").glob("*.skj")
    found = lines("dump", "--journal", journal)
    assert any(" record 0 commit number" in line for line in found)
    found = lines("dump", "--checkpoint", "s/steady")
    assert any("slot 1 commit_number" in line for line in found)
    segment = ROOT / "tests" / "golden" / "v1" / "plain.seg"
    found = lines("dump", "--segment", segment)
    assert ": stream " in found[0]
    assert found[1].startswith("block 0: bytes 0-")
    assert found[2].startswith("macro node ")
    found = lines("dump", "--segment", segment, "--bytes")
    assert any("'SKSEG\\r\\n\\x1a'" in line for line in found)
    assert not [line for line in found if "WRONG" in line or " damage " in line]
    bad = bytearray(segment.read_bytes())
    bad[50] ^= 1
    Path("bad.seg").write_bytes(bad)
    found = lines("dump", "--segment", "bad.seg")
    assert any("damage" in line and "checksum" in line for line in found)
    assert run("dump", "--segment", "s/data.mdb", status=4).stderr


def test_wrong_command_lines_of_bytes() -> None:
    fill()
    for args in (
        "",
        "s --bytes",
        "s --node 1-0",
        "s k --node 1-0 --group g",
        "s k --node 1-0 --output x",
    ):
        run("dump", *args.split(), status=2)
