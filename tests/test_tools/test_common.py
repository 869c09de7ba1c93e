"""Options that every command takes, errors as JSON, and what a closed pipe does."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import click
import pytest

import streamkeep
from cli_runner import _RUNNER, leaves, lines, reply, run
from streamkeep.tools.base import common
from streamkeep.tools.base.common import MEANINGS, Exit
from streamkeep.tools.cli import main
from test_tools.test_help import all_commands


@pytest.fixture(autouse=True)
def _folder() -> None:
    """A store `s` with three entries in `k`, and a group."""
    with streamkeep.open("s") as store:
        store.xadd_many("k", [{"n": n} for n in range(3)], [f"{n}-1" for n in range(3)])
        store.xgroup_create("k", "g", 0)


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
    for _, command in all_commands():
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


def test_an_error_is_one_object_under_json() -> None:
    found = error("info", "s", "nix", "--json", status=6)
    assert found == {
        "error": "missing",
        "code": "NoSuchKeyError",
        "command": "streamkeep info",
        "message": "ERR no such key: 'nix'",
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


def arguments(command: click.Command, store: str) -> list[str]:
    """Return arguments for a command: this store, and names that it does not have."""
    found = []
    for param in command.params:
        if isinstance(param, click.Argument):
            is_store = param.name in ("store_path", "other_path")
            found += [store] if is_store else ["9-9"] * max(param.nargs, 1)
            found += ["v"] * (param.name == "fields")
    return found


def test_no_hint_repeats_the_command_or_names_another_store() -> None:
    options: tuple[str, ...]
    cases = product(leaves(), (("s", ()), ("s", ("--yes",)), ("nosuch", ("--nomkstream",))))
    for (words, command), (store, options) in cases:
        result = _RUNNER.invoke(main, [*words, *arguments(command, store), *options], input="n")
        for hint in re.findall(r"^next: (.*)$", result.stderr, re.MULTILINE):
            assert not hint.startswith(f"streamkeep {' '.join(words)} "), hint
            names = re.findall(r"streamkeep (?:streams|exec|info|fsck) ([^ ;]+)", hint)
            assert set(names) <= {store}, hint


def test_the_help_text_explains_every_status() -> None:
    text = run("--help").stdout
    for status in Exit:
        assert f"\n  {int(status)}  {MEANINGS[status][:30]}" in text
