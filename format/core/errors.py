"""The error hierarchy: everything Streamkeep raises on purpose.

Five families, by what the caller can do about it:

    StreamkeepError
    |-- ArgumentError     the call itself is wrong: nothing was run (redis-py's DataError)
    |-- CommandError      a rule of Redis Streams was broken; the store is unchanged (ResponseError)
    |-- StoreError        the store as a whole cannot serve the call
    |-- CorruptionError   stored bytes break the format
    `-- TransferError     a dump or a load cannot be done

The first two are siblings, as in redis-py. Where redis-py refuses a call before it sends anything,
we raise `ArgumentError`; where a Redis server would refuse it, `CommandError` with Redis's text.

`format` raises only `CorruptionError` and, for what users write, `InvalidIdError` and
`ArgumentError`. `engine` translates every `lmdb.Error` into one of these classes; no layer above it
sees an LMDB exception.
"""

from __future__ import annotations


class StreamkeepError(Exception):
    """Base of all errors of Streamkeep."""


class ArgumentError(StreamkeepError, ValueError):
    """An argument has the wrong type, is out of range, or may not be combined with another.

    Nothing was run. redis-py raises `DataError` for the same call.
    """


class CommandError(StreamkeepError):
    """A command broke a rule of Redis Streams; the store is unchanged.

    `str(error)` is what redis-py shows for the same mistake: Redis's text, without the code when
    the code is the plain `ERR`. `redis_error` is the whole line as a Redis server would send it,
    and `redis_line` its bytes. Redis's text does not always name the argument; a note on the error
    (PEP 678) then does.

    Attributes:
        entry_index: index of the refused entry in its batch, from 0; None outside of batches.
    """

    redis_code = "ERR"
    entry_index: int | None = None
    raw_line: bytes | None = None  # where a name in the line is not UTF-8

    @property
    def redis_line(self) -> bytes:
        """The bytes of `redis_error`; a name in it that is not UTF-8 is as it was given."""
        if self.raw_line is not None:
            return self.raw_line
        return self.redis_error.encode("utf-8", "surrogateescape")

    @property
    def redis_error(self) -> str:
        """The error line of a Redis server, such as `ERR no such key`."""
        text = str(self)
        return text if text.startswith(f"{self.redis_code} ") else f"{self.redis_code} {text}"


class InvalidIdError(CommandError):
    """The text is not an entry ID, or not one that this argument accepts."""


class IdTooSmallError(CommandError):
    """The entry ID is not above the last ID of the stream."""


class NoSuchKeyError(CommandError):
    """The stream does not exist, and this command does not create it."""


class NoSuchGroupError(CommandError):
    """The stream has no consumer group of this name."""

    redis_code = "NOGROUP"


class GroupExistsError(CommandError):
    """The consumer group exists already."""

    redis_code = "BUSYGROUP"


class KeyExistsError(CommandError):
    """The stream exists already, and the command was not asked to replace it."""

    redis_code = "BUSYKEY"


class StreamFullError(CommandError):
    """The stream refuses entries until its groups have acknowledged some: see retention."""

    redis_code = "FULL"


class StoreError(StreamkeepError):
    """The store as a whole cannot serve the call."""


class NotAStoreError(StoreError):
    """The path holds no store, or no longer the one that was opened; it was left untouched.

    Attributes:
        was_open: the store was deleted or moved while it was open.
    """

    was_open = False


class StoreFullError(StoreError):
    """The disk is full or the store has reached its size limit; reading and deleting still work."""


class FormatVersionError(StoreError):
    """The store has a format that this version of Streamkeep does not read; it was not changed."""


class StoreClosedError(StoreError):
    """The store, transaction or iterator was closed before this call."""


class RecoveryNeededError(StoreError):
    """The store needs recovery after a power loss; a read-only open does not recover it."""


class StoreLockedError(StoreError):
    """Another process is recovering, repairing or compacting the store."""


class UntrustedFileError(StoreError):
    """A file of the store is a link, has the wrong type, or belongs to an untrusted owner.

    Nothing was written, neither in the store nor outside of it.
    """


class UnreachableError(StoreError):
    """The object store of an archive cannot be reached, or refuses the request.

    Nothing was lost: what was not confirmed there is still here. Repeat the call.
    """


class NotShippedError(StoreError):
    """A call with `sync="shipped"` has waited for a copy elsewhere, and none has its commit yet.

    The change was made and is on disk here: do not repeat the call. `Store.wait_shipped` says when
    a copy has it.
    """


class StaleSnapshotError(StoreError):
    """A snapshot needs an archive file that was dropped or rewritten after it was taken.

    The store is sound: take a new snapshot, or read without one.
    """


class ChangesGoneError(StoreError):
    """The change feed cannot go on after a commit: what followed it is no longer known.

    Nothing was left out silently. Read a copy that `streamkeep ship` keeps, or begin with a full
    read.

    Attributes:
        wanted: the commit to go on after.
        oldest: the first commit that the feed can go on after.
    """

    def __init__(self, message: str, wanted: int = 0, oldest: int = 0) -> None:
        super().__init__(message)
        self.wanted = wanted
        self.oldest = oldest


class ErasureBlockedError(StoreError):
    """An erasure cannot finish while another process reads an old state of the store.

    New reads no longer return the entries, but their bytes are still in the files.

    Attributes:
        processes: IDs of the processes that hold the old state.
    """

    processes: tuple[int, ...] = ()


class ValueMismatchError(StreamkeepError):
    """A stored value is not of the type of its column."""


class MissingPackageError(StreamkeepError, ImportError):
    """A method needs a package that is not installed; the message says how to install it."""


class TransferError(StreamkeepError):
    """A dump or a load failed.

    Attributes:
        hint: what the caller should do next, or "". Arguments of `streamkeep.transfer` are written
            as `name=value`.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TargetExistsError(TransferError):
    """The target file of a dump exists, and the caller did not ask to replace it."""


class LoadError(TransferError):
    """A file breaks its format, or the store refuses its content.

    The message names the part of the file that failed, and how much of the file was stored.

    Attributes:
        source: name of the file.
        line: number of the line, row or command that failed, from 1; None for the whole file.
        done: number of entries stored, or of commands applied; 0 if the load changed nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str = "",
        line: int | None = None,
        done: int = 0,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.source = source
        self.line = line
        self.done = done


class CorruptionError(StreamkeepError):
    """Stored bytes break the format. They are reported, never returned as data.

    Attributes:
        where: the place, such as `macro node 5-0 of stream 3`.
        problem: what was found and what was expected.
        offset: byte offset in the value, or None.
    """

    def __init__(self, where: str, problem: str, *, offset: int | None = None) -> None:
        super().__init__(where, problem)  # what it is unpickled with: Spark sends exceptions
        self.where = where
        self.problem = problem
        self.offset = offset

    def __str__(self) -> str:
        at = "" if self.offset is None else f" at byte {self.offset}"
        return f"{self.where}: {self.problem}{at}"


class ChecksumError(CorruptionError):
    """A checksum does not match the bytes that it covers."""


class MissingSegmentError(CorruptionError):
    """The manifest names a segment file that does not exist."""


for _one in [*vars().values()]:  # tracebacks name what programs import
    if isinstance(_one, type) and issubclass(_one, StreamkeepError):
        _one.__module__ = "streamkeep"
