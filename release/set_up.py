"""Install what a demo or the development needs; say what happens all the time, and how big it is.

    python release/set_up.py --compile -- --editable '.[dev,demo]'

pip and the C compiler work for minutes, and are silent or far too loud. This program runs them,
and prints what pip downloads, with sizes, and at least every few seconds what goes on. `make` runs
it in the environment that it fills, so it needs nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

ROOT: Final = Path(__file__).resolve().parent.parent
Clock = Callable[[], float]

_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install")
_QUIET_S: Final = 4.0  # after so long without a line, one says what goes on
# What pip prints of a file that it downloads or has, and what it does afterwards.
_FILE: Final = re.compile(r"\s*(Downloading|Using cached) (\S+)(?: \((.+)\))?$")
_WORK: Final = re.compile(r"\s*(Installing collected packages|Building wheel for \S+)")
_LOOKS: Final = "pip looks for the newest versions that fit together"
_RETRY: Final = "WARNING: Retrying"
_NO_ANSWER: Final = "the network does not answer, and pip tries again"
_METADATA: Final = ".metadata"
_SMALL: Final = ("kB", "bytes")
_UNITS: Final = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "bytes": 1.0}


class Teller:
    """Prints lines with the time since the beginning, and one after some silence."""

    def __init__(
        self, out: TextIO = sys.stdout, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = out
        self._clock = clock
        self._began = self._said = clock()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self._said = self._clock()
            print(f"{self._said - self._began:4.0f} s  {text}", file=self._out, flush=True)

    def say_if_quiet(self, text: Callable[[], str]) -> None:
        """Print a line if none was printed for some seconds."""
        if self._clock() - self._said >= _QUIET_S:
            self.say(text())


class Downloads:
    """What pip says while it downloads and installs: in short lines, with a total."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self.files = 0
        self.bytes = 0.0
        self.now = _LOOKS

    def read(self, line: str) -> None:
        """Take one line of pip's output."""
        line = line.rstrip("\n")
        if found := _FILE.match(line):
            name, size = found[2], found[3] or ""
            if not name.endswith(_METADATA):
                self.files += 1
                self.bytes += _bytes(size)
                self.now = f"{'downloading' if found[1] == 'Downloading' else 'taking'} {name}"
                if not size.endswith(_SMALL):
                    self._teller.say(f"{self.now} ({size or 'size unknown'})")
        elif found := _WORK.match(line):
            self.now = found[1].replace("Installing collected", "unpacking")
            self._teller.say(self.now)
        elif line.startswith(_RETRY):
            if self.now != _NO_ANSWER:
                self.now = _NO_ANSWER
                self._teller.say(self.now)
        elif line.startswith("Collecting") and self.now == _NO_ANSWER:
            self.now = _LOOKS
        elif line.startswith(("ERROR", "error")):
            self._teller.say(line)

    def summary(self) -> str:
        """Return how much it was."""
        if not self.files:
            return "nothing was missing"
        return f"{self.files} packages, {self.bytes / 1e6:,.0f} MB"


def _bytes(size: str) -> float:
    number, _, unit = size.partition(" ")
    try:
        return float(number) * _UNITS.get(unit, 0.0)
    except ValueError:
        return 0.0


def run_pip(words: Sequence[str], teller: Teller) -> int:
    """Run `pip install`; return its status. Its whole output is printed if it fails."""
    downloads = Downloads(teller)
    kept: list[str] = []
    command = [*_PIP, "--progress-bar", "off", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as pip:
        assert pip.stdout is not None
        with _ticking(lambda: teller.say_if_quiet(lambda: f"still: {downloads.now}")):
            for line in pip.stdout:
                kept.append(line)
                downloads.read(line)
    if pip.returncode:
        print("".join(kept[-60:]), file=sys.stderr)
        teller.say(
            "pip failed: see above; next: check the network, or name a folder of packages in "
            "PIP_FIND_LINKS, with PIP_NO_INDEX=1"
        )
    else:
        teller.say(f"installed: {downloads.summary()}")
    return pip.returncode


def start_compiler(teller: Teller) -> tuple[subprocess.Popen[str], Callable[[], str]]:
    """Start to compile the hot modules in place; return the process, and what it has done."""
    teller.say(
        "compiling the modules that must be fast, by mypyc and the C compiler: about a minute"
    )
    began = time.time()
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    compiling = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )

    def state() -> str:
        sources = sum(1 for _ in _newer(ROOT / "build", "*.c", began))
        objects = sum(1 for _ in _newer(ROOT / "build", "*.o", began))
        if not sources:
            return "mypyc translates the modules to C"
        return f"the C compiler has done {objects} of {max(sources, objects)} files"

    return compiling, state


def _newer(folder: Path, pattern: str, began: float) -> Iterator[Path]:
    for path in folder.rglob(pattern):
        if path.stat().st_mtime >= began - 1:
            yield path


class _ticking:
    """Calls a function every second in a thread, in a `with` block."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(1.0):
            self._tick()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def main(words: list[str]) -> int:
    """Install, and compile if asked to; return the exit status."""
    own, pip_words = words[: words.index("--")], words[words.index("--") + 1 :]
    teller = Teller()
    teller.say(f"installing into {Path(sys.prefix).name}: {' '.join(pip_words)}")
    for note in own:
        if not note.startswith("--"):
            teller.say(note)
    if "--compile" not in own:
        return run_pip(pip_words, teller)
    # mypyc first, and then all else while it works.
    status = run_pip(["setuptools>=77", "mypy[mypyc]>=2.4"], teller)
    if status:
        return status
    compiling, state = start_compiler(teller)
    os.environ["STREAMKEEP_PURE"] = "1"  # pip must not compile them a second time
    status = run_pip(["--no-build-isolation", *pip_words], teller)
    with _ticking(lambda: teller.say_if_quiet(state)):
        _, errors = compiling.communicate()
    if compiling.returncode:
        print(errors[-4000:], file=sys.stderr)
        teller.say("the modules could not be compiled: see above")
        return compiling.returncode
    if any((ROOT / "engine").rglob("*.so")):
        teller.say("compiled")
    else:  # setup.py goes on without a compiler
        teller.say("not compiled: there is no C compiler or no Python.h; all runs interpreted")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
