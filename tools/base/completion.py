"""What the Tab key offers for arguments: folders, the keys of a store, the groups of a stream.

A store that cannot be opened offers nothing: completion never reports an error. Names that a shell
or a terminal could misread are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import click
from click.shell_completion import CompletionItem

import streamkeep
from streamkeep.format import quoting
from streamkeep.format.core.errors import NotAStoreError, StreamkeepError

COMPLETE_VARIABLE: Final = "_STREAMKEEP_COMPLETE"  # a shell sets it when it asks
_MOST: Final = 200


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer folders."""
    return [CompletionItem(incomplete, type="dir")]


def keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the streams of the store that the command names."""
    with suppress(StreamkeepError, OSError), _opened(ctx) as store:
        return _offer(store.scan_iter(), incomplete)
    return []


def groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the groups of the stream that the command names."""
    with suppress(StreamkeepError, OSError), _opened(ctx) as store:
        return _offer((one["name"] for one in store.xinfo_groups(ctx.params["key"])), incomplete)
    return []


def consumers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the consumers of the group that the command names."""
    with suppress(StreamkeepError, OSError), _opened(ctx) as store:
        found = store.xinfo_consumers(ctx.params["key"], ctx.params["group"])
        return _offer((one["name"] for one in found), incomplete)
    return []


def _opened(ctx: click.Context) -> streamkeep.Store[bytes]:
    path = ctx.params.get("store_path")
    if path is None:
        raise NotAStoreError("no store is named")
    return streamkeep.open(path, readonly=True, create=False)


def _offer(names: Iterable[bytes], incomplete: str) -> list[CompletionItem]:
    texts = [quoting.shown(name, " ") for name in names]
    fitting = [text for text in texts if text.startswith(incomplete) and text[0] != '"']
    return [CompletionItem(text) for text in sorted(fitting)[:_MOST]]


# What is offered for parameters of the type `Bytes`, by their names.
OF_NAMES: Final = {
    "key": keys,
    "group": groups,
    "consumer": consumers,
}
