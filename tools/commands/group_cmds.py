"""Commands about consumer groups and their consumers: group ..., consumer ..."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkeep.format import quoting
from streamkeep.format.core.json_form import consumer_json, json_bytes
from streamkeep.format.humanize import count_text, entries_text
from streamkeep.tools.base import output
from streamkeep.tools.base.arguments import (
    Bytes,
    Id,
    Number,
    consumer_argument,
    group_argument,
    key_argument,
    store_argument,
    yes_option,
)
from streamkeep.tools.base.command import group_command
from streamkeep.tools.base.opening import confirm_loss, open_store
from streamkeep.tools.base.statuses import Exit, Failure

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Snapshot

entries_read_option = click.option(
    "--entries-read",
    type=Number(min=0),
    help="How many entries the group has read so far, if you know it: makes the lag exact.",
)


# --- groups -------------------------------------------------------------------------------------


@group_command()
def group() -> None:
    """Create, set, remove and list consumer groups (XGROUP).

    A group reads a stream once, shared between its consumers: each entry is delivered to one of
    them, and is pending until that consumer acknowledges it. Other consumers can claim the entries
    of one that died. A stream may have any number of groups, which do not affect each other.

    \b
    Example, two workers that share the orders:
      streamkeep group create orders.store orders billing --id 0
      streamkeep read orders.store orders --group billing --consumer ann --count 1
      streamkeep read orders.store orders --group billing --consumer bob --count 1
      streamkeep pending orders.store orders billing
      streamkeep group list orders.store
    """


@group.command("create")
@store_argument
@key_argument
@group_argument
@click.option(
    "--id",
    "last_id",
    type=Id("after"),
    default="$",
    show_default=True,
    metavar="ID|TIME",
    help="Deliver entries after this ID, or from this time on: $ for new entries only, 0 for all.",
)
@click.option("--mkstream", is_flag=True, help="Create an empty stream KEY when there is none.")
@entries_read_option
def group_create(
    store_path: Path,
    key: bytes,
    group: bytes,
    last_id: bytes,
    mkstream: bool,
    entries_read: int | None,
) -> None:
    """Create the consumer group GROUP of the stream KEY (XGROUP CREATE).

    Consumers need not be created: they are created when they first read.

    \b
    Examples:
      streamkeep group create orders.store orders billing
      streamkeep group create orders.store orders june --id 2024-06-01
      streamkeep group create orders.store returns billing --id 0 --mkstream
    """
    with open_store(store_path, create=mkstream) as store:
        store.xgroup_create(key, group, last_id, mkstream, entries_read)
    output.done(key=json_bytes(key), group=json_bytes(group))


@group.command("set-id")
@store_argument
@key_argument
@group_argument
@click.argument("last_id", metavar="ID", type=Id("after"))
@entries_read_option
def group_set_id(
    store_path: Path, key: bytes, group: bytes, last_id: bytes, entries_read: int | None
) -> None:
    """Set the ID up to which a group has read (XGROUP SETID).

    Entries above ID are delivered next: with 0 the whole stream again, with $ only entries that are
    added from now on, with a time such as 2024-06-10 entries from then on. Pending entries stay
    pending.

    \b
    Example, read everything once more:
      streamkeep group set-id orders.store orders mail 0
    """
    with open_store(store_path) as store:
        store.xgroup_setid(key, group, last_id, entries_read)
    output.done(key=json_bytes(key), group=json_bytes(group))


@group.command("remove")
@store_argument
@key_argument
@group_argument
@yes_option
def group_remove(store_path: Path, key: bytes, group: bytes, yes: bool) -> None:
    """Remove a group and its consumers; print 1, or 0 (XGROUP DESTROY).

    Its consumers, what they have pending, and the ID up to which it has read are lost. The entries
    of the stream stay. The command names the loss and asks first; --yes answers.

    \b
    Example:
      streamkeep group remove orders.store orders mail --yes
    """
    with open_store(store_path) as store:
        losses = [
            f"{quoting.named(group)}: {count_text(one['consumers'], 'consumer')}, "
            f"{entries_text(one['pending'])} pending, read up to "
            f"{one['last-delivered-id'].decode()}"
            for one in store.xinfo_groups(key)
            if one["name"] == group
        ]
        if losses:
            confirm_loss(losses, f"Remove this group of {quoting.named(key)}?", yes=yes)
        count = int(store.xgroup_destroy(key, group))
        output.result(str(count), count=count)
        if not losses:
            raise no_group(store, key, group)


@group.command("list")
@store_argument
@click.argument("key", metavar="[KEY]", type=Bytes(), default=None, required=False)
def group_list(store_path: Path, key: bytes | None) -> None:
    """List the groups of KEY, or of all streams, with their lag.

    The lag is the number of entries that a group has not read. It is - if that cannot be known,
    because entries between were deleted.

    \b
    Examples:
      streamkeep group list orders.store
      streamkeep group list orders.store orders --json
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        keys = snapshot.keys() if key is None else [key]
        print_groups(snapshot, keys)


def print_groups(snapshot: Snapshot, keys: list[bytes]) -> None:
    """Print the groups of streams: a table, or an object each."""
    found = [{"key": key, **one} for key in keys for one in snapshot.xinfo_groups(key)]
    output.listing(
        "group",
        found,
        json_members,
        ("key", "group", "consumers", "pending", "last-delivered-id", "entries-read", "lag"),
        lambda one: (
            output.cut(quoting.shown(one["key"])),
            output.cut(quoting.shown(one["name"])),
            one["consumers"],
            one["pending"],
            one["last-delivered-id"].decode(),
            one["entries-read"],
            one["lag"],
        ),
        left=(0, 1),
    )
    output.total(count_text(len(found), "group"), groups=len(found))


def json_members(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the XINFO figures of a group as JSON members."""
    return {
        name.replace("-", "_"): json_bytes(value) if isinstance(value, bytes) else value
        for name, value in figures.items()
    }


def nothing_pending(store: Store, key: bytes, group: bytes) -> Failure:
    """Return the error for IDs of which a group, which may be missing, has none pending."""
    with store.snapshot() as snapshot:
        known = snapshot.xinfo_groups(key) if snapshot.exists(key) else []
    if group not in [one["name"] for one in known]:
        return no_group(store, key, group)
    return Failure(
        f"none of these entries is pending in group {quoting.named(group)}",
        hint=f"streamkeep pending {shlex.quote(str(store.path))} {output.shell_key(key)} "
        f"{output.shell_key(group)}",
        status=Exit.MISSING,
    )


def no_group(store: Store, key: bytes, group: bytes) -> Failure:
    """Return the error for a group that does not exist, where Redis answers 0."""
    return Failure(
        f"no group {quoting.named(group)} of {quoting.named(key)} in {store.path}",
        hint=f"streamkeep group list {shlex.quote(str(store.path))}",
        status=Exit.MISSING,
        code="NoSuchGroupError",
    )


# --- consumers ----------------------------------------------------------------------------------


@group_command()
def consumer() -> None:
    """Create, remove and list the consumers of a group (XGROUP).

    \b
    Example:
      streamkeep consumer list orders.store orders mail
    """


@consumer.command("create")
@store_argument
@key_argument
@group_argument
@consumer_argument
def consumer_create(store_path: Path, key: bytes, group: bytes, consumer: bytes) -> None:
    """Create a consumer; print 1, or 0 if it exists (CREATECONSUMER).

    This is rarely needed: a consumer is created when it first reads or claims.

    \b
    Example:
      streamkeep consumer create orders.store orders mail bob
    """
    with open_store(store_path) as store:
        count = store.xgroup_createconsumer(key, group, consumer)
        output.result(str(count), count=count)


@consumer.command("remove")
@store_argument
@key_argument
@group_argument
@consumer_argument
@yes_option
def consumer_remove(store_path: Path, key: bytes, group: bytes, consumer: bytes, yes: bool) -> None:
    """Remove a consumer; print how much it had pending (DELCONSUMER).

    Its pending entries are never delivered again. Run `streamkeep autoclaim` before, which gives
    them to another consumer. If entries are pending, the command asks first; --yes answers.

    \b
    Example:
      streamkeep consumer remove orders.store orders mail ann --yes
    """
    with open_store(store_path) as store:
        missing = None
        known = {one["name"]: one["pending"] for one in store.xinfo_consumers(key, group)}
        if consumer not in known:
            where = f"group {quoting.named(group)} of {quoting.named(key)}"
            problem = f"no consumer {quoting.named(consumer)} in {where}"
            missing = Failure(problem, status=Exit.MISSING)
        elif known[consumer]:
            pending = entries_text(known[consumer])
            loss = f"{quoting.named(consumer)}: {pending} pending, never to be delivered again"
            confirm_loss([loss], "Remove this consumer?", yes=yes)
        lost = store.xgroup_delconsumer(key, group, consumer)
        output.result(str(lost), pending=lost)
        if missing is not None:
            raise missing


@consumer.command("list")
@store_argument
@key_argument
@click.argument("group", metavar="[GROUP]", type=Bytes(), default=None, required=False)
def consumer_list(store_path: Path, key: bytes, group: bytes | None) -> None:
    """List the consumers of GROUP, or of all groups of KEY.

    `idle` is the time since a consumer last tried to read, `inactive` the time since it last got an
    entry; - means never. `lease` says whether the process that got its newest entries is alive or
    dead; unknown if it had no lease, as commands have none.

    \b
    Examples:
      streamkeep consumer list orders.store orders
      streamkeep consumer list orders.store orders mail --json
    """
    with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
        print_consumers(snapshot, key, group)


def print_consumers(snapshot: Snapshot, key: bytes, group: bytes | None) -> None:
    """Print the consumers of a group, or of all: a table, or an object each."""
    groups = [one["name"] for one in snapshot.xinfo_groups(key)] if group is None else [group]
    found = [
        {"group": name, **one}
        for name in groups
        for one in snapshot.xinfo_consumers(key, name, leases=True)
    ]
    output.listing(
        "consumer",
        found,
        lambda one: {
            "key": json_bytes(key),
            "group": json_bytes(one["group"]),
            **consumer_json(one),
            "lease": one["lease"],
        },
        ("group", "consumer", "pending", "idle", "inactive", "lease"),
        lambda one: (
            output.cut(quoting.shown(one["group"])),
            output.cut(quoting.shown(one["name"])),
            one["pending"],
            idle_text(one["idle"]),
            idle_text(one["inactive"]),
            one["lease"],
        ),
        left=(0, 1),
    )
    count = count_text(len(found), "consumer")
    output.total(count, key=json_bytes(key), consumers=len(found))


def idle_text(ms: int) -> str:
    """Return how long ago something was; - for never."""
    return "-" if ms < 0 else output.span_text(ms / 1000)
