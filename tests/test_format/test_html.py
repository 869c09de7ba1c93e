"""Notebooks show stores, streams, groups and entries as tables; nothing of them is markup."""

from __future__ import annotations

import logging
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

import streamkeep
from streamkeep.engine.api.store import Store

HOSTILE = b"<script>alert(1)</script>&\"'\x00\xff\n\xe2\x80\xae"
TAGS = {"table", "tr", "th", "td", "p"}


class Tags(HTMLParser):
    """Collects the tags of a text, and checks that it has no attributes but colspan."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        assert {name for name, _ in attrs} <= {"colspan"}


def tags(text: str) -> set[str]:
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert text.isprintable()
    return parser.found


@pytest.mark.parametrize("decode", [False, True])
def test_hostile_names_are_text(open_store: Callable[..., Store], decode: bool) -> None:
    store = open_store(decode_responses=decode)
    name = HOSTILE.replace(b"\xff", b"") if decode else HOSTILE
    store.xadd(name, [(name, name), (name, b"x" * 1000), (b"n", b"1")])
    store.xgroup_create(name, name, 0)
    store.xreadgroup(name, name, {name: ">"})
    for shown in (
        store,
        store.xrange(name),
        store.xrange(name)[0],
        next(store.scan(name)),
        store.xinfo_stream(name),
        store.xinfo_groups(name),
        store.xinfo_consumers(name, name),
    ):
        text = shown._repr_html_()  # type: ignore[union-attr]  # lists and dicts with a table
        assert tags(text) <= TAGS
        assert "script" not in tags(text)
        assert len(text) < 20_000
    assert store.xinfo_groups(name)[0]["name"] == store.xinfo_groups(name)[0]["name"]
    assert type(store.xrange(name)[0]) is streamkeep.Entry
    store.close()
    assert "closed" in store._repr_html_()


def test_long_tables_say_how_much_is_left(store: Store) -> None:
    store.xadd_many("s", [{"n": number} for number in range(150)])
    for number in range(101):
        store.xadd(f"k{number}", {"n": number})
    assert "50 more" in store.xrange("s")._repr_html_()  # type: ignore[attr-defined]
    assert "2 more" in store._repr_html_()
    assert store.xrange("s") == list(store.xrange("s"))


def test_private_names_are_not_listed(store: Store) -> None:
    for one in (store, store.snapshot(), store.pipeline(), streamkeep):
        assert not [name for name in dir(one) if name.startswith("_") and name[1] != "_"]
    assert {"xadd", "path", "to_pandas"} <= set(dir(store))
    assert {"open", "Store", "aio"} <= set(dir(streamkeep))
    assert "import_module" not in dir(streamkeep)


def test_the_log_says_opens_and_archive_runs(
    open_store: Callable[..., Store], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "streamkeep"):
        store = open_store()
        store.set_retention("s", archive=True)
        store.xadd_many("s", [{"n": 1}, {"n": 2}])
        store.xtrim("s", maxlen=0, approximate=False)
        store.archive()
    assert f"{store.path}: opened, sync=commit" in caplog.text
    assert "archived 2 entries in 1 segments" in caplog.text
