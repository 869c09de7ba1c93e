"""What XGROUP HELP and XINFO HELP answer."""

from __future__ import annotations

from typing import Final

_HELP: Final = ("HELP", "    Print these lines.")

HELP: Final[dict[str, tuple[str, ...]]] = {
    "XGROUP": (
        "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CREATE <key> <groupname> <id|$> [MKSTREAM] [ENTRIESREAD entries-read]",
        "    Create a consumer group that has read up to an ID.",
        "    MKSTREAM creates the stream, empty, when it does not exist;",
        "    ENTRIESREAD tells how many entries that is, for the lag.",
        "CREATECONSUMER <key> <groupname> <consumer>",
        "    Create a consumer in a group.",
        "DELCONSUMER <key> <groupname> <consumer>",
        "    Delete a consumer and forget what it has pending.",
        "DESTROY <key> <groupname>",
        "    Destroy a group with its consumers and all that is pending.",
        "SETID <key> <groupname> <id|$> [ENTRIESREAD entries-read]",
        "    Set up to which ID a group has read.",
        *_HELP,
    ),
    "XINFO": (
        "XINFO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
        "CONSUMERS <key> <groupname>",
        "    Show the consumers of a group.",
        "GROUPS <key>",
        "    Show the consumer groups of a stream.",
        "STREAM <key> [FULL [COUNT count]]",
        "    Show a stream; with FULL its entries, groups and consumers, too.",
        *_HELP,
    ),
}
