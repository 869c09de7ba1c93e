"""Objects under a URI: a folder (`file://`, or a path), or a bucket such as `s3://bucket/folder`.

An object is written as a whole, under a name that says where it belongs, and read in ranges. What
`put` has returned for is durable. Names are relative to the URI, with slashes.

Buckets are reached through `obstore`, which is imported at the first use of such a URI and is
installed with the extra `s3`. Its settings come from the environment, or from the role of the
machine, and never from the URI, because URIs appear in logs:

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or AWS_PROFILE (needs boto3)
    AWS_ENDPOINT_URL   of a server other than Amazon's, `http://host:port`
    AWS_REGION         us-east-1 if it is not set

A request that fails for a passing reason is repeated for up to half a minute. After that, or at
once where repeating is useless, every method raises `UnreachableError`.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from pathlib import Path
from textwrap import shorten
from types import ModuleType
from typing import Any, Final, Protocol
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from streamkeep.engine.system import files
from streamkeep.engine.system.long_wait import LongWait, holders_of, lock_file
from streamkeep.engine.system.modes import Modes
from streamkeep.format.core.checksum import digest64
from streamkeep.format.core.errors import ArgumentError, StoreError, UnreachableError
from streamkeep.format.core.values import utf8
from streamkeep.supported import install_hint

SCHEMES: Final = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss")
_PIECE: Final = 8 << 20
_UNFINISHED_S: Final = 3600  # in which a process completes an object that it writes
_TIMEOUT: Final = timedelta(seconds=30)
_CONNECT: Final = timedelta(seconds=5)
_RETRIES: Final[dict[str, object]] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_DENIED: Final = re.compile(
    r"PermissionDenied|Unauthenticated|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|"
    r"ExpiredToken|169\.254\.|\b40[13]\b|[Cc]redential|privileges"
)
_LACKING: Final = re.compile(r"NotImplemented|501 Not Implemented|non-partial response")

ReadAt = Callable[[int, int], bytes]  # (offset, size) -> bytes


class ObjectStore(Protocol):
    """The objects under one URI. Safe to share between threads, but not with forked children."""

    uri: str

    def get(self, name: str) -> bytes:
        """Return an object; raise FileNotFoundError if there is none."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return a range of an object, fewer bytes at its end; raise FileNotFoundError."""

    def size(self, name: str) -> int | None:
        """Return the size of an object; None if there is none."""

    def put(self, name: str, read_at: ReadAt, size: int) -> None:
        """Write an object, durably and as a whole; one of the same name is replaced."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object as `put` does, unless there is one of that name; return whether it did.

        A request whose answer was lost is repeated: the object that is there may be this one.
        """

    def get_tagged(self, name: str) -> tuple[bytes, str]:
        """Return an object and its tag, for `replace`; raise FileNotFoundError if there is none."""

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        """Replace an object if it still has a tag; return whether it did; see `create`."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, sorted; "" for all."""

    def folders(self) -> list[str]:
        """Return the first parts of all names that have more than one part, sorted."""

    def remove(self, name: str) -> None:
        """Remove an object if it exists."""

    def sweep(self, folder: str = "", age_s: float = _UNFINISHED_S) -> None:
        """Remove what killed processes have left of objects below a folder, so long ago or longer.

        The default is an hour. Nobody else may write an object there in that time.
        """


def put_bytes(store: ObjectStore, name: str, data: bytes) -> None:
    store.put(name, lambda offset, size: data[offset : offset + size], len(data))


def normal_uri(place: str) -> str:
    """Return a path or URI in the one form that is stored, without a slash at its end.

    Raises:
        ArgumentError: the scheme is unknown, or the URI contains settings, or what has no meaning.
    """
    if "://" not in place:
        if not place:
            raise ArgumentError("a URI cannot be empty")
        scheme = place.partition(":/")[0]
        if scheme in SCHEMES and scheme != place:
            raise ArgumentError(f"{place}: a URI begins with {scheme}://")
        return Path(os.path.abspath(place)).as_uri()
    try:
        parts = urlsplit(place)
    except ValueError as error:
        raise ArgumentError(f"{place}: {error}") from None
    if parts.scheme not in SCHEMES:
        raise ArgumentError(
            f"{place}: unknown scheme {parts.scheme}://, expected one of {', '.join(SCHEMES)}"
        )
    if parts.query or ("@" in parts.netloc and parts.scheme not in ("abfs", "abfss")):
        raise ArgumentError(
            f"{parts.scheme}://{parts.hostname}{parts.path}: the URI contains settings or secrets, "
            "which would appear in logs; next: set them in the environment: AWS_ENDPOINT_URL, "
            "AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
        )
    if parts.fragment:
        raise ArgumentError(f"{place}: a # in a URI is written as %23")
    if "%00" in parts.path:
        raise ArgumentError(f"{place}: a NUL cannot be in a path")
    if parts.scheme == "file":
        if parts.netloc.lower() not in ("", "localhost") or not parts.path:
            raise ArgumentError(f"{place}: expected a path from the root on: file:///srv/fleet")
        return folder_of(place).as_uri()
    utf8(place, "the URI of a bucket")
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    if not parts.netloc:
        raise ArgumentError(f"{place}: the URI names no bucket")
    names = [name for name in unquote(parts.path).split("/") if name]
    if not {".", ".."}.isdisjoint(names):  # not all libraries refuse them: some leave them out
        raise ArgumentError(f"{place}: in a bucket, . and .. lead nowhere; next: leave them out")
    return f"{scheme}://{parts.netloc}/{'/'.join(names)}".rstrip("/")


def folder_of(uri: str) -> Path:
    """Return the folder that a URI `file://` means, whose name may be no UTF-8."""
    return Path(os.fsdecode(unquote_to_bytes(os.fsencode(urlsplit(uri).path))))


def check_outside(uri: str, store: Path) -> None:
    if not uri.startswith("file://"):
        return
    # Not `resolve`, which raises RuntimeError for a loop of links.
    if Path(os.path.realpath(folder_of(uri))).is_relative_to(os.path.realpath(store)):
        raise StoreError(
            f"{uri}: it is in the store, and would be lost with it; next: name a folder "
            "elsewhere, best on another disk"
        )


def open_objects(place: str, modes: Modes | None = None) -> ObjectStore:
    """Return the objects under a path or URI, which need not exist yet.

    Args:
        modes: those of a store, for the files and folders that are made; by default the umask
            decides.

    Raises:
        ArgumentError: the URI is not supported.
        UnreachableError: the package that reaches it is not installed.
    """
    return _opened(normal_uri(place), os.getpid(), tuple(map(os.environ.get, _RELEVANT)), modes)


_RELEVANT: Final = (
    *_ENDPOINTS,
    *_REGIONS,
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
)


@lru_cache(maxsize=64)
def _opened(
    uri: str, process: int, environment: tuple[str | None, ...], modes: Modes | None
) -> ObjectStore:
    """Return a client. Its threads do not survive a fork, so each process has its own."""
    if uri.startswith("file://"):
        return FolderObjects(uri, modes)
    return BucketObjects(uri)


class FolderObjects:  # the methods are those of `ObjectStore`
    """Objects in a folder of this host; writes are synced, and renamed when complete."""

    def __init__(self, uri: str, modes: Modes | None = None) -> None:
        self.uri = uri
        self._modes = modes
        self._root = folder_of(uri)

    def get(self, name: str) -> bytes:
        with self._reaching():
            return (self._root / name).read_bytes()

    def read(self, name: str, offset: int, size: int) -> bytes:
        with self._reaching(), open(self._root / name, "rb", buffering=0) as file:
            return os.pread(file.fileno(), size, offset)

    def size(self, name: str) -> int | None:
        with self._reaching():
            try:
                return (self._root / name).stat().st_size
            except FileNotFoundError:
                return None

    def put(self, name: str, read_at: ReadAt, size: int) -> None:
        path = self._root / name
        with self._reaching(writes=True):
            files.create_folder(path.parent, self._modes, self._root)
            with files.replacing(path, self._modes) as out:
                for piece in _pieces(read_at, size):
                    out.write(piece)

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        with self._reaching(writes=True):
            files.create_folder(path.parent, self._modes, self._root)
            return files.create_whole(path, data, self._modes)

    def get_tagged(self, name: str) -> tuple[bytes, str]:
        data = self.get(name)
        return data, digest64(data).hex()

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        with self._reaching(writes=True):
            handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                which = f"the lock of {self.uri}"
                lock_file(handle, LongWait(which, partial(holders_of, [handle])))
                if self.get_tagged(name)[1] != tag:
                    return False
                put_bytes(self, name, data)
                return True
            finally:
                os.close(handle)

    def names(self, folder: str) -> list[str]:
        top = self._root / folder
        with self._reaching():
            try:
                found = list(files.files_below(top))
            except FileNotFoundError as error:  # all of it is gone, or a folder in it just now
                return [] if error.filename == str(top) else self.names(folder)
        return sorted(
            path.relative_to(self._root).as_posix()
            for path in found
            if not path.name.startswith(".")  # being written, or left by a killed process
        )

    def folders(self) -> list[str]:
        try:
            with self._reaching(), os.scandir(self._root) as found:
                return sorted(one.name for one in found if one.is_dir())
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        with self._reaching():
            (self._root / name).unlink(missing_ok=True)

    def sweep(self, folder: str = "", age_s: float = _UNFINISHED_S) -> None:
        with self._reaching():
            for top, _, names in os.walk(self._root / folder):  # `lost+found` cannot be listed
                for name in names:
                    path = Path(top, name)
                    if name.startswith(".") and name.endswith(".part"):
                        with suppress(FileNotFoundError):
                            if not age_s or path.stat().st_mtime < time.time() - age_s:
                                path.unlink()

    @contextmanager
    def _reaching(self, *, writes: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A folder is made before a write: it has just gone.
            if isinstance(error, FileNotFoundError) and not writes:
                raise
            if error.errno == errno.ENOSPC:
                raise UnreachableError(f"{self.uri}: no space is left; next: make room") from error
            raise UnreachableError(f"{self.uri}: {error.strerror or error}") from error


class BucketObjects:  # the methods are those of `ObjectStore`
    """Objects in a bucket."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        try:
            import obstore
        except ImportError as error:
            raise UnreachableError(
                f"{uri}: archives in a bucket need a package that is not installed; next: "
                f"{install_hint('s3')}"
            ) from error
        self._obstore: ModuleType = obstore
        try:
            self._bucket = _bucket(uri)
        except (ValueError, obstore.exceptions.BaseError) as error:  # no account
            raise ArgumentError(f"{uri}: {str(error).splitlines()[0]}") from error

    def get(self, name: str) -> bytes:
        with self._reaching():
            return bytes(self._obstore.get(self._bucket, name).bytes())

    def read(self, name: str, offset: int, size: int) -> bytes:
        if size == 0:
            return b""
        with self._reaching():
            return bytes(self._obstore.get_range(self._bucket, name, start=offset, length=size))

    def size(self, name: str) -> int | None:
        with self._reaching():
            try:
                return int(self._obstore.head(self._bucket, name)["size"])
            except FileNotFoundError:
                return None

    def put(self, name: str, read_at: ReadAt, size: int) -> None:
        with self._reaching():
            if size <= _PIECE:
                self._obstore.put(self._bucket, name, read_at(0, size), use_multipart=False)
            else:
                self._obstore.put(self._bucket, name, _pieces(read_at, size), chunk_size=_PIECE)

    def create(self, name: str, data: bytes) -> bool:
        return self._put_if(name, data, "create")

    def get_tagged(self, name: str) -> tuple[bytes, str]:
        with self._reaching():
            found = self._obstore.get(self._bucket, name)
            return bytes(found.bytes()), str(found.meta["e_tag"])

    def replace(self, name: str, data: bytes, tag: str) -> bool:
        return self._put_if(name, data, {"e_tag": tag})

    def _put_if(self, name: str, data: bytes, mode: object) -> bool:
        failures = self._obstore.exceptions
        with self._reaching():
            try:
                self._obstore.put(self._bucket, name, data, mode=mode, use_multipart=False)
            except (failures.AlreadyExistsError, failures.PreconditionError):
                return False
            return True

    def names(self, folder: str) -> list[str]:
        with self._reaching():
            found = self._obstore.list(self._bucket, folder or None, chunk_size=1000)
            return sorted(str(one["path"]) for chunk in found for one in chunk)

    def folders(self) -> list[str]:
        with self._reaching():
            found = self._obstore.list_with_delimiter(self._bucket)
            return sorted(str(one).rstrip("/") for one in found["common_prefixes"])

    def sweep(self, folder: str = "", age_s: float = _UNFINISHED_S) -> None:
        """Do nothing: its lifecycle rules remove the parts of uploads that were not completed."""

    def remove(self, name: str) -> None:
        with self._reaching():
            try:
                self._obstore.delete(self._bucket, name)
            except FileNotFoundError:
                return

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turn an error of the client into one line that says what to do."""
        try:
            yield
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise UnreachableError(_advice(self.uri, str(error))) from error
            raise
        except (OSError, self._obstore.exceptions.BaseError) as error:
            text = f"{type(error).__name__}: {error}"
            raise UnreachableError(_advice(self.uri, text)) from error


def _pieces(read_at: ReadAt, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _PIECE):
        yield read_at(offset, min(_PIECE, size - offset))


def _bucket(uri: str) -> Any:
    store = importlib.import_module("obstore.store")
    server = endpoint()
    client: dict[str, object] = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT}
    if server is not None and server.startswith("http://"):
        client["allow_http"] = True
    parts = urlsplit(uri)
    if parts.scheme != "s3":
        return store.from_url(uri, client_options=client, retry_config=_RETRIES)
    settings: dict[str, object] = {}
    if server is not None:
        settings["endpoint"] = server
    settings["region"] = next(filter(None, map(os.environ.get, _REGIONS)), "us-east-1")
    if (provider := _profile(uri)) is not None:
        settings["credential_provider"] = provider
    return store.S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        client_options=client,
        retry_config=_RETRIES,
        **settings,
    )


def _profile(uri: str) -> Any:
    """Return what reads the credentials of AWS_PROFILE; None without one, or with explicit keys."""
    if not os.environ.get("AWS_PROFILE") or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise UnreachableError(
            f"{uri}: AWS_PROFILE is set, and reading profiles needs boto3; next: pip install boto3"
        ) from error
    return Boto3CredentialProvider()


def endpoint() -> str | None:
    """Return the URL of the configured S3 server; None for Amazon's."""
    return next(filter(None, map(os.environ.get, _ENDPOINTS)), None)


def _advice(uri: str, text: str) -> str:
    parts = urlsplit(uri)
    brief = shorten(text.partition("Debug source:")[0], 200, placeholder="...")
    if _NO_BUCKET.search(text):
        return f"{uri}: there is no bucket {parts.netloc!r}; next: make it"
    if _DENIED.search(text):
        return (
            f"{uri}: credentials are missing or not sufficient; next: set AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY, or AWS_PROFILE ({brief})"
        )
    server = (endpoint() if parts.scheme == "s3" else None) or "the object store"
    if _LACKING.search(text):
        return (
            f"{uri}: {server} cannot do what is needed here, such as writes on a condition and "
            f"reads of a range; next: use another server ({brief})"
        )
    return (
        f"{uri}: no usable answer from {server}; next: check the network and "
        f"the server, then repeat the command ({brief})"
    )
