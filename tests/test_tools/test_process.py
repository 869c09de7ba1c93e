"""The command line as a process: entry points, pipes, interrupts, encodings, statuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest

import streamkeep
from cli_runner import _RUNNER, run, spawn, start
from conftest import ROOT
from patience import PATIENCE_S, line_of, wait_until
from streamkeep.__main__ import main as program
from streamkeep.format.node import listpack
from streamkeep.tools.cli import main
from tiers import daily_or_all, first_of_each, slow_but

pytestmark = pytest.mark.usefixtures("plain_locks")  # interrupts come


def fill(count: int) -> None:
    with streamkeep.open("s", sync="none") as store:
        store.xadd_many("k", [{"n": n} for n in range(count)], [f"{n}-1" for n in range(count)])


def stored() -> int:
    """Return how many entries the stream has; none while there is no store."""
    try:
        with streamkeep.open("s", readonly=True) as store:
            return store.xlen("k")
    except streamkeep.StreamkeepError:
        return 0


def test_the_entry_point_is_the_root_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"streamkeep": "streamkeep.__main__:main"}
    script = Path(sys.executable).with_name("streamkeep")
    if not script.exists():
        pytest.skip("the package is not installed in this environment")
    result = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Usage: streamkeep [OPTIONS] COMMAND")


def test_version_says_what_it_runs_on() -> None:
    text = run("--version").stdout
    facts = dict(re.split("  +", line, maxsplit=1) for line in text.splitlines())
    assert facts["streamkeep"] == streamkeep.__version__
    compiled = not listpack.__file__.endswith(".py")
    assert facts["modules"].startswith("compiled" if compiled else "interpreted, several times")
    assert facts["LMDB"].startswith("0.")
    assert facts["Zstandard"].startswith("1.")
    assert facts["Python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert os.uname().release in facts["system"]
    assert "click " in facts["libraries"]
    as_json = json.loads(run("--version", "--json").stdout)
    assert list(as_json.values())[1:] == list(facts.values())
    assert run("--json", "--version").stdout == run("--version", "--json").stdout


def test_a_missing_or_unknown_command_is_told_what_there_is() -> None:
    result = _RUNNER.invoke(main, [])
    assert "Usage: streamkeep" in result.stdout + result.stderr
    assert "No such command 'rang'" in run("rang", status=2).stderr


def test_a_batch_of_one_stores_each_line_as_it_arrives() -> None:
    words = ("load", "s", "k", "--format", "csv", "--batch", "1", "--sync", "none")
    with start(*words, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(b"n\n1\n")
        child.stdin.flush()
        wait_until(lambda: stored() == 1)
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("more", slow_but([[], ["--json"]], []))
def test_a_closed_pipe_ends_quietly(more: list[str]) -> None:
    fill(10_000)
    with start("range", "s", "k", *more) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert line_of(child)
        child.stdout.close()
        assert child.wait(PATIENCE_S) == 0
        assert child.stderr.read() == b""


def damaged() -> None:
    """Make a store in which fsck finds many errors, and has more to print than a pipe takes."""
    with streamkeep.open("s", sync="none") as store:
        for number in range(daily_or_all(700, 3000)):
            store.xadd(f"stream {number:04}", {"f": "v" * 50})
    data = Path("s", "data.mdb").read_bytes()
    Path("s", "data.mdb").write_bytes(data.replace(b"v" * 50, b"v" * 49 + b"w"))


PIPES = ["> gone", "2> gone", "> gone 2> gone", "2>&1 | head -1", "2>&1 | true", "| head -1"]


@pytest.mark.parametrize("pipe", slow_but(PIPES, PIPES[2]))
@pytest.mark.parametrize("options", slow_but([[], ["--json"], ["--progress"]], []))
def test_the_status_of_fsck_does_not_depend_on_its_reader(pipe: str, options: list[str]) -> None:
    damaged()
    os.mkfifo("gone")
    command = f"{sys.executable} -m streamkeep fsck s {' '.join(options)}"
    if "gone" in pipe:  # a pipe whose reader has gone
        line = f"exec 9<>gone; exec 8>gone; exec 9<&-; {command} {pipe.replace('> gone', '>&8')}"
    else:
        line = f"{command} {pipe}; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", line], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 4, result.stderr
    assert b"Traceback" not in result.stderr


def test_the_status_does_not_depend_on_its_reader() -> None:
    at_once = {**os.environ, "PYTHONUNBUFFERED": "1"}  # the first line shows that it has gone
    range_ = ("range", "nosuch", "k", "--json")
    for args, expected in ((range_, 6), (("nosuch",), 2), (("doctor", "/proc"), 8)):
        reader, writer = os.pipe()
        os.close(reader)
        with start(*args, stdout=writer, stderr=writer, env=at_once) as child:
            assert child.wait(PATIENCE_S) == expected, args
        os.close(writer)


def test_a_feed_whose_reader_has_gone_ends() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with streamkeep.open("s") as store:
        store.xadd("k", {"n": 0})
        at_once = {**os.environ, "PYTHONUNBUFFERED": "1"}
        words = ("changes", "s", "--follow")
        with start(*words, stdout=writer, env=at_once) as child:
            wait_until(lambda: bool(store.xadd("k", {"n": 1})) and child.poll() is not None)
            assert child.returncode == 0
    os.close(writer)


def test_a_pipe_that_is_closed_at_the_end_ends_quietly() -> None:
    fill(10)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        commands: list[tuple[str, ...]] = [("--help",), ("range", "s", "k")]
        for args in daily_or_all(commands[:1], commands):
            with start(*args, stdout=writer) as child:
                assert child.stderr is not None
                told = child.stderr.read()
                assert child.wait(PATIENCE_S) == 0
                assert told == b"", args
    finally:
        os.close(writer)


def test_an_interrupt_is_status_1_without_a_traceback() -> None:
    words = ("load", "s", "k", "--format", "jsonl", "--batch", "2")
    with start(*words, stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(b'{"a":1}\n{"a":2}\n{"a":3}\n')
        child.stdin.flush()
        wait_until(lambda: stored() == 2)
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE_S) == 1
        told = child.stderr.read().decode()
    assert "standard input: interrupted; 2 entries stored" in told
    assert "Traceback" not in told


def test_an_interrupt_while_the_program_is_loaded_is_status_1_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "streamkeep.tools.cli", Interrupted("cli"))
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "\nAborted!\n"


def closed(redirections: str, *args: str, **changes: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command with redirections of the shell, and output that Python buffers."""
    script = f'exec "$0" -m streamkeep "$@" {redirections}'
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-c", script, sys.executable, *args]
    return subprocess.run(command, capture_output=True, env={**env, **changes}, check=False)


@pytest.mark.parametrize(
    ("where", "problem", "unbuffered", "args"),
    first_of_each(
        [
            (">&-", "Bad file descriptor", "", ("streams", "s")),
            (">&-", "Bad file descriptor", "1", ("range", "s", "k")),
            (">/dev/full", "No space left", "1", ("range", "s", "k")),
            (">/dev/full", "No space left", "", ("dump", "s")),
            (">/dev/full", "No space left", "1", ("dump", "s")),
            (">&-", "Bad file descriptor", "", ("--help",)),
            (">/dev/full", "No space left", "", ("--help",)),
        ]
    ),
)
def test_output_that_nobody_takes_is_an_error_of_one_line(
    where: str, problem: str, unbuffered: str, args: tuple[str, ...]
) -> None:
    fill(10)
    result = closed(where, *args, PYTHONUNBUFFERED=unbuffered)
    told = result.stderr.decode()
    assert result.returncode == 1, told
    assert told.startswith("streamkeep")
    assert f"standard output: {problem}" in told
    assert len(told.splitlines()) == 1, told


def test_a_command_without_output_needs_no_standard_streams() -> None:
    Path("a.csv").write_text("n\n1\n")
    assert closed(">&- 2>&- <&-", "load", "s", "k", "a.csv").returncode == 0
    assert closed(">&- 2>&- <&-", "fsck", "s").returncode == 0  # nothing went into the store
    assert stored() == 1


@pytest.mark.slow
def test_a_command_that_needs_standard_input_says_that_it_is_closed() -> None:
    fill(1)
    result = closed("<&-", "load", "s", "k", "-", "--format", "csv")
    assert (result.returncode, b"Bad file descriptor" in result.stderr) == (1, True)
    result = closed("<&-", "erase", "s", "k", "1-0")
    assert (result.returncode, b"Bad file descriptor" in result.stderr) == (1, True)
    assert stored() == 1


@pytest.mark.slow
def test_output_that_cannot_show_unicode_gets_escapes() -> None:
    run("add", "s", "k", "ü", "日本", "--id", "1-0")
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    result = spawn("range", "s", "k", env=plain)
    assert (result.returncode, result.stdout) == (0, b"1-0  \\xfc=\\u65e5\\u672c\n")
    result = spawn("stat", "s", "k", env=plain)
    assert (result.returncode, b"  1  \\u2588" in result.stdout) == (0, True)
    assert spawn("streams", "s", env=plain).stdout.splitlines()[1].startswith(b"k  ")


def test_bytes_of_the_shell_are_the_bytes_of_the_store() -> None:
    command = [b"add", b"s", b"\xff", b"\xfe\n", b"\x80", b"--id", b"1-0"]
    subprocess.run([os.fsencode(sys.executable), b"-m", b"streamkeep", *command], check=True)
    assert run("range", "s", b"\xff").stdout == r'1-0  "\xfe\n"="\x80"' + "\n"


def test_no_permission_is_status_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        streamkeep, "open", Mock(side_effect=PermissionError(13, "Permission denied", "s/data.mdb"))
    )
    assert run("range", "s", "k", status=3).stderr == "streamkeep range: s: Permission denied\n"


def test_every_error_of_streamkeep_has_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    fill(1)
    statuses = {
        streamkeep.StoreLockedError("x"): 3,
        streamkeep.RecoveryNeededError("x"): 3,
        streamkeep.StoreError("x"): 3,
        streamkeep.StoreClosedError("x"): 1,
        streamkeep.CorruptionError("here", "x"): 4,
        streamkeep.ChecksumError("here", "x"): 4,
        streamkeep.NoSuchGroupError("x"): 6,
        streamkeep.StoreFullError("the disk is full"): 1,
        PermissionError(13, "Permission denied"): 1,
    }
    for error, status in statuses.items():

        def fail(*args: object, error: Exception = error, **kwargs: object) -> object:
            raise error

        monkeypatch.setattr(streamkeep.Snapshot, "scan", fail)
        assert run("range", "s", "k", status=status).stderr.startswith("streamkeep range: ")
