"""The arguments that errors of `streamkeep.transfer` name, as options of the command line."""

from __future__ import annotations

import re
from typing import Final

_OPTIONS: Final = {
    "batch": "--batch",
    "count": "--count",
    "database": "--db",
    "drop_empty": "--drop-empty",
    "end": "--end",
    "errors": "--errors",
    "existing": "--existing",
    "fields": "--field",
    "format": "--format",
    "from_line": "--from-line",
    "history": "--history",
    "id_column": "--id",
    "key": "KEY",
    "max_line": "--max-line",
    "overwrite": "--overwrite",
    "repeated": "--repeated",
    "skip": "--skip",
    "sort": "--sort",
    "start": "--start",
    "time_column": "--time",
    "time_unit": "--time-unit",
    "types": "--type",
}
_argument: Final = re.compile(rf'\b({"|".join(_OPTIONS)})=(True\b|"[^"]*"|[^\s;,]*)')


def as_options(text: str) -> str:
    """Return a text with `from_line=7` as `--from-line 7`, and so on."""
    return _argument.sub(_as_option, text)


def _as_option(found: re.Match[str]) -> str:
    name, value = found[1], found[2].strip('"')
    if name == "key":
        return "`streamkeep load STORE KEY FILE`" if value else "KEY"
    return _OPTIONS[name] if value in ("", "True") else f"{_OPTIONS[name]} {value}"
