"""Storage of files: a path on this host, or a URI such as `s3://bucket/folder`.

Files are read and written through `pyarrow.fs`, and the log of a lake through delta-rs. These are
two clients of S3, and they must see the same server. Both take their settings from the environment,
or from the profile or role of the machine, and never from a URI, because URIs appear in logs:

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or AWS_PROFILE
    AWS_ENDPOINT_URL   of a server other than Amazon's, `http://host:port`
    AWS_REGION         looked up if it is not set

delta-rs would by itself neither use plain HTTP nor look up a region; `log_settings` returns the
settings that it lacks. Both clients report errors in long texts; `reaching` turns them into one
line that says what to do. A bucket is never made.
"""

from __future__ import annotations

import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from streamkeep.format.core.errors import StreamkeepError

# The variables that both clients read.
S3_ENVIRONMENT: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)

_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SCHEMES: Final = ("file", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "hdfs")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_NO_BUCKET: Final = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket")
_NOT_ALLOWED: Final = re.compile(
    r"ACCESS_DENIED|AccessDenied|InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|"
    r"SIGNATURE_DOES_NOT_MATCH|ExpiredToken|EXPIRED_TOKEN|169\.254\.|\b40[13]\b|[Cc]redentials"
)
_NO_ANSWER: Final = re.compile(r"NETWORK_CONNECTION|HTTP error|\(Connect\)|timed out|Timeout")
_MOST_TEXT: Final = 200


class StorageError(StreamkeepError):
    """The storage of some files cannot be reached, or not in this way."""


def is_uri(place: str) -> bool:
    return "://" in place


def is_local(place: str) -> bool:
    """Return whether a place is on a disk that is mounted on this host."""
    return not is_uri(place) or place.startswith("file://")


def by_python_only(place: str) -> bool:
    """Return whether `pyarrow.fs` reaches a place, but Spark only with more jars.

    `s3a://` is Hadoop's name for S3; a user who writes it has these jars.
    """
    return urlsplit(place).scheme in ("s3", "gs", "gcs", "abfs", "abfss")


def located(place: str) -> str:
    """Return an absolute path, or a URI unchanged: workers have another working directory."""
    return place if is_uri(place) else os.path.abspath(place)


def plain(place: str) -> str:
    """Return `located(place)` for writing, without a slash at the end.

    Raises:
        StorageError: it is a URI that contains settings.
    """
    if is_uri(place):
        parts = urlsplit(place)
        if parts.query or "@" in parts.netloc:
            raise StorageError(
                f"{parts.scheme}://{parts.hostname}{parts.path}: the URI contains settings or "
                "secrets, which would appear in logs; next: set them in the environment: "
                "AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
            )
    return located(place).rstrip("/") or "/"


def file_system(place: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    Raises:
        StorageError: such a URI is not supported.
    """
    if not is_uri(place):
        return pafs.LocalFileSystem(), os.path.abspath(place)
    if place.startswith("s3a://"):  # Hadoop's name for S3
        place = "s3://" + place.removeprefix("s3a://")
    with reaching(place):
        try:
            system, path = pafs.FileSystem.from_uri(place)
        except pa.ArrowInvalid as error:
            raise StorageError(f"{place}: {one_line(error)}") from None
    return system, path


def make_folder(system: pafs.FileSystem, path: str) -> None:
    if not isinstance(system, (pafs.S3FileSystem, pafs.GcsFileSystem)):
        system.create_dir(path, recursive=True)


def read_bytes(place: str, name: str) -> bytes:
    """Return a file in a folder; raise FileNotFoundError if there is none."""
    system, path = file_system(place)
    with reaching(place), system.open_input_stream(f"{path}/{name}", compression=None) as file:
        return bytes(file.read())


def write_bytes(place: str, name: str, data: bytes) -> None:
    system, root = file_system(place)
    path = f"{root}/{name}"
    with reaching(place):
        make_folder(system, path.rpartition("/")[0])
        with system.open_output_stream(path, compression=None) as out:
            out.write(data)
    check_written(place, system, path, len(data))


def sync_file(path: str) -> None:
    """Sync a file of this host, and its folder."""
    for one in (path, os.path.dirname(path)):
        descriptor = os.open(one, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_written(place: str, system: pafs.FileSystem, path: str, size: int) -> None:
    """Check that an object store has a file which it confirmed.

    Raises:
        StorageError: it has not, or another size of it.
    """
    if isinstance(system, pafs.LocalFileSystem):
        return
    with reaching(place):
        info = system.get_file_info(path)
    if info.type != pafs.FileType.File or info.size != size:
        raise StorageError(
            f"{place}: the storage has confirmed {path}, with {size} bytes, and does not have it; "
            "next: run the job again"
        )


def check(place: str) -> None:
    """Raise StorageError for a URI with an unknown scheme, and for an unreachable bucket."""
    scheme = urlsplit(place).scheme if is_uri(place) else "file"
    if scheme not in _SCHEMES:
        raise StorageError(
            f"{place}: unknown scheme {scheme}://, expected one of {', '.join(_SCHEMES)}"
        )
    if scheme in ("s3", "s3a"):
        _check_bucket(place, tuple(os.environ.get(name) for name in S3_ENVIRONMENT))


def log_settings(place: str) -> dict[str, str]:
    """Return the settings that delta-rs needs to reach a place in the same way as `file_system`."""
    if urlsplit(place).scheme not in ("s3", "s3a"):
        return {}
    found = {}
    server = endpoint()
    if server is not None:
        found["AWS_ENDPOINT_URL"] = server
        if server.startswith("http://"):
            found["AWS_ALLOW_HTTP"] = "true"
    if not any(os.environ.get(name) for name in _REGIONS):
        system, _ = file_system(place)
        found["AWS_REGION"] = str(system.region)
    return found


def endpoint() -> str | None:
    """Return the URL of the configured S3 server; None for Amazon's."""
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)


@contextmanager
def reaching(place: str) -> Iterator[None]:
    """Turn errors of a client inside the block into one line that says what to do.

    Raises:
        StorageError: instead of an OSError, if the place is a URI and the file is not merely
            missing.
    """
    try:
        yield
    except OSError as error:
        if is_local(place) or isinstance(error, FileNotFoundError):
            raise
        raise StorageError(f"{place}: {_advice(place, str(error))}") from error


def _advice(place: str, text: str) -> str:
    parts = urlsplit(place)
    if parts.scheme not in ("s3", "s3a"):
        return one_line(text)
    if _NO_BUCKET.search(text):
        return f"there is no bucket {parts.netloc!r}; next: make it"
    if _NOT_ALLOWED.search(text):
        return (
            "credentials are missing or not sufficient; next: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, on all hosts that take part "
            f"({one_line(text)})"
        )
    if _NO_ANSWER.search(text):
        return (
            f"no answer from {endpoint() or 'Amazon S3'}; next: check the network, or set "
            f"AWS_ENDPOINT_URL for another server ({one_line(text)})"
        )
    return one_line(text)


def one_line(error: object) -> str:
    """Return the error of a client in one line of limited length."""
    text = " ".join(_COLOURS.sub("", str(error)).replace("↳", ":").split())
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


@lru_cache
def _check_bucket(place: str, environment: tuple[str | None, ...]) -> None:
    """Check that a bucket exists; success is cached."""
    system, path = file_system(place)
    bucket = path.split("/")[0]
    with reaching(place):
        info = system.get_file_info(bucket)
    if info.type == pafs.FileType.NotFound:
        raise StorageError(f"{place}: there is no bucket {bucket!r}; next: make it")


# --- paths that an executor lacks -----------------------------------------------------------------
#
# Paths that the driver has and an executor lacks: which host, and what to do.
#
# Used by tasks.


class NotOnExecutorError(StreamkeepError):
    """The host of an executor does not have what the driver has under a path."""


def unreachable(path: str, kind: str, why: str) -> NotOnExecutorError:
    """Return the error for a path that is missing on this host.

    Args:
        kind: what the driver has there, such as "store".
    """
    return NotOnExecutorError(
        f"the executor on host {socket.gethostname()} does not have the {kind} {path} that the "
        f"driver has ({why}); next: run where the path is, with --master 'local[*]', or let "
        "executors read files: set tailExport (--tail-export) to a folder, and keep the archive "
        "under a path or URI, that all hosts reach"
    )


def check_reached(path: str, kind: str) -> None:
    """Raise NotOnExecutorError if a local folder is missing or empty on this host."""
    if is_local(path):
        folder = file_system(path)[1]
        if not os.path.isdir(folder):
            raise unreachable(path, kind, "there is no such folder")
        if not os.listdir(folder):
            raise unreachable(path, kind, "the folder is empty")


# --- folders of jobs ------------------------------------------------------------------------------
#
# Folders of files that live as long as a job. Runs on the driver.
#
# The name of a folder begins with the time when its job began, so that a later job can remove the
# folders of jobs that died.

_STALE_S: Final = 7 * 24 * 3600
_JOB_FOLDER: Final = re.compile("([0-9]{12})-[0-9a-f]{32}")  # others may lie beside, as 2024-06-10


def new_folder(staging: str) -> str:
    """Return the name for the folder of a new job; the folder is made with its first file.

    Raises:
        StorageError: the bucket does not exist or cannot be reached.
    """
    check(staging)
    return f"{staging.rstrip('/')}/{time.time_ns() // 10**9:012d}-{uuid.uuid4().hex}"


def remove_folder(location: str) -> None:
    """Remove the folder of a job, including the files of failed attempts."""
    system, path = file_system(location)
    with suppress(FileNotFoundError):
        system.delete_dir(path)


def sweep(staging: str) -> int:
    """Remove the folders of jobs that died more than a week ago; return their number."""
    system, path = file_system(staging)
    selector = pafs.FileSelector(path, allow_not_found=True)
    limit = time.time() - _STALE_S
    removed = 0
    for info in system.get_file_info(selector):
        found = _JOB_FOLDER.fullmatch(info.base_name)
        if found is not None and int(found[1]) < limit:
            remove_folder(f"{staging.rstrip('/')}/{info.base_name}")
            removed += 1
    return removed
