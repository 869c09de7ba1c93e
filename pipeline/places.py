"""Where files are: a path on this host, or a URI such as `s3://bucket/folder`.

Files are reached through `pyarrow.fs`, the log of a lake through delta-rs: two clients of S3, which
have to see the same one. Both take what they need from the environment, in the same words, or from
the profile or the role of the machine, and never from a URI, where secrets would end in logs:

    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or AWS_PROFILE
    AWS_ENDPOINT_URL   of a server other than Amazon's, `http://host:port`
    AWS_REGION         looked up when it is not set

delta-rs alone would not speak plain HTTP, nor look up a region: `log_settings` tells it what the
other client knows.

Both answer with long texts of their own when something is missing; `reaching` makes one line of
them that says what to do. No bucket is ever made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.launch import S3_ENVIRONMENT

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


class PlaceError(StreamkeepError):
    """A place that files are in cannot be reached, or not in this way."""


def is_uri(place: str) -> bool:
    """Say whether a place is a URI, not a path."""
    return "://" in place


def is_local(place: str) -> bool:
    """Say whether a place is on a disk that is mounted here."""
    return not is_uri(place) or place.startswith("file://")


def by_python_only(place: str) -> bool:
    """Say whether a place is one that `pyarrow.fs` reaches, and Spark without more jars does not.

    `s3a://` is Hadoop's name for S3: it says that Spark has them.
    """
    return urlsplit(place).scheme in ("s3", "gs", "gcs", "abfs", "abfss")


def located(place: str) -> str:
    """Return a path in full, a URI as it is: workers have another working directory."""
    return place if is_uri(place) else os.path.abspath(place)


def plain(place: str) -> str:
    """Return `located(place)` of a place to write to.

    Raises:
        PlaceError: it is a URI with settings in it.
    """
    if is_uri(place):
        parts = urlsplit(place)
        if parts.query or "@" in parts.netloc:
            raise PlaceError(
                f"{parts.scheme}://{parts.hostname}{parts.path}: the URI has settings or secrets "
                "in it, which would end in logs; give them in the environment: AWS_ENDPOINT_URL, "
                "AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
            )
    return located(place).rstrip("/") or "/"


def file_system(place: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    Raises:
        PlaceError: nothing here reads such a URI.
    """
    if not is_uri(place):
        return pafs.LocalFileSystem(), os.path.abspath(place)
    if place.startswith("s3a://"):  # what Hadoop calls S3
        place = "s3://" + place.removeprefix("s3a://")
    with reaching(place):
        try:
            system, path = pafs.FileSystem.from_uri(place)
        except pa.ArrowInvalid as error:
            raise PlaceError(f"{place}: {_short(error)}") from None
    return system, path


def make_folder(system: pafs.FileSystem, path: str) -> None:
    """Make a folder and those above it, where there are such things."""
    if not isinstance(system, (pafs.S3FileSystem, pafs.GcsFileSystem)):
        system.create_dir(path, recursive=True)


def check(place: str) -> None:
    """Raise PlaceError for a URI of an unknown kind, and for a bucket that cannot be reached."""
    scheme = urlsplit(place).scheme if is_uri(place) else "file"
    if scheme not in _SCHEMES:
        raise PlaceError(f"{place}: nothing here knows {scheme}://; {', '.join(_SCHEMES)} it does")
    if scheme in ("s3", "s3a"):
        _check_bucket(place, tuple(os.environ.get(name) for name in S3_ENVIRONMENT))


def log_settings(place: str) -> dict[str, str]:
    """Return what delta-rs has to be told to reach a place as `file_system` does."""
    if urlsplit(place).scheme not in ("s3", "s3a"):
        return {}
    found = {}
    server = endpoint()
    if server is not None:
        found["AWS_ENDPOINT_URL"] = server
        if server.startswith("http://"):
            found["AWS_ALLOW_HTTP"] = "true"
    if not any(os.environ.get(name) for name in _REGIONS):
        found["AWS_REGION"] = _region_of(place)
    return found


def endpoint() -> str | None:
    """Return the URL of the S3 server that was asked for; None for Amazon's."""
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)


@contextmanager
def reaching(place: str) -> Iterator[None]:
    """Make what a client says of a place, inside, one line that tells what to do.

    Raises:
        PlaceError: in place of an OSError, where the place is a URI and the file is not just
            missing.
    """
    try:
        yield
    except OSError as error:
        if is_local(place) or isinstance(error, FileNotFoundError):
            raise
        raise PlaceError(f"{place}: {_advice(place, str(error))}") from error


def _advice(place: str, text: str) -> str:
    parts = urlsplit(place)
    if parts.scheme not in ("s3", "s3a"):
        return _short(text)
    if _NO_BUCKET.search(text):
        return f"there is no bucket {parts.netloc!r}; make it first"
    if _NOT_ALLOWED.search(text):
        return (
            "credentials are missing, or do not allow it: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, on all hosts that work on it "
            f"({_short(text)})"
        )
    if _NO_ANSWER.search(text):
        return (
            f"no answer from {endpoint() or 'Amazon S3'}; AWS_ENDPOINT_URL says where another "
            f"server is ({_short(text)})"
        )
    return _short(text)


def _short(error: object) -> str:
    """Return what a client said, in one line that is not too long."""
    text = " ".join(_COLOURS.sub("", str(error)).replace("↳", ":").split())
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


@lru_cache
def _check_bucket(place: str, environment: tuple[str | None, ...]) -> None:
    """Ask for a bucket; a good answer is kept."""
    system, path = file_system(place)
    bucket = path.split("/")[0]
    with reaching(place):
        info = system.get_file_info(bucket)
    if info.type == pafs.FileType.NotFound:
        raise PlaceError(f"{place}: there is no bucket {bucket!r}; make it first")


def _region_of(place: str) -> str:
    system, _ = file_system(place)
    return str(system.region)
