"""What the tests of the command line share: running a command in this process or in another."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner, Result

from patience import PATIENCE_S
from streamkeep.tools.cli import main

# Older versions of click mix both outputs unless told otherwise; newer ones have no such switch.
_MIXED = "mix_stderr" in inspect.signature(CliRunner.__init__).parameters
_OPTIONS: dict[str, Any] = {"mix_stderr": False} if _MIXED else {}
_RUNNER = CliRunner(**_OPTIONS)

# Commands that go on until they are stopped, and those of Spark: they have tests of their own.
APART: Final = ("follow", "queue", "serve", "spark", "top", "ui", "work")


def below(command: click.Command) -> dict[str, click.Command]:
    """Return the commands of a group by their names; none for a command that is no group."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    found = {name: command.get_command(context, name) for name in command.list_commands(context)}
    return {name: one for name, one in found.items() if one is not None}


def leaves(
    command: click.Command = main, words: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    """Return the words of every command that is no group, but those of `APART`, and the command."""
    if not isinstance(command, click.Group):
        return [(words, command)]
    found = [(name, one) for name, one in below(command).items() if words or name not in APART]
    return [each for name, one in found for each in leaves(one, (*words, name))]


def run(*args: str | bytes | Path, input: str | bytes | None = None, status: int = 0) -> Result:
    """Run a command; it must end with `status`."""
    texts = [os.fsdecode(arg) for arg in args]
    result: Result = _RUNNER.invoke(main, texts, input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.stdout + result.stderr
    return result


def lines(*args: str | bytes | Path, **options: Any) -> list[str]:
    """Run a command; return the lines of its standard output."""
    return run(*args, **options).stdout.splitlines()


def objects(*args: str | bytes | Path, **options: Any) -> list[dict[str, Any]]:
    """Run a command with --json; return the objects, of which the last must be the summary."""
    found = [json.loads(line) for line in lines(*args, "--json", **options)]
    assert [one["type"] for one in found].index("summary") == len(found) - 1
    return found


def reply(store: str | bytes | Path, *words: str | bytes, **options: Any) -> Any:
    """Run a command of Redis with `streamkeep exec`; return its reply as JSON holds it."""
    return objects("exec", store, *words, **options)[0]["reply"]


def start(*args: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command in a process of its own, its output in pipes."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-m", "streamkeep", *args], **options)


def spawn(*args: str, input: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "streamkeep", *args],
        input=input,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        **options,
    )
