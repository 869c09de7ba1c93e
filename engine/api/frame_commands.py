"""Streams as frames: `to_arrow`, `to_pandas`, `to_polars`, `to_duckdb`, and back by `from_arrow`.

The decoder copies macro nodes out of short transactions, or out of the snapshot or transaction that
the method belongs to, and makes columns of them without an object for each value
(`streamkeep.arrow.frames`). pyarrow is loaded when the first of these methods is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from streamkeep.arrow.columns import CopiedNode, FieldNames
from streamkeep.engine.api.command_base import (
    CommandBase,
    Key,
    RangeId,
    check_lives,
    end_bound,
    read,
    read_history,
    start_bound,
)
from streamkeep.engine.commands import history
from streamkeep.engine.commands.arguments import check_integer, to_bytes
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.errors import ArgumentError, MissingPackageError, StreamkeepError
from streamkeep.format.core.values import as_given
from streamkeep.supported import install_hint

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow

Columns = Sequence[str | bytes]
Types = Mapping[Any, object]
Errors = Literal["raise", "null"]
Repeated = Literal["raise", "last"]
Part = tuple[tuple[int, int], list[CopiedNode]]

_CHUNK_BYTES: Final = 4 << 20
_DUCKDB: Final = (1, 5)


class FrameCommands(CommandBase[Text]):
    """Streams as tables of Arrow, pandas, Polars and DuckDB; a base of `Store` and its views."""

    _in_own_thread = False  # only the thread that began the transaction may read

    def to_arrow(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
    ) -> pyarrow.Table:
        """Return the entries of a stream as a table of pyarrow; all of it is in memory.

        A missing stream gives a table without rows.

        Args:
            start, end: the first and the last ID, both included, as `min` and `max` of `xrange`.
            columns: fields, and what an ID says: "id" (`ms-seq`), "ts" (its time), "ms", "seq",
                "stream" (the key), "fields" (all pairs in order). "field.ts" is the field "ts".
                None: "id", "ts" and each field that these entries have, which reads them twice.
            types: {column: type} of columns that are not text, such as {"count": int, "price":
                "decimal(10,2)", "body": bytes, "at": datetime}: classes, names of Arrow, or types
                of pyarrow. A time without a zone is taken as UTC.
            history: also entries that were trimmed while the stream archived, as in `xrange`.
            errors: what becomes of a value that is not of its type, or text that is not UTF-8.
                "raise": ValueMismatchError. "null": null, and how many is logged as a warning.
            repeated: what becomes of a field that an entry has more than once. "raise":
                ValueMismatchError. "last": the last value, as in redis-py. "fields" has them all.

        A field that an entry does not have is null, which differs from an empty value.

        Raises:
            ValueMismatchError: a value does not fit its column; the message names the entry.
            MissingPackageError: pyarrow is not installed.
            ArgumentError: a column or a type is not one.
        """
        frame = self._frame(key, start, end, columns, types, history, errors, repeated)
        return frame.reader().read_all()

    def to_arrow_batches(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
        rows: int = 65_536,
    ) -> pyarrow.RecordBatchReader:
        """Return the entries of a stream as a reader of record batches, for streams of any length.

        It holds one batch in memory. Until it is read to its end, or let go, it keeps a snapshot of
        the store, or with `history` none; see `scan`.

        Args:
            rows: how many entries a batch has at most. A batch also ends at about 8 MiB, and at
                four million cells.
        """
        frame = self._frame(key, start, end, columns, types, history, errors, repeated, rows)
        return frame.reader()

    def to_pandas(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
    ) -> pandas.DataFrame:
        """Return the entries of a stream as a DataFrame of pandas; see `to_arrow`.

        Whole numbers and booleans have pandas' types that can be missing, such as Int64: a NumPy
        column would make floats of them, which changes large numbers, where one is missing.

        Raises:
            MissingPackageError: pandas or pyarrow is not installed.
        """
        package = needed_package("pandas", "to_pandas")
        frame = self._frame(key, start, end, columns, types, history, errors, repeated)
        table = frame.reader().read_all()
        types_of = _arrow("frames").pandas_types(package)
        return cast("pandas.DataFrame", table.to_pandas(types_mapper=types_of.get))

    def to_polars(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
    ) -> polars.DataFrame:
        """Return the entries of a stream as a DataFrame of Polars; see `to_arrow`.

        Raises:
            MissingPackageError: polars or pyarrow is not installed.
        """
        package = needed_package("polars", "to_polars")
        frame = self._frame(key, start, end, columns, types, history, errors, repeated)
        return cast("polars.DataFrame", package.from_arrow(frame.reader().read_all()))

    def to_duckdb(
        self,
        key: Key,
        start: RangeId = "-",
        end: RangeId = "+",
        *,
        columns: Columns | None = None,
        types: Types | None = None,
        history: bool = False,
        errors: Errors = "raise",
        repeated: Repeated = "raise",
        connection: duckdb.DuckDBPyConnection | None = None,
    ) -> duckdb.DuckDBPyRelation:
        """Return the entries of a stream as a relation of DuckDB, which reads them in batches.

        Every query on the relation reads the stream again, as it is then, in little memory. So the
        store must be open while it runs; errors are those of DuckDB, with Streamkeep's text. The
        columns are those of this call. Name `columns`: all that are named are decoded.

        Args:
            connection: the relation belongs to it; None for DuckDB's own.

        Raises:
            MissingPackageError: duckdb or pyarrow is not installed.
        """
        package = needed_package("duckdb", "to_duckdb")
        if tuple(map(int, package.__version__.split(".")[:2])) < _DUCKDB:
            raise MissingPackageError(
                f"to_duckdb needs duckdb 1.5 or newer, and {package.__version__} is installed: it "
                "reads a stream of Arrow only once; next: pip install --upgrade duckdb",
                name="duckdb",
            )
        frame = self._frame(key, start, end, columns, types, history, errors, repeated)
        source = frame.reader().read_all() if self._in_own_thread else frame
        return (package if connection is None else connection).from_arrow(source)

    def from_arrow(
        self,
        key: Key,
        data: object,
        *,
        id_column: str | None = None,
        columns: Columns | None = None,
    ) -> int:
        """Append the rows of Arrow data to a stream; return how many there were.

        Each row becomes an entry with a field for each column. The rows are appended in order, in
        transactions of 10,000, each of which happens whole or not at all; in a transaction they are
        part of it. If a row cannot become an entry, the rows before its ten thousand are stored.

        Args:
            data: a table, batch or reader of pyarrow, a DataFrame of pandas or Polars, a relation
                of DuckDB, or another object with `__arrow_c_stream__`.
            id_column: the column that has the IDs, as text `ms-seq` or 16 bytes; None: each row
                gets the next ID. The columns "ts", "ms", "seq" and "stream" of a frame must then
                agree with the IDs, and do not become fields.
            columns: the columns that become fields; None for all others. "field.NAME" becomes the
                field NAME, and "fields", as lists of pairs, the whole entry.

        A null becomes no field. Text and bytes are stored as they are, numbers as `xadd` stores
        them, booleans as `true` and `false`, dates and times in ISO 8601, in UTC if they have a
        zone.

        Raises:
            ArgumentError: a column cannot become a field; a row has no field, or no ID. The message
                names row and column.
            IdTooSmallError: an ID is not above the one before it.
            MissingPackageError: pyarrow is not installed.
        """
        name = to_bytes(key, "key")
        rows = _arrow("rows")
        chosen = None if columns is None else [_column_text(one) for one in columns]
        reader = rows.RowReader(rows.reader_of(data), chosen, id_column, name)
        done = 0
        whole: Any = self  # its subclasses also have the commands on streams
        try:
            for entries, ids in reader:
                whole.xadd_many(name, entries, ids)
                done += len(entries)
        except StreamkeepError as error:
            if done:
                error.add_note(f"the {done:,} rows before are stored; continue with row {done:,}")
            raise
        return done

    # --- how frames are read ----------------------------------------------------------------------

    def _frame(
        self,
        key: Key,
        start: RangeId,
        end: RangeId,
        columns: Columns | None,
        types: Types | None,
        whole_history: bool,
        errors: Errors,
        repeated: Repeated,
        rows: int = 65_536,
    ) -> Any:
        """Return the `FrameStream` of a range; see `to_arrow`."""
        frames = _arrow("frames")
        name = to_bytes(key, "key")
        low, high = start_bound("start", start, self._now_ms), end_bound("end", end, self._now_ms)
        most = check_integer("rows must be a positive integer", "rows", rows, 1)
        chosen, kinds = columns, frames.given_types(types)
        if columns is None:
            # Entries that are appended from now on may have other fields.
            high = min(high, self._run(read(_last_id, (name,))))
            found = FieldNames()
            for first, nodes in self._node_parts(name, low, high, whole_history):
                found.add_nodes(nodes, *first, *high)
                if len(found.names) > frames.MOST_COLUMNS:
                    break
            chosen = frames.found_columns(found.names, kinds)
        elif isinstance(columns, (str, bytes)) or not isinstance(columns, Iterable):
            raise ArgumentError(f"columns must be a list of names, not {as_given(columns)}")
        schema = frames.frame_schema(chosen, kinds)
        frames.FrameReader(schema, name, errors, repeated, most)  # raises for a wrong column

        def batches() -> Iterator[Any]:
            reader = frames.FrameReader(schema, name, errors, repeated, most)
            end = high
            if whole_history:
                # Its last node is read later than the first ones, and may by then hold a part of
                # what a transaction appended.
                end = min(high, self._run(read(_last_id, (name,))))
            yield from reader.batches(self._node_parts(name, low, end, whole_history), end)

        return frames.FrameStream(schema, batches)

    def _node_parts(
        self, name: bytes, low: tuple[int, int], high: tuple[int, int], whole_history: bool
    ) -> Iterator[Part]:
        """Yield the nodes of a range, some megabytes at a time, each part with its first ID."""
        start: tuple[int, int] | None = low if low <= high else None
        if whole_history:
            while start is not None:
                wanted = (name, start, high, _CHUNK_BYTES, True)
                nodes, following = self._run(read_history(history.copy_range, wanted))
                yield start, nodes
                start = following
            return
        with self._reading() as txn:
            while start is not None:
                check_lives(txn)
                with translated():
                    wanted = (name, start, high, _CHUNK_BYTES, False)
                    nodes, following = history.copy_range(txn, *wanted)
                yield start, nodes
                start = following


def _last_id(txn: Txn, name: bytes) -> tuple[int, int]:
    stream = txn.find_stream(name)
    return (0, 0) if stream is None else stream.record.last_id()


def _column_text(column: object) -> str:
    if isinstance(column, bytes):
        column = column.decode("utf-8", "backslashreplace")
    if not isinstance(column, str):
        raise ArgumentError(f"a column is named by text, not by {as_given(column)}")
    return column


def _arrow(module: str) -> ModuleType:
    needed_package("pyarrow", "a frame", "arrow")
    return import_module(f"streamkeep.arrow.{module}")


def needed_package(name: str, what: str, extra: str = "") -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingPackageError(
            f"{what} needs {name}, which is not installed; next: {install_hint(extra or name)}",
            name=name,
        ) from None
