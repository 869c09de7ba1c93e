"""What a bug report needs: versions of everything, and whether the compiled modules are in use."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import streamkeep

_LIBRARIES = ("click", "rich", "librt", "xxhash", "pyarrow", "pyspark", "deltalake")


def facts() -> dict[str, str]:
    """Return what this installation runs on, in the order in which it is printed."""
    import lmdb
    import zstandard

    from streamkeep.format.node import listpack
    from streamkeep.format.rows.records import STORE_VERSION

    if listpack.__file__.endswith(".py"):
        why = "they were not compiled when the package was installed"
        if os.environ.get("STREAMKEEP_PURE") == "1":
            why = "STREAMKEEP_PURE=1 is set"
        modules = f"interpreted, several times slower: {why}"
    else:
        modules = "compiled"
    libraries = (f"{name} {found}" for name in _LIBRARIES if (found := _version(name)))
    return {
        "streamkeep": streamkeep.__version__,
        "store format": str(STORE_VERSION),
        "modules": modules,
        "Python": f"{platform.python_version()} ({platform.python_implementation()}, "
        f"{sys.maxsize.bit_length() + 1} bits)",
        "LMDB": f"{'.'.join(map(str, lmdb.version()))} (py-lmdb {_version('lmdb')})",
        "Zstandard": f"{'.'.join(map(str, zstandard.ZSTD_VERSION))} "
        f"(python-zstandard {_version('zstandard')})",
        "libraries": ", ".join(libraries),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "platform": platform.platform(),
        "C library": " ".join(platform.libc_ver()).strip() or "unknown",
    }


def _version(name: str) -> str:
    try:
        return installed(name)
    except PackageNotFoundError:
        return ""
