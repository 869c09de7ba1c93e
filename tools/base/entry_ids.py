"""Entry IDs as arguments or from standard input, and the result for each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click

from streamkeep.format import quoting
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import InvalidIdError
from streamkeep.format.core.json_form import json_bytes
from streamkeep.format.humanize import entries_text
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Id
from streamkeep.tools.base.statuses import Failure

Function = TypeVar("Function", bound=Callable[..., Any])

STDIN: Final = b"-"
_DELETED: Final = 1  # what XDELEX and XACKDEL answer
_KEPT: Final = 2


def ids_argument(function: Function) -> Function:
    """Add the argument ID..., to be read with `given_ids`."""
    return click.argument("ids", metavar="ID...", type=Id(), nargs=-1, required=True)(function)


def given_ids(ids: Sequence[bytes], key: bytes) -> list[bytes]:
    """Return the IDs that were given as arguments, or for - those on standard input.

    All of them are read and checked before the command changes anything, so that it does
    everything or nothing.
    """
    if STDIN not in ids:
        return list(ids)
    if len(ids) > 1:
        raise click.UsageError("the ID - means standard input; give no other ID with it")
    return list(_read_ids(key))


def _read_ids(key: bytes) -> Iterator[bytes]:
    """Yield the ID at the beginning of each line, or in the JSON object that the line is."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        text = line.strip()
        if text.startswith(b"{"):
            found = _json_id(text, key, number)
        else:
            found = text.split(maxsplit=1)[0] if text else None
        if found is None:
            continue
        try:
            StreamId.parse(found)
        except InvalidIdError:
            raise _bad_line(number, f"{quoting.shown(found)} is not an entry ID") from None
        yield found


def _json_id(text: bytes, key: bytes, number: int) -> bytes | None:
    """Return the ID of a line of a --json output; None for its summary."""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise _bad_line(number, f"not JSON: {error}") from None
    if found.get("type") == "summary":
        return None
    of_stream = found.get("key")
    if of_stream not in (None, json_bytes(key)):
        raise _bad_line(number, f"an entry of {of_stream!r}, not of {quoting.named(key)}")
    entry_id = found.get("id")
    if not isinstance(entry_id, str):
        raise _bad_line(number, "the object has no member id")
    return entry_id.encode()


def _bad_line(number: int, problem: str) -> Failure:
    return Failure(f"standard input line {number}: {problem}; nothing was done")


class Outcomes(NamedTuple):
    """What XDELEX or XACKDEL did to each ID; `absent` names its -1."""

    ids: list[bytes]
    results: list[int]
    absent: str

    @property
    def deleted(self) -> int:
        """How many entries were deleted."""
        return self.results.count(_DELETED)

    @property
    def kept(self) -> int:
        """How many entries were kept because a group still refers to them."""
        return self.results.count(_KEPT)

    def print(self, count: int) -> None:
        """Print the number of entries; in JSON also the result for each ID."""
        if common.as_json():
            names = {_DELETED: "deleted", _KEPT: "kept"}
            for one, result in zip(self.ids, self.results, strict=True):
                output.json_line("id", id=one.decode(), result=names.get(result, self.absent))
            output.summary(count=count, deleted=self.deleted, kept=self.kept)
            return
        output.line(str(count))
        if self.kept:
            kept = entries_text(self.kept)
            output.note(f"{kept} kept: a group has not read or acknowledged them")
