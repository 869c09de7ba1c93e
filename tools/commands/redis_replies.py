"""Replies as redis-cli prints them, and as JSON."""

from __future__ import annotations

from typing import Any, Final

from streamkeep.format.core.json_form import json_bytes
from streamkeep.server.commands.replies import Status

_ESCAPES: Final = {
    ord("\\"): "\\\\",
    ord('"'): '\\"',
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord("\a"): "\\a",
    ord("\b"): "\\b",
}
_SHOWN: Final = [
    _ESCAPES.get(byte, chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}")
    for byte in range(256)
]


def text_of(reply: Any, prefix: str = "") -> str:
    """Return the lines that redis-cli prints on a terminal; names and values are escaped.

    Args:
        prefix: what every line but the first begins with.
    """
    if isinstance(reply, Status):
        return f"{reply}\n"
    if reply is None:
        return "(nil)\n"
    if isinstance(reply, int):
        return f"(integer) {reply}\n"
    if isinstance(reply, bytes):
        return f'"{"".join([_SHOWN[byte] for byte in reply])}"\n'
    if isinstance(reply, dict):
        reply = [part for name, value in reply.items() for part in (name.encode(), value)]
    if not reply:
        return "(empty array)\n"
    width = len(str(len(reply)))
    below = prefix + " " * (width + 2)
    return "".join(
        f"{prefix if number > 1 else ''}{number:>{width}}) {text_of(one, below)}"
        for number, one in enumerate(reply, 1)
    )


def json_of(reply: Any) -> Any:
    """Return a reply as JSON holds it."""
    if isinstance(reply, bytes):
        return json_bytes(reply)
    if isinstance(reply, dict):
        return {name: json_of(value) for name, value in reply.items()}
    if isinstance(reply, list):
        return [json_of(one) for one in reply]
    return reply
