"""`streamkeep exec`: Redis's own words; tests/test_real_redis compares with redis-cli."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkeep
from cli_runner import lines, run, start
from patience import PATIENCE_S, line_of
from streamkeep.commands.command_table import SPECS
from streamkeep.commands.help_lines import SUMMARIES
from streamkeep.commands.replies import Status
from streamkeep.commands.words import integer
from streamkeep.format.core.errors import CommandError
from streamkeep.format.redis.resp import split_line
from streamkeep.tools.commands.exec_cmd import text_of


def told(*words: str, **options: Any) -> list[str]:
    """Run a command on the store `s`; return the lines that it prints."""
    return lines("exec", "s", *words, **options)


def test_a_command_may_be_in_small_letters_and_creates_the_store() -> None:
    assert told("xadd", "k", "1-0", "f", "v") == ['"1-0"']
    assert told("Xrange", "k", "-", "+") == ['1) 1) "1-0"', '   2) 1) "f"', '      2) "v"']


def test_a_command_that_fails_or_reads_creates_no_store() -> None:
    assert run("exec", "s", "XADD", "k", "0-0", "f", "v", status=1).stderr == (
        "(error) ERR The ID specified in XADD must be greater than 0-0\n"
    )
    assert not Path("s").exists()
    run("exec", "s", "XLEN", "k", status=6)
    assert not Path("s").exists()


def test_commands_are_read_from_standard_input_and_an_error_does_not_end_them() -> None:
    text = 'XADD k 1-0 "\\x00" \'two words\'\n\nXLEN nix nix\nXADD k 2-0 "open\n"" a\n""\n'
    text += "PING a b\nXLEN k\n"
    result = run("exec", "s", input=text, status=1)
    assert result.stdout.splitlines() == ['"1-0"', "(integer) 1"]
    assert [line.partition(": ")[0] for line in result.stderr.splitlines()] == [
        "(error) ERR wrong number of arguments for 'xlen' command",
        "(error) ERR unbalanced quotes in a line of standard input",
        "(error) ERR unknown command '', with args beginning with",
        "(error) ERR unknown command ''",
        "(error) ERR wrong number of arguments for 'ping' command",
    ]
    with streamkeep.open("s") as store:
        assert store.xrange("k") == [(b"1-0", {b"\0": b"two words"})]


def test_a_reply_comes_before_the_next_command_is_read() -> None:
    with start("exec", "s", stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        for number in range(1, 4):
            child.stdin.write(b"XADD k %d-0 f v\n" % number)
            child.stdin.flush()
            assert line_of(child) == b'"%d-0"\n' % number
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 0


def test_replies_are_json_on_request() -> None:
    text = "XADD k 1-0 f v\nXINFO CONSUMERS k\nXRANGE k - +\nXREAD STREAMS k $\nXINFO GROUPS k\n"
    text += "XGROUP CREATE k g 0\nXINFO GROUPS k\n"
    result = run("--json", "exec", "s", input=text, status=1)
    *replies, summary = map(json.loads, result.stdout.splitlines())
    assert [one["reply"] for one in replies[:5]] == ["1-0", [["1-0", ["f", "v"]]], None, [], "OK"]
    assert replies[5]["reply"][0]["last-delivered-id"] == "0-0"
    assert replies[1]["of"] == "XRANGE"
    assert summary == {"type": "summary", "command": "exec", "commands": 7, "errors": 1}
    [error] = map(json.loads, result.stderr.splitlines())
    assert error["message"] == "ERR wrong number of arguments for 'xinfo|consumers' command"


def test_the_help_text_says_what_every_command_does() -> None:
    named = {spec.name for spec in SPECS if not spec.container and not spec.name.endswith("|help")}
    assert set(SUMMARIES) == named
    text = run("exec", "--help").stdout
    for name, summary in SUMMARIES.items():
        assert f"  {name.replace('|', ' ').upper():<21} {summary}\n" in text


def test_every_command_counts_its_words() -> None:
    with streamkeep.open("s"):
        pass
    for spec in SPECS:
        least = abs(spec.arity)
        name, _, sub = spec.name.partition("|")
        words = [name, *([sub] if sub else [])]
        if least > len(words):
            words += ["1"] * (least - 1 - len(words))
            text = run("exec", "s", *words, status=1).stderr
            assert text == f"(error) ERR wrong number of arguments for '{spec.name}' command\n"


def test_a_word_with_dashes_goes_after_two() -> None:
    told("XADD", "k", "1-0", "--", "--json", "-x")
    with streamkeep.open("s") as store:
        assert store.xrange("k") == [(b"1-0", {b"--json": b"-x"})]


@given(st.recursive(st.none() | st.integers() | st.binary(), lambda one: st.lists(one, max_size=4)))
def test_a_reply_is_printable_ascii_whatever_is_in_it(reply: Any) -> None:
    text = text_of(reply)
    assert text.endswith("\n")
    assert all(line.isascii() and line.isprintable() for line in text.splitlines())


@given(st.binary(max_size=30))
def test_what_is_shown_can_be_typed_again(word: bytes) -> None:
    assert split_line(text_of(word).encode().rstrip(b"\n"), "", 0) == [word]


def test_numbers_of_a_long_list_are_aligned() -> None:
    shown = text_of([[b"a"]] * 10).splitlines()
    assert (shown[0], shown[9]) == (' 1) 1) "a"', '10) 1) "a"')
    assert text_of([]) == "(empty array)\n"
    assert text_of({"length": 2, "ok": Status("OK")}).splitlines() == [
        '1) "length"',
        "2) (integer) 2",
        '3) "ok"',
        "4) OK",
    ]


@pytest.mark.parametrize("word", [b"", b"+1", b"01", b" 1", b"1_0", b"9223372036854775808", b"1.0"])
def test_a_number_is_read_as_strictly_as_redis_reads_it(word: bytes) -> None:
    with pytest.raises(CommandError, match="not an integer or out of range"):
        integer(word)
