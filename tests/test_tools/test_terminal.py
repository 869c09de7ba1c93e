"""A terminal gets text, newlines and our colours only, for any names."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest

import streamkeep
from cli_runner import _RUNNER, leaves, run, start
from patience import PATIENCE_S
from streamkeep.recovery import restore_copy, ship
from streamkeep.tools.base import output
from streamkeep.tools.base.terminal import Guarded, visible
from streamkeep.tools.cli import main

HOSTILE = "a\x1b[31m\r\nforged: \x07\x9b2J\u202e\u2028\x7f\udcff=cmd"
NAME = os.fsencode(HOSTILE)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # of a progress bar


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "store"
    with streamkeep.open(path) as store:
        store.set_retention(NAME, maxlen=3, archive=True)
        for number in range(1, 6):
            store.xadd(NAME, {NAME: NAME}, f"{number}-0")
        store.xgroup_create(NAME, NAME, 0)
        store.xreadgroup(NAME, NAME, {NAME: ">"}, count=2)
        store.xadd(NAME, {NAME: NAME}, idmp=(NAME, NAME))
        assert store.archive() is not None
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A store whose path and whose every name is hostile."""
    path = tmp_path / (HOSTILE.replace("\udcff", "") + ".store")  # LMDB takes UTF-8 only
    shutil.copytree(made, path)
    for name in ("rows.jsonl", "rows.csv", "x.rdb", "x.resp", "x.bin"):
        Path(f"{HOSTILE}{name}").write_bytes(NAME + b"\r\n")
    return path


def arguments(command: click.Command, path: Path) -> list[str]:
    """Return a hostile word for each argument of a command."""
    words = []
    for param in command.params:
        if isinstance(param, click.Argument):
            name = str(param.name)
            words.append(str(path) if "store" in name else HOSTILE)
            if param.nargs == 2:
                words.append(HOSTILE)
    return words


def assert_harmless(text: str) -> None:
    """Check that no control character but newline is in a text, and no line is forged."""
    bad = [char for char in text if char != "\n" and not char.isprintable()]
    assert bad == [], text
    assert "\nforged: " not in text


@pytest.mark.parametrize(
    ("words", "command"), leaves(), ids=[" ".join(words) for words, _ in leaves()]
)
def test_no_command_passes_on_what_names_hold(
    store: Path, words: tuple[str, ...], command: click.Command
) -> None:
    has = {option for param in command.params for option in param.opts}
    given = arguments(command, store)
    variants = [
        given,
        arguments(command, store.with_name(f"{HOSTILE}-none")),
        [*given, HOSTILE, f"--{HOSTILE}"],
        given[:1],
        [*given[:2], "1-0"],
        [*given[:3], "1-0", "0"],
        [*given[:1], f"{HOSTILE}rows.csv"],
    ]
    for more in (["--json"], ["--output", f"{HOSTILE}.out"], ["--yes"]):
        if more[0] in has:
            variants.append([*given[:2], *more])
    for variant in variants:
        result = _RUNNER.invoke(main, [*words, *variant], input="n\n")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        exact = words in (("dump",), ("metrics",))  # in a pipe, for programs
        assert_harmless(result.stderr + ("" if exact else result.stdout))


def test_ranges_tables_and_trees_are_harmless_and_complete(store: Path) -> None:
    for words in (
        ("range", store, NAME),
        ("streams", store),
        ("stat", store),
        ("info", store, NAME),
        ("pending", store, NAME, NAME),
        ("retention", "show", store),
        ("dump", store, "--format", "text"),
        ("status", store, "--max-lag", "0"),
        ("exec", store, "KEYS", "*"),
        ("exec", store, "XRANGE", NAME, "-", "+"),
        ("exec", store, "XINFO", "STREAM", NAME, "FULL"),
        ("exec", store, "XINFO", "GROUPS", NAME),
        ("exec", store, "XPENDING", NAME, NAME),
    ):
        told = run(*words, status=8 if words[0] == "status" else 0)
        assert_harmless(told.stdout + told.stderr)
        assert "\\x1b[31m" in told.stdout + told.stderr, words
    for one in run("range", store, NAME, "--json").stdout.splitlines():
        json.loads(one)


def test_errors_and_json_of_exec_are_harmless(store: Path) -> None:
    for words in ((HOSTILE,), ("XGROUP", HOSTILE), ("XADD", NAME, HOSTILE, "f", "v")):
        for options in ((), ("--json",)):
            told = run("exec", store, *words, *options, status=1)
            assert_harmless(told.stdout + told.stderr)
            assert told.stderr
    told = run("exec", store, "XRANGE", NAME, "-", "+", "--json")
    assert_harmless(told.stdout)


def test_no_help_text_or_version_holds_a_control_character() -> None:
    for words in [(), *(words for words, _ in leaves())]:
        assert_harmless(run(*words, "--help").stdout)
    assert_harmless(run("--version").stdout)


def test_json_has_no_control_character_either(capsys: pytest.CaptureFixture[str]) -> None:
    output.json_line("x", text="\x7f\x1b\x9b")
    text = capsys.readouterr().out
    assert_harmless(text)
    assert json.loads(text)["text"] == "\x7f\x1b\x9b"


def test_notes_during_progress_are_harmless(store: Path) -> None:
    """rich takes what is written while a bar is shown, and understands escapes."""
    program = (
        "import sys, logging; sys.argv[1:] = []\n"
        "from streamkeep.tools.base import common, output, terminal\n"
        "terminal.guard()\n"
        "common.given = lambda: common.Common(progress=True)\n"
        f"name = {HOSTILE!r}\n"
        "with output.progress(name, 'steps') as move:\n"
        "    move(1, 5); output.note(name); logging.getLogger('x').warning('%s', name)\n"
        "    print(name, file=sys.stderr); move(2, 5)\n"
        "raise ValueError(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    told = done.stderr.decode("utf-8")
    assert told.count("a\\x1b[31m\\r\\nforged") >= 2
    assert "ValueError: a\\x1b[31m" in told
    left = _COLOURS.sub("", told).replace("\r", "")
    assert "\x1b[31m" not in told
    assert [char for char in left if char != "\n" and not char.isprintable()] == []


def test_what_is_exact_stays_exact_but_on_a_terminal(store: Path) -> None:
    run("dump", store, "--format", "csv", "--output", "exact.csv")
    exact = Path("exact.csv").read_bytes()
    assert NAME in exact
    assert run("dump", store, "--format", "csv").stdout_bytes == exact
    leader, follower = os.openpty()
    with open(leader, "rb", buffering=0) as reading:
        words = ("dump", str(store), "--format", "csv", "--no-progress")
        with start(*words, stdout=follower, stderr=follower) as child:
            os.close(follower)
            told = b""
            with suppress(OSError):  # the other end is closed
                while piece := reading.read(4096):
                    told += piece
            assert child.wait(PATIENCE_S) == 0
    shown = told.decode().replace("\r\n", "\n")
    assert [char for char in shown if char != "\n" and not char.isprintable()] == []
    assert "a\\x1b[31m\\r" in shown


def test_top_leaves_the_terminal_as_it_was_when_it_is_ended(store: Path) -> None:
    leader, follower = os.openpty()
    env = {**os.environ, "TERM": "xterm"}
    with open(leader, "rb", buffering=0) as reading:
        words = ("top", str(store), "--interval", "50ms")
        with start(*words, stdout=follower, stderr=follower, env=env) as child:
            os.close(follower)
            told = b""
            while b"STREAM" not in told:
                told += reading.read(4096)
            assert b"\x1b[?1049h" in told
            child.terminate()
            with suppress(OSError):  # the other end is closed
                while piece := reading.read(4096):
                    told += piece
            assert child.wait(PATIENCE_S) == 0
    assert told.rindex(b"\x1b[?1049l") > told.rindex(b"\x1b[?1049h")
    assert told.rindex(b"\x1b[?25h") > told.rindex(b"\x1b[?25l")


def test_a_store_may_have_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff")
    with streamkeep.open(path) as store:
        store.xadd("k", {"n": "1"}, id="1-0")
        ship(store, tmp_path / "copy")
    restore_copy(tmp_path / "copy", f"{path}2")
    for words in (("compact", path), ("backup", path, f"{path}3"), ("fsck", path),
                  ("repair", path, "--output", f"{path}4")):  # fmt: skip
        run(*words)
    for number in "234":
        run("diff", path, f"{path}{number}")


def test_a_guarded_stream_keeps_lines_and_gives_no_way_around_it() -> None:
    inner = io.StringIO()
    guarded = Guarded(inner)
    guarded.writelines(["one\ntwo\x1b\n", "ä\u202e"])
    assert inner.getvalue() == "one\ntwo\\x1b\nä\\xe2\\x80\\xae"
    assert not hasattr(guarded, "buffer")
    with pytest.raises(TypeError):
        guarded.write(b"x")  # type: ignore[arg-type]
    assert visible("\udcff\n") == "\\xff\\n"
    assert visible("a\ud800") == "a\\xed\\xa0\\x80"  # as json.loads may give it
