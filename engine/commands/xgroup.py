"""XGROUP: create, set, destroy groups; create and delete consumers.

The order of checks is Redis's: options, the key, the group, the ID.
"""

from __future__ import annotations

from typing import Final

from streamkeep.engine.commands.arguments import range_start
from streamkeep.engine.notify.wait_table import removed
from streamkeep.engine.tables.existing import existing_stream, group_in
from streamkeep.engine.tables.group import Group, create_group, destroy_group, find_group
from streamkeep.engine.tables.pel_walks import owned_by
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import errors
from streamkeep.format.core.id_codec import parse_id, until_nul
from streamkeep.format.rows.group_records import UNKNOWN

LAST: Final = None  # `$`: the stream's last generated ID
StartId = tuple[int, int] | errors.CommandError | None  # an ID, what is wrong with it, or LAST

_KEY_REQUIRED: Final = (
    "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
    "MKSTREAM option to create an empty stream automatically."
)


def start_id(text: bytes, *, interval: bool) -> StartId:
    """Return where a group begins, or what is wrong: it is raised after errors of key and group.

    Args:
        interval: whether `-` and `+` are IDs, as for XGROUP SETID.
    """
    if until_nul(text) == b"$":
        return LAST
    try:
        return range_start(text) if interval and text[:1] != b"(" else parse_id(text, 0)
    except errors.InvalidIdError as error:
        return error


def check_entries_read(entries_read: int | None) -> None:
    if entries_read is not None and entries_read < UNKNOWN:
        raise errors.CommandError("value for ENTRIESREAD must be positive or -1")


def xgroup_create(
    txn: WriteTxn,
    name: bytes,
    group_name: bytes,
    last_id: StartId,
    mkstream: bool,
    entries_read: int | None,
) -> bool:
    """Create a group that has read up to `last_id`, or `LAST` (XGROUP CREATE)."""
    check_entries_read(entries_read)
    stream = txn.find_stream(name)
    if stream is None and not mkstream:
        raise errors.NoSuchKeyError(_KEY_REQUIRED)
    if isinstance(last_id, errors.CommandError):
        raise last_id
    if stream is not None and find_group(txn, stream, group_name) is not None:
        raise errors.GroupExistsError("BUSYGROUP Consumer Group name already exists")
    if stream is None:
        stream = txn.create_stream(name)
    group = create_group(txn, stream, group_name, _resolve(stream, last_id))
    if entries_read is not None:
        group.set_entries_read(min(entries_read, stream.record.entries_added))
    return True


def xgroup_setid(
    txn: WriteTxn, name: bytes, group_name: bytes, last_id: StartId, entries_read: int | None
) -> bool:
    check_entries_read(entries_read)
    stream, group = _existing(txn, name, group_name)
    group.set_last_id(_resolve(stream, last_id))
    if entries_read is None:
        group.set_entries_read(UNKNOWN)
    else:
        group.set_entries_read(min(entries_read, stream.record.entries_added))
    return True


def xgroup_destroy(txn: WriteTxn, name: bytes, group_name: bytes) -> bool:
    """Destroy a group with its consumers and pending entries (XGROUP DESTROY)."""
    stream = existing_stream(txn, name, _KEY_REQUIRED)
    group = find_group(txn, stream, group_name)
    if group is None:
        return False
    destroy_group(txn, stream, group)
    txn.events.append(removed(name, group_name))
    return True


def group_exists(txn: Txn, name: bytes, group_name: bytes) -> bool:
    stream = txn.find_stream(name)
    return stream is not None and find_group(txn, stream, group_name) is not None


def xgroup_createconsumer(
    txn: WriteTxn, name: bytes, group_name: bytes, consumer_name: bytes
) -> int:
    """Create a consumer; return 0 when it exists (XGROUP CREATECONSUMER)."""
    _, group = _existing(txn, name, group_name)
    if group.find_consumer(consumer_name) is not None:
        return 0
    group.make_consumer(consumer_name, txn.now_ms())
    return 1


def xgroup_delconsumer(txn: WriteTxn, name: bytes, group_name: bytes, consumer_name: bytes) -> int:
    """Delete a consumer; return how many entries it had pending (XGROUP DELCONSUMER).

    They are then no longer pending, and never delivered again.
    """
    _, group = _existing(txn, name, group_name)
    consumer = group.find_consumer(consumer_name)
    if consumer is None:
        return 0
    own = owned_by(group.pel, consumer.number, (0, 0), consumer.pending)
    group.ack_many([nack.id() for nack in own])
    group.remove_consumer(consumer)
    return len(own)


def _resolve(stream: Stream, last_id: StartId) -> tuple[int, int]:
    if isinstance(last_id, errors.CommandError):
        raise last_id
    if last_id is None:
        return stream.record.last_id()
    return last_id


def _existing(txn: WriteTxn, name: bytes, group_name: bytes) -> tuple[Stream, Group]:
    stream = existing_stream(txn, name, _KEY_REQUIRED)
    return stream, group_in(txn, stream, group_name)


# The replies of XGROUP HELP and XINFO HELP, as Redis has them from 7.0 on.
HELP: Final[dict[str, tuple[str, ...]]] = {
    "XGROUP": (
        "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CREATE <key> <groupname> <id|$> [option]",
        "    Create a new consumer group. Options are:",
        "    * MKSTREAM",
        "      Create the empty stream if it does not exist.",
        "    * ENTRIESREAD entries_read",
        "      Set the group's entries_read counter (internal use).",
        "CREATECONSUMER <key> <groupname> <consumer>",
        "    Create a new consumer in the specified group.",
        "DELCONSUMER <key> <groupname> <consumer>",
        "    Remove the specified consumer.",
        "DESTROY <key> <groupname>",
        "    Remove the specified group.",
        "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
        "    Set the current group ID and entries_read counter.",
        "HELP",
        "    Print this help.",
    ),
    "XINFO": (
        "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CONSUMERS <key> <groupname>",
        "    Show consumers of <groupname>.",
        "GROUPS <key>",
        "    Show the stream consumer groups.",
        "STREAM <key> [FULL [COUNT <count>]",
        "    Show information about the stream.",
        "HELP",
        "    Print this help.",
    ),
}
