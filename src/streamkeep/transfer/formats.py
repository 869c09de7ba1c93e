"""The formats of dumps and loads, and the endings of file names that give them.

    format    dump  load  endings               holds
    -------   ----  ----  --------------------  ------------------------------------------
    jsonl     yes   yes   .jsonl .ndjson .json  everything (a dump); or rows (a load)
    text      yes         .txt                  everything, for people, long values cut
    csv       yes   yes   .csv                  entries, a column per field
    tsv             yes   .tsv                  entries, a column per field
    parquet   yes   yes   .parquet              entries, in the columns of the Spark source
    resp      yes   yes   .resp .aof            commands, as in Redis's append-only files
    dump      yes   yes   .dump                 payloads of Redis's DUMP
    rdb       yes   yes   .rdb                  a file that Redis starts from

What is loaded may be compressed with gzip, and its name end in `.gz`; Parquet may not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from streamkeep.format.core.errors import ArgumentError, TransferError
from streamkeep.supported import install_hint

DumpFormat = Literal["text", "jsonl", "csv", "parquet", "resp", "dump", "rdb"]
LoadFormat = Literal["jsonl", "csv", "tsv", "parquet", "resp", "dump", "rdb"]

Format = TypeVar("Format", DumpFormat, LoadFormat)

DUMP_FORMATS: Final[tuple[DumpFormat, ...]] = get_args(DumpFormat)
LOAD_FORMATS: Final[tuple[LoadFormat, ...]] = get_args(LoadFormat)
DUMP_SUFFIXES: Final[dict[str, DumpFormat]] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".resp": "resp",
    ".aof": "resp",
    ".dump": "dump",
    ".rdb": "rdb",
}
LOAD_SUFFIXES: Final[dict[str, LoadFormat]] = {
    **{ending: one for ending, one in DUMP_SUFFIXES.items() if one != "text"},
    ".json": "jsonl",
    ".tsv": "tsv",
}
BINARY_FORMATS: Final[tuple[DumpFormat, ...]] = ("parquet", "dump", "rdb")
DELIMITERS: Final[dict[LoadFormat, str]] = {"csv": ",", "tsv": "\t"}

# The first columns of a CSV file that a dump has written.
KEY_COLUMN: Final = "stream"
ID_COLUMN: Final = "id"

JSONL_VERSION: Final = 1  # of dumps; a load refuses others

# Streams of a load that has not ended, or was killed, have names that begin so; no dump has them.
UNNAMED: Final = b"streamkeep:load:"


def dump_format(wanted: str | None, name: str | None) -> DumpFormat:
    return _chosen(wanted, name, DUMP_FORMATS, DUMP_SUFFIXES)


def load_format(wanted: str | None, name: str | None) -> LoadFormat:
    plain = None if name is None else name.lower().removesuffix(".gz")
    return _chosen(wanted, plain, LOAD_FORMATS, LOAD_SUFFIXES, name)


def _chosen(
    wanted: str | None,
    name: str | None,
    formats: tuple[Format, ...],
    suffixes: dict[str, Format],
    given: str | None = None,
) -> Format:
    if wanted is not None:
        found = next((one for one in formats if one == wanted), None)
        problem = f"{wanted!r} is not a format"
    elif name is None:
        found, problem = None, "there is no file name to give the format"
    else:
        found = suffixes.get(Path(name).suffix.lower())
        problem = f"{given or name}: the name does not give the format"
    if found is None:
        raise ArgumentError(f"{problem}; choose one of {', '.join(formats)}")
    return found


def arrow() -> Any:
    """Return pyarrow with its Parquet module; raise TransferError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TransferError("Parquet needs pyarrow", hint=install_hint("parquet")) from None
    return pyarrow
