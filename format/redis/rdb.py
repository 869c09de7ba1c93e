"""RDB files: whole databases of a Redis or Valkey server.

    "REDIS" or "VALKEY", version in digits (9 bytes in all)
    records
    FF, CRC-64 of all before (u64 LE; 0 if the writer has checksums disabled)

A record is an opcode with its arguments, or an object:

    FA string string      metadata of the writer     FE length           database number
    FB length length      how many keys follow       FC i64 LE           expiry in milliseconds
    FD i32 LE             expiry in seconds          F8 length, F9 u8    idle time, frequency
    F5 string             a function library         F7 ...              data of a module
    F4 length * 3         a slot of a cluster
    type u8, string, value                           an object and its key

`read_rdb` returns the streams, and skips and names everything else. An object has no size field,
so its type must be known to skip it: a type that this version does not know is an error.
`RdbWriter` writes a file with which a server can start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.redis import stream_dump
from streamkeep.format.redis.rdb_values import Source, crc64, put_length, put_string
from streamkeep.format.redis.stream_parts import Part, Parts

_MAGIC: Final = b"REDIS"
_VALKEY: Final = b"VALKEY"
_HEAD_SIZE: Final = 9

_MODULE_AUX, _SLOT_INFO, _FUNCTION = 0xF7, 0xF4, 0xF5
_IDLE, _FREQUENCY, _AUX, _RESIZE = 0xF8, 0xF9, 0xFA, 0xFB
_EXPIRES_MS, _EXPIRES_S, _DATABASE, _END = 0xFC, 0xFD, 0xFE, 0xFF
_LOWEST_OPCODE: Final = 0xF3
_STRING: Final = 0
NEVER: Final = -1  # the deadline of a key that does not expire

# The shape of an element, for skipping objects: see `_skip_elements`. Most types are a number of
# elements and the elements ...
_STRINGS: Final = {1: "s", 2: "s", 3: "sd", 4: "ss", 5: "s8", 14: "s", 18: "ns", 22: "nss"}
_EXPIRING_HASH: Final = 24  # ... with 8 bytes before them
_VALKEY_HASH: Final = 22  # Valkey's meaning of this number: field, value, expiry
# ... or a single string after this number of bytes.
_PACKED: Final = dict.fromkeys((0, 9, 10, 11, 12, 13, 16, 17, 20, 23), 0) | {25: 8}
_MODULE: Final = 7

KINDS: Final[dict[int, str]] = (
    dict.fromkeys((0,), "string")
    | dict.fromkeys((1, 10, 14, 18), "list")
    | dict.fromkeys((2, 11, 20), "set")
    | dict.fromkeys((3, 5, 12, 17), "sorted set")
    | dict.fromkeys((4, 9, 13, 16, 22, 23, 24, 25), "hash")
    | {_MODULE: "value of a module"}
)


class StreamObject(NamedTuple):
    """A stream of the file; consume all `parts` before reading the next record."""

    database: int
    key: bytes
    expires_ms: int | None  # Unix milliseconds
    parts: Parts


class OtherObject(NamedTuple):
    """A skipped record that is not a stream; `key` is b"" if it has none."""

    database: int
    key: bytes
    kind: str


class RdbEnd(NamedTuple):
    """The end of the file.

    Attributes:
        checked: False if the file has no checksum.
        metadata: what the writer says of itself, such as `redis-ver`, `repl-stream-db`.
    """

    version: int
    checked: bool
    metadata: dict[bytes, bytes]


Record = StreamObject | OtherObject | RdbEnd


def read_rdb(read: Callable[[int], bytes], where: str) -> Iterator[Record]:
    """Yield the records of a file, `RdbEnd` last; raise CorruptionError.

    Streams are returned before the checksum at the end has been checked, so the caller must not
    commit them before it receives `RdbEnd`.

    Args:
        read: returns up to the requested number of bytes; b"" at the end of the file.
    """
    source = Source(read, where)
    for record in read_records(source):
        if isinstance(record, RdbEnd) and not source.ends():
            source.fail("extra bytes after the end of the RDB file")
        yield record


def read_records(source: Source) -> Iterator[Record]:
    """Yield the records as `read_rdb` does; the input may go on after the file."""
    valkey, version = _read_head(source)
    database = 0
    expires: int | None = None
    metadata: dict[bytes, bytes] = {}
    while True:
        kind = source.byte()
        if kind == _END:
            break
        if kind == _DATABASE:
            database = source.length()
        elif kind == _EXPIRES_MS:
            expires = int.from_bytes(source.take(8), "little", signed=True)
        elif kind == _EXPIRES_S:
            expires = int.from_bytes(source.take(4), "little", signed=True) * 1000
        elif kind == _AUX:
            name = source.string()
            metadata[name] = source.string()
        elif kind >= _LOWEST_OPCODE:
            skipped = _skip_opcode(source, kind)
            if skipped:
                yield OtherObject(database, b"", skipped)
        else:
            key = source.string()
            if kind in stream_dump.STREAM_TYPES:
                yield StreamObject(database, key, expires, stream_dump.read_value(source, kind))
            else:
                _skip_object(source, kind, valkey)
                yield OtherObject(database, key, KINDS[kind])
            expires = None
    checked = False
    if version >= 5:
        computed = source.checksum()
        stored = int.from_bytes(source.take(8), "little")
        if stored not in (computed, 0):
            source.fail(f"CRC-64 is {stored:016x}, computed {computed:016x}")
        checked = stored != 0
    yield RdbEnd(version, checked, metadata)


def _read_head(source: Source) -> tuple[bool, int]:
    """Return whether Valkey wrote the file, and its version."""
    head = source.take(_HEAD_SIZE)
    valkey = head.startswith(_VALKEY)
    digits = head[len(_VALKEY if valkey else _MAGIC) :]
    if not (valkey or head.startswith(_MAGIC)) or not digits.isdigit():
        problem = f"not an RDB file: begins with {head!r}"
        raise CorruptionError(source.where, problem, offset=0)
    stream_dump.check_rdb_version(int(digits), source.where)
    return valkey, int(digits)


def _skip_opcode(source: Source, opcode: int) -> str:
    """Skip the arguments of an opcode; return the name of what is lost, or ""."""
    if opcode == _RESIZE:
        source.length()
        source.length()
    elif opcode == _IDLE:
        source.length()
    elif opcode == _FREQUENCY:
        source.byte()
    elif opcode == _FUNCTION:
        source.skip_string()
        return "function library"
    elif opcode == _MODULE_AUX:
        source.length()
        _skip_module(source)
        return "data of a module"
    elif opcode == _SLOT_INFO:
        for _ in range(3):
            source.length()
    else:
        source.fail(f"unknown opcode 0x{opcode:02x}")
    return ""


def _skip_object(source: Source, kind: int, valkey: bool) -> None:
    if kind in _PACKED:
        source.skip(_PACKED[kind])
        source.skip_string()
    elif kind == _VALKEY_HASH and valkey:
        _skip_elements(source, "ss8")
    elif kind in _STRINGS:
        _skip_elements(source, _STRINGS[kind])
    elif kind == _EXPIRING_HASH:
        source.skip(8)
        _skip_elements(source, "nss")
    elif kind == _MODULE:
        source.length()
        _skip_module(source)
    else:
        source.fail(f"unknown object type {kind}")


def _skip_elements(source: Source, shape: str) -> None:
    """Skip elements of a shape: s is a string, n a number, d a double as text, 8 eight bytes."""
    for _ in range(source.length()):
        for what in shape:
            if what == "s":
                source.skip_string()
            elif what == "n":
                source.length()
            elif what == "8":
                source.skip(8)
            else:
                size = source.byte()
                source.skip(size if size < 253 else 0)  # 253 to 255: NaN and the infinities


def _skip_module(source: Source) -> None:
    """Skip the data of a module: kinds and values, up to the kind 0."""
    while kind := source.length():
        if kind in (1, 2):
            source.length()
        elif kind == 3:
            source.skip(4)
        elif kind == 4:
            source.skip(8)
        elif kind == 5:
            source.skip_string()
        else:
            source.fail(f"unknown kind {kind} of a module's value")


def _head(expires_ms: int, kind: int, key: bytes) -> bytes:
    """Return what comes before the value of an object."""
    out = bytearray()
    if expires_ms != NEVER:
        out.append(_EXPIRES_MS)
        out += expires_ms.to_bytes(8, "little", signed=True)
    out.append(kind)
    put_string(out, key)
    return bytes(out)


class RdbWriter:
    """Encodes an RDB file: call `begin`, `stream` for each stream, `end`, and append the results.

    Attributes:
        losses: what the target cannot store.
    """

    def __init__(self, target: stream_dump.Target) -> None:
        self.target = target
        self.losses = stream_dump.Losses()
        self._crc = 0

    def begin(self, keys: int) -> bytes:
        out = bytearray(b"%s%04d" % (_MAGIC, self.target.rdb_version))
        if keys:
            out.append(_DATABASE)
            put_length(out, 0)
            out.append(_RESIZE)
            put_length(out, keys)
            put_length(out, 0)
        return self._counted(bytes(out))

    def stream(
        self, key: bytes, parts: Iterable[Part], nodes: int, expires_ms: int = NEVER
    ) -> Iterator[bytes]:
        """Yield the bytes of one stream; `nodes` is the number of macro nodes among its parts."""
        yield self._counted(_head(expires_ms, self.target.kind, key))
        for piece in stream_dump.write_value(parts, nodes, self.target, self.losses):
            yield self._counted(piece)

    def string(self, key: bytes, value: bytes, expires_ms: int = NEVER) -> bytes:
        out = bytearray(_head(expires_ms, _STRING, key))
        put_string(out, value)
        return self._counted(bytes(out))

    def end(self) -> bytes:
        mark = self._counted(bytes([_END]))
        return mark + self._crc.to_bytes(8, "little")

    def _counted(self, piece: bytes) -> bytes:
        self._crc = crc64(piece, self._crc)
        return piece
