"""Options that every command takes, errors as JSON, and what a closed pipe does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import streamkeep
from cli_runner import _RUNNER, APART, below, lines, reply, run, spawn, start
from patience import PATIENCE_S, line_of
from streamkeep.tools.base import common
from streamkeep.tools.base.common import MEANINGS, Exit
from streamkeep.tools.cli import main


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store `s` with three entries in `k`, and a group."""
    monkeypatch.chdir(tmp_path)
    with streamkeep.open("s") as store:
        store.xadd_many("k", [{"n": n} for n in range(3)], [f"{n}-1" for n in range(3)])
        store.xgroup_create("k", "g", 0)


def every(command: click.Command) -> list[click.Command]:
    """Return a command and all below it."""
    return [command, *(each for one in below(command).values() for each in every(one))]


def error(*args: str, status: int) -> dict[str, Any]:
    """Run a command that fails with --json; return the one object on standard error."""
    result = run(*args, status=status)
    assert result.stdout == ""
    [text] = result.stderr.splitlines()
    found: dict[str, Any] = json.loads(text)
    assert found.pop("type") == "error"
    assert found.pop("status") == status
    return found


def test_every_command_takes_the_common_options_declared_once() -> None:
    for command in every(main):
        own = [param for param in command.params if param not in common.OPTIONS]
        assert set(common.OPTIONS) <= set(command.params), command.name
        assert {name for param in own for name in param.opts}.isdisjoint(
            name for option in common.OPTIONS for name in option.opts
        ), command.name


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "tail", "s", "k", "-n0"),
        ("tail", "--json", "s", "k", "-n0"),
        ("tail", "s", "--json", "k", "-n0"),
        ("tail", "s", "k", "-n0", "--json"),
        ("--sync", "none", "--progress", "tail", "s", "k", "-n0", "--json"),
    ],
)
def test_a_common_option_may_be_anywhere(words: tuple[str, ...]) -> None:
    [text] = lines(*words)
    assert json.loads(text) == {"type": "summary", "command": "tail", "key": "k", "entries": 0}


def test_a_common_option_may_be_between_a_group_and_its_command() -> None:
    assert json.loads(lines("retention", "--json", "show", "s")[0])["streams"] == 0


def test_quoted_input_before_the_command_is_obeyed() -> None:
    run("--quoted-input", "add", "s", '"a\\x00b"', "f", '"\\xff"', "--id", "1-0")
    with streamkeep.open("s") as store:
        assert store.xrange(b"a\x00b") == [(b"1-0", {b"f": b"\xff"})]


def test_sync_reaches_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    opened = streamkeep.open

    def noted(*args: Any, **options: Any) -> Any:
        modes.append(options["sync"])
        return opened(*args, **options)

    monkeypatch.setattr(streamkeep, "open", noted)
    run("add", "s", "k", "f", "v")
    run("--sync", "none", "add", "s", "k", "f", "v")
    run("add", "s", "k", "f", "v", "--sync", "interval")
    assert modes == ["commit", "none", "interval"]


@pytest.mark.parametrize(
    "words",
    [
        ("add", "s", "k", "f", "v"),
        ("retention", "set", "s", "k", "--maxlen", "9"),
    ],
)
def test_what_prints_nothing_or_a_sentence_has_a_summary_in_json(words: tuple[str, ...]) -> None:
    [text] = lines(*words, "--json")
    found = json.loads(text)
    assert found["type"] == "summary"
    assert " ".join(words).startswith(found["command"])
    assert found["key"] == "k"


# --- errors -------------------------------------------------------------------------------------


def test_an_error_is_one_object_under_json() -> None:
    found = error("info", "s", "nix", "--json", status=6)
    assert found == {
        "error": "missing",
        "code": "NoSuchKeyError",
        "command": "streamkeep info",
        "message": "ERR no such key",
        "next": "streamkeep streams s",
    }


def test_a_usage_error_is_one_object_under_json() -> None:
    found = error("range", "s", "--json", status=2)
    assert (found["error"], found["code"]) == ("usage", "MissingParameter")
    assert found["message"] == "Missing argument 'KEY'."
    assert found["next"] == "see streamkeep range --help"
    assert error("--json", "nosuch", status=2)["message"] == "No such command 'nosuch'."
    assert error("--json", "--nosuch", status=2)["code"] == "NoSuchOption"


def test_with_json_nothing_is_asked_and_nothing_is_lost_without_yes() -> None:
    found = error("erase", "s", "k", "0-1", "--json", status=1)
    assert found["message"].startswith("this would be lost: 'k' in s: 1 ID; ")
    assert found["next"] == "--yes confirms that"
    assert reply("s", "XLEN", "k") == 3
    assert json.loads(lines("erase", "s", "k", "0-1", "--json", "--yes")[-1])["count"] == 1


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the words of every command but those of `APART`."""
    if not isinstance(command, click.Group):
        return [words]
    found = {name: one for name, one in below(command).items() if name not in APART}
    return [each for name, one in found.items() for each in leaves(one, (*words, name))]


def arguments(words: tuple[str, ...], store: str) -> list[str]:
    """Return arguments for a command: this store, and names that it does not have."""
    command: click.Command = main
    for word in words:
        command = below(command)[word]
    found = []
    for param in command.params:
        if isinstance(param, click.Argument):
            name = str(param.name)
            found += (
                [store] if name in ("store_path", "other_path") else ["9-9"] * max(param.nargs, 1)
            )
            if name == "fields":
                found.append("v")
    return found


@pytest.mark.parametrize("words", leaves(main), ids=" ".join)
def test_no_hint_repeats_the_command_or_names_another_store(words: tuple[str, ...]) -> None:
    for store in ("s", "nosuch"):
        for options in ((), ("--nomkstream",), ("--yes",), ("--maxlen", "1")):
            result = _RUNNER.invoke(main, [*words, *arguments(words, store), *options], input="n\n")
            for hint in re.findall(r"^next: (.*)$", result.stderr, re.MULTILINE):
                assert not hint.startswith(f"streamkeep {' '.join(words)} "), hint
                names = re.findall(r"streamkeep (?:streams|exec|info|fsck) ([^ ;]+)", hint)
                assert set(names) <= {store}, hint


# --- statuses -----------------------------------------------------------------------------------


def test_the_help_text_explains_every_status() -> None:
    text = run("--help").stdout
    for status in Exit:
        assert f"\n  {int(status)}  {MEANINGS[status][:30]}" in text


# --- pipes --------------------------------------------------------------------------------------


def damage() -> None:
    """Write something into the middle of the data file that many checks find."""
    with streamkeep.open("s") as store:
        store.xadd_many("k", [{"n": "x" * 900} for _ in range(20_000)])
    path = Path("s/data.mdb")
    data = bytearray(path.read_bytes())
    for at in range(40 * 4096 + 3000, len(data), 2 * 4096):
        data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)


def test_a_verdict_is_reached_though_nobody_reads_the_findings() -> None:
    damage()
    with start("fsck", "s") as child:
        assert child.stdout is not None
        assert line_of(child)
        child.stdout.close()
        assert child.wait(PATIENCE_S) == 4


def test_a_pipe_of_heads_ends_with_0() -> None:
    script = 'set -o pipefail; "$0" -m streamkeep range s k | head -n 1'
    with streamkeep.open("s", sync="none") as store:
        store.xadd_many("k", [{"n": n} for n in range(50_000)])
    done = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0-1  n=0\n", b"")


def test_help_is_status_0_and_on_standard_output() -> None:
    result = spawn("--help")
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"\n  4  " in result.stdout
