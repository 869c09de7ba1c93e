"""The names of streams: one for each number, from `keys`, or else from `names`."""

from __future__ import annotations

from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import KEYS, NAMES, name_key, pack_number
from streamkeep.format.rows.records import decode_key_row, encode_key_row
from streamkeep.recovery.salvage.found import NAMED, Found


def read_names(found: Found) -> None:
    """Note one name for each stream that `keys` names."""
    for db_key, value in found.rows(KEYS):
        try:
            number, name = decode_key_row(open_row(KEYS, db_key, value, "key row"), "key row")
        except CorruptionError as error:
            found.lost.keep_value("name", error.problem, value, key=db_key.hex())
            found.report.other.append(f"the name of a stream: {error.problem}")
            continue
        own_key = name_key(b"", name)
        if own_key != db_key:
            if found.get(KEYS, own_key) is not None:
                continue  # that row counts
            _take(found, number, name)
        number_key = pack_number(number)
        if found.noted(NAMED + number_key) is None or (
            found.get_row(NAMES, number_key, "names") == name
        ):
            found.note(NAMED + number_key, name)


def name_of(found: Found, number: int) -> tuple[bytes, bool]:
    """Return the name of a stream, and whether it is a new one."""
    number_key = pack_number(number)
    known = found.noted(NAMED + number_key)
    if known is not None:
        return known, False
    name = found.get_row(NAMES, number_key, "names")
    is_new = name is None or found.get(KEYS, name_key(b"", name)) is not None
    if name is None or is_new:
        name = b"lost+found/stream-%d" % number
        while found.get(KEYS, name_key(b"", name)) is not None:
            name += b"'"
    _take(found, number, name)
    found.note(NAMED + number_key, name)
    return name, is_new


def is_live(found: Found, number: int) -> bool:
    """Return whether the new store has a stream, once those with its number were written."""
    return found.noted(NAMED + pack_number(number)) is not None


def _take(found: Found, number: int, name: bytes) -> None:
    """Have no other stream get a name."""
    own_key = name_key(b"", name)
    found.put(KEYS, own_key, seal_row(KEYS, own_key, encode_key_row(number, name)))
