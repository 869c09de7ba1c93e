"""What Streamkeep runs on: Linux, Python 3.11 or newer, compiled or interpreted.

The package imports this module before any other, and `setup.py` runs it by its path. So it has no
imports of the package, and no syntax that an older Python cannot read.
"""

import os
import sys

OLDEST = (3, 11)
# True from the first release on: hints and pages then name the package in place of a clone. After a
# change here, `make docs` writes the pages again; `scripts/check_tag.py` refuses a tag before it.
RELEASED = False

_CONTAINER = (
    "next: run it in a container (examples/deploy/Containerfile); on Windows, WSL2 will do, too, "
    "which has a Linux kernel"
)
_told = False


def problem(version: "tuple[int, ...]" = sys.version_info[:2], platform: str = sys.platform) -> str:
    """Return why Streamkeep cannot run here, and what to do; "" if it can."""
    if version < OLDEST:
        needed, found = (".".join(map(str, one)) for one in (OLDEST, version))
        return (
            f"Streamkeep needs Python {needed} or newer, and this is Python {found}; next: use a "
            "newer one, such as python3.13, or `make PYTHON=python3.13`"
        )
    if platform == "darwin":
        return (
            "Streamkeep runs on Linux only: on macOS, a sync does not reach the drive, so a power "
            "cut could take what was acknowledged; " + _CONTAINER
        )
    if platform != "linux":
        return f"Streamkeep runs on Linux only, and this is {platform}; {_CONTAINER}"
    return ""


def check() -> None:
    """Raise ImportError where Streamkeep cannot run; `python -m streamkeep` prints one sentence."""
    told = problem()
    if told:
        if sys.argv[:1] == ["-m"]:
            sys.exit(told)
        raise ImportError(told)


def install_hint(extra: str = "", again: bool = False) -> str:
    """Return the command that installs the package, with an extra or once more, and where.

    pip takes the extra of an installed package from there, and compiles nothing again.
    """
    name, place = ("streamkeep", "") if RELEASED or extra else (".", " in a clone of Streamkeep")
    what = f"'{name}[{extra}]'" if extra else name
    return f"pip install {'--force-reinstall --no-deps ' * again}{what}{place}"


def warn_if_interpreted() -> None:
    """Say once in a process that the modules are not compiled, and how to get them compiled.

    STREAMKEEP_PURE=1 silences it. The command line says it itself, on a terminal only.
    """
    global _told
    if not _told:
        _told = True
        text = interpreted()
        if text:
            import warnings

            warnings.warn(text, RuntimeWarning, stacklevel=3)


def interpreted() -> str:
    """Return the warning of an interpreted installation, the first time; "" if there is none."""
    global _told
    _told = True
    if os.environ.get("STREAMKEEP_PURE") == "1":
        return ""
    from streamkeep.format.node import listpack

    if not listpack.__file__.endswith(".py"):
        return ""
    return (
        "Streamkeep runs interpreted, several times slower: no C compiler was there when it was "
        "installed; next: install gcc and Python's headers (python3-dev), then "
        + install_hint(again=True)
        + "; STREAMKEEP_PURE=1 silences this"
    )


check()
