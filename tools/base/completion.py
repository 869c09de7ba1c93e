"""What the Tab key offers for arguments: folders, the keys of a store, the groups of a stream.

A store that cannot be opened offers nothing: completion never reports an error. Names that a shell
or a terminal could misread are left out.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import click
from click.shell_completion import CompletionItem

import streamkeep
from streamkeep.format import quoting
from streamkeep.format.core.errors import StreamkeepError

COMPLETE_VARIABLE: Final = "_STREAMKEEP_COMPLETE"  # a shell sets it when it asks
_MOST: Final = 200


def names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the streams of the store, the groups of the stream, the consumers of the group."""
    given, found = ctx.params, list[bytes]()
    path = given.get("store_path")
    with suppress(StreamkeepError, OSError):
        if path is None or param.name not in ("key", "group", "consumer"):
            return []
        with streamkeep.open(path, readonly=True, create=False) as store:
            if param.name == "key":
                found = list(store.scan_iter())
            elif param.name == "group":
                found = [one["name"] for one in store.xinfo_groups(given["key"])]
            else:
                members = store.xinfo_consumers(given["key"], given["group"])
                found = [one["name"] for one in members]
    texts = [quoting.shown(name, " ") for name in found]
    fitting = [text for text in texts if text.startswith(incomplete) and text[0] != '"']
    return [CompletionItem(text) for text in sorted(fitting)[:_MOST]]
