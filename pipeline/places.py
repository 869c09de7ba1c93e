"""Where files are: a path on this host, or a URI that `pyarrow.fs` knows, such as `s3://bucket/a`."""

from __future__ import annotations

import os

import pyarrow.fs


def located(place: str) -> str:
    """Return a path in full, a URI as it is: workers have another working directory."""
    return place if "://" in place else os.path.abspath(place)


def file_system(place: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it."""
    if "://" not in place:
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(place)
    system, path = pyarrow.fs.FileSystem.from_uri(place)
    return system, path
