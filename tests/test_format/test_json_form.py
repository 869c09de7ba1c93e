"""The JSON form of bytes, and of lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core import json_form


@given(st.binary(max_size=20))
def test_any_bytes_come_back_from_their_json_form(data: bytes) -> None:
    for form in (json_form.json_bytes(data), json_form.json_base64(data)):
        assert json_form.from_json(json.loads(json.dumps(form))) == data


def test_text_is_a_string_and_other_bytes_are_base64() -> None:
    assert json_form.json_bytes("é".encode()) == "é"
    assert json_form.json_bytes(b"\xff") == {"base64": "/w=="}
    assert json_form.json_pairs([(b"a", b"1"), (b"a", b"\xff")]) == [
        ("a", "1"),
        ("a", {"base64": "/w=="}),
    ]


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        ["a"],
        {},
        {"base64": 1},
        {"base64": "%"},
        {"base64": "/w"},
        {"base64": "é"},
        {"base64": "", "more": ""},
        "\ud800",
    ],
)
def test_what_is_no_json_form_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"base64|surrogates"):
        json_form.from_json(value)


def test_a_line_is_ascii_without_control_characters() -> None:
    line = json_form.json_line("entry", text="é\x7f\x1b\n")
    assert line == '{"type":"entry","text":"\\u00e9\\u007f\\u001b\\n"}'
