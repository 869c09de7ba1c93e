"""The error hierarchy: everything Streamkeep raises on purpose.

Five families, by what the caller can do about it:

    StreamkeepError
    |-- ArgumentError     the call itself is wrong: nothing was run (redis-py's DataError)
    |-- CommandError      a rule of Redis Streams was broken; the store is unchanged (ResponseError)
    |-- StoreError        the store as a whole cannot serve the call
    |-- CorruptionError   stored bytes break the format
    `-- TransferError     a dump or a load cannot be done

The first two are siblings, as in redis-py: what the client refuses before it sends anything is an
`ArgumentError`; what it sends, and a server refuses, is a `CommandError` in the server's words.

`format` raises only `CorruptionError` and, for text that users write (IDs), `InvalidIdError`.
`engine` turns every `lmdb.Error` into one of these; nothing above it sees an LMDB exception.
"""

from __future__ import annotations


class StreamkeepError(Exception):
    """Base of all errors of Streamkeep."""


class ArgumentError(StreamkeepError, ValueError):
    """An argument of the wrong type, out of range, or in a combination that is not allowed.

    redis-py refuses the same call on the client side, with a `DataError`. Nothing was run.
    """


class CommandError(StreamkeepError):
    """A command broke a rule of Redis Streams; the store is unchanged.

    `str(error)` is what redis-py shows for the same mistake: Redis's text, without the code when
    the code is the plain `ERR`. `redis_error` is the whole line as a Redis server would send it.
    Where Redis's words leave out which argument it is about, a note of the error says so.

    Attributes:
        entry_index: which entry of a batch was refused, from 0 on; None outside of batches.
    """

    redis_code = "ERR"
    entry_index: int | None = None

    @property
    def redis_error(self) -> str:
        """The error line of a Redis server, such as `ERR no such key`."""
        text = str(self)
        return text if text.startswith(f"{self.redis_code} ") else f"{self.redis_code} {text}"


class InvalidIdError(CommandError):
    """Text that is not an entry ID, or not one that this argument takes."""


class IdTooSmallError(CommandError):
    """An entry ID that is not above the last ID of the stream."""


class NoSuchKeyError(CommandError):
    """The stream does not exist, and this command does not create it."""


class NoSuchGroupError(CommandError):
    """The stream has no consumer group of this name."""

    redis_code = "NOGROUP"


class GroupExistsError(CommandError):
    """The consumer group exists already."""

    redis_code = "BUSYGROUP"


class KeyExistsError(CommandError):
    """The stream exists already, and was not to be replaced."""

    redis_code = "BUSYKEY"


class StreamFullError(CommandError):
    """The stream takes no entries until its groups have acknowledged some: see retention."""

    redis_code = "FULL"


class StoreError(StreamkeepError):
    """The store as a whole cannot serve the call."""


class NotAStoreError(StoreError):
    """The path holds no store; it was left untouched."""


class StoreFullError(StoreError):
    """The disk, or the size that the store may take, is used up; reading and deleting still
    work.
    """


class FormatVersionError(StoreError):
    """The store was written by a newer version of Streamkeep; it was left untouched."""


class StoreClosedError(StoreError):
    """The store, transaction or iterator was closed before this call."""


class RecoveryNeededError(StoreError):
    """The store needs recovery after a power loss, which a read-only open does not do."""


class StoreLockedError(StoreError):
    """Another process is recovering, repairing or compacting the store."""


class UntrustedFileError(StoreError):
    """A file of the store is a link, of another type, or of an owner who is not trusted.

    Nothing was written, in the store or outside of it.
    """


class StaleSnapshotError(StoreError):
    """A snapshot needs an archive file that was dropped, or rewritten, since it was taken.

    Nothing is wrong with the store: take a new snapshot, or read without one.
    """


class ErasureBlockedError(StoreError):
    """An erasure waits for a reader that still needs old pages of the store.

    The entries are gone for everybody who reads from now on; their bytes are still in the files.

    Attributes:
        processes: who is in the way, as process numbers.
    """

    processes: tuple[int, ...] = ()


class TransferError(StreamkeepError):
    """A dump or a load cannot be done.

    Attributes:
        hint: what to do next, or "". It writes arguments of `streamkeep.transfer` as `name=value`.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TargetExistsError(TransferError):
    """The file that a dump would write exists, and was not to be replaced."""


class LoadError(TransferError):
    """A file is not as its format says, or the store does not take what it holds.

    The message says which part of the file is to blame, and how much of it is in the store.

    Attributes:
        source: the name of the file.
        line: the line, row or command that is to blame, from 1 on; None for the whole file.
        done: how many entries were stored, or how many commands were applied; 0 where the load has
            changed nothing.
    """

    def __init__(
        self, message: str, *, source: str, line: int | None = None, done: int = 0, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.source = source
        self.line = line
        self.done = done


class CorruptionError(StreamkeepError):
    """Stored bytes break the format: they are reported, never served.

    Attributes:
        where: the place, such as `macro node 5-0 of stream 3`.
        problem: what was found, and what was expected.
        offset: byte offset inside the value, or None.
    """

    def __init__(self, where: str, problem: str, *, offset: int | None = None) -> None:
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{where}: {problem}{at}")
        self.where = where
        self.problem = problem
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by parts: Spark sends exceptions between processes."""
        return _rebuild_corruption, (type(self), self.where, self.problem, self.offset)


class ChecksumError(CorruptionError):
    """A checksum does not match its bytes."""


class MissingSegmentError(CorruptionError):
    """The manifest names a segment file that is not there."""


def _rebuild_corruption(
    kind: type[CorruptionError], where: str, problem: str, offset: int | None
) -> CorruptionError:
    return kind(where, problem, offset=offset)
