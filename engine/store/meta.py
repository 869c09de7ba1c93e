"""The table `meta`: the format, identity and epoch of a store, read or written at its opening.

Recovery writes to a store, so `check_version` finds out its format before that, without LMDB.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.crash_recovery import stored_rows
from streamkeep.engine.crash_recovery.state import WayName
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.pages import check_page_size
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.checksum import row_body, with_checksum
from streamkeep.format.core.errors import CorruptionError, FormatVersionError, NotAStoreError
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.lmdb_file.meta_page import MetaPage, decode_meta_page
from streamkeep.format.rows import records

META_FORMAT: Final = b"store_format"
META_CREATED: Final = b"created_ms"
_NODE_LIMITS: Final = (records.PAGE_FIT, 100)  # bytes, entries


def check_format(path: object, row: Callable[[bytes], bytes | None]) -> bool:
    """Return whether `meta` has a row with the format; raise FormatVersionError for another one.

    Args:
        row: returns the body of a row of `meta`, None if there is none.
    """
    body = row(META_FORMAT)
    if body is None:
        return False
    version = records.decode_number(body, f"{path}: meta")
    if version != records.STORE_VERSION:
        newer = "; next: upgrade Streamkeep" if version > records.STORE_VERSION else ""
        raise FormatVersionError(
            f"{path}: store format {version}, but this version of Streamkeep reads format "
            f"{records.STORE_VERSION}{newer}"
        )
    return True


def check_version(store: Folder, checkpoint_file: CheckpointFile | None) -> None:
    """Raise FormatVersionError for a store of another format, if that can be read.

    The files may be damaged anywhere. The check then passes, and the opening reports the damage.
    Without a file of checkpoints it passes only if the data file names a format.

    Raises:
        NotAStoreError: the data file can be read, and names no format.
        StoreError: the store was made on a system with pages of another size.
    """
    try:
        handle = store.open(DATA_FILE)
    except FileNotFoundError:
        return  # the store is being created
    try:
        pages = read_meta_pages(handle)
        with suppress(CorruptionError):
            slot = None if checkpoint_file is None else checkpoint_file.newest()
            meta = None if slot is None else decode_meta_page(slot.meta_page)
            pages += [] if meta is None else [meta]
        named: list[bool] = []
        for page in pages:
            with suppress(CorruptionError):  # also if there is no table yet
                named.append(check_format(store.path, partial(_stored_row, handle, page)))
        if not any(named) and (named or checkpoint_file is None):
            what = "names no store format; next: check the path, or repair it if it was a store"
            raise NotAStoreError(f"{store.path}: an LMDB environment that {what}")
        if pages:
            check_page_size(store.path, pages[0].page_size)
    finally:
        os.close(handle)


def _stored_row(handle: int, meta: MetaPage, name: bytes) -> bytes | None:
    """Return the body of a row of the table `meta`, None if the table has none."""
    stored = stored_rows.StoredRows(handle, meta)
    stored.root(META)
    try:
        return stored.meta(name)
    except stored_rows.KeyMissing:
        return None


def open_tables(
    raw: lmdb.Environment, txn: lmdb.Transaction[bytes] | None, path: Path
) -> dict[int, lmdb._Database]:
    """Return the handles of an existing store's tables by number, after a check of its version.

    Args:
        txn: a write transaction that will be committed, because handles from a read transaction
            end with it. None if the environment is read-only.
    """
    try:
        meta = raw.open_db(TABLES[META].name.encode(), txn, create=False)
    except lmdb.NotFoundError as error:
        raise NotAStoreError(f"{path}: an LMDB environment, but not a Streamkeep store") from error
    with raw.begin() if txn is None else nullcontext(txn) as reader:

        def row(name: bytes) -> bytes | None:
            value = reader.get(name, None, meta)
            return None if value is None else row_body(META, name, value, f"{path}: meta")

        if not check_format(path, row):
            raise NotAStoreError(f"{path}: an LMDB environment, but not a Streamkeep store")
    handles = {}
    for number, table in TABLES.items():
        try:
            handles[number] = raw.open_db(table.name.encode(), txn, create=False)
        except lmdb.NotFoundError as error:
            raise CorruptionError(str(path), f"sub-database {table.name!r} is missing") from error
    return handles


class Options(NamedTuple):
    """How a store is opened; see `opening.open_environment`."""

    readonly: bool
    force_recovery: WayName | None
    max_readers: int
    max_store_bytes: int | None
    clock: Clock
    node_limits: tuple[int, int] | None
    standby: bool


def read_or_create(
    folder: Folder,
    raw: lmdb.Environment,
    open_raw: Callable[[], lmdb.Environment],
    options: Options,
    lock: CheckpointFile | None,
    control: ControlFile | None,
) -> Environment:
    """Read the rows that describe an existing store, or write those of a new one.

    Args:
        open_raw: opens LMDB again, after `raw` was closed.
    """
    path = folder.path

    def tables_of(raw: lmdb.Environment) -> dict[int, lmdb._Database]:
        if options.readonly:
            return open_tables(raw, None, path)
        assert control is not None
        with control.lmdb_lock(), raw.begin(write=True) as writer:
            new = writer.stat()["entries"] == 0
            if new:
                _create(raw, writer, options.clock)
            found = open_tables(raw, writer, path)
            failpoints.hit("create:written")
        if new:
            folder.sync()
        failpoints.hit("create:named")
        return found

    def open_lmdb() -> tuple[lmdb.Environment, dict[int, lmdb._Database]]:
        raw = open_raw()
        try:
            return raw, tables_of(raw)
        except BaseException:
            raw.close()
            raise

    handles = tables_of(raw)
    where = f"{path}: meta"
    with raw.begin() as txn:

        def row(name: bytes) -> bytes:
            value = txn.get(name, None, handles[META])
            if value is None:
                raise CorruptionError(where, f"the row {name.decode()!r} is missing")
            return row_body(META, name, value, where)

        epoch = records.decode_epoch(row(stored_rows.META_EPOCH), where)
        identity = records.decode_uuid(row(stored_rows.META_UUID), where)
    limits = options.node_limits or _NODE_LIMITS
    context = EngineContext(raw, handles, str(path), epoch, options.clock, *limits)
    context.max_bytes = options.max_store_bytes or 0
    return Environment(
        folder,
        context,
        uuid_bytes=identity,
        readonly=options.readonly,
        lock=lock,
        control=control,
        open_lmdb=open_lmdb,
    )


def _create(raw: lmdb.Environment, txn: lmdb.Transaction[bytes], clock: Clock) -> None:
    """Write the tables and the first rows of a new store."""
    for table in TABLES.values():
        raw.open_db(table.name.encode(), txn)
    meta = raw.open_db(TABLES[META].name.encode(), txn)
    for key, body in (
        (META_FORMAT, records.encode_number(records.STORE_VERSION)),
        (stored_rows.META_UUID, uuid.uuid4().bytes),
        (stored_rows.META_EPOCH, records.encode_number(1)),
        (META_CREATED, records.encode_number(clock.now_ms())),
    ):
        txn.put(key, with_checksum(META, key, body), db=meta)
