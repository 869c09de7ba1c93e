"""A program that forks processes to be killed, and the tests' side of it.

The program reads one JSON object per line: `{"fork": {...}}` forks a process and answers with its
number, `{"wait": pid}` waits for its end and answers with the status. Forking from there makes a
process in a few milliseconds, without whatever the tests have loaded.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from patience import PATIENCE_S, line_of

_TESTS: Final = Path(__file__).resolve().parent

Wanted = dict[str, Any]  # what a process is to do, in JSON


class Server:
    """A running program, as the tests have it."""

    def __init__(self, module: str) -> None:
        paths = [str(_TESTS), *filter(None, sys.path)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def close(self) -> None:
        """Have the program kill its processes and end; it is killed if it waits for one of them."""
        try:
            self._process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise

    def fork(self, wanted: Any) -> int:
        """Return the number of a new process; `wanted` is a dataclass."""
        return self._ask({"fork": asdict(wanted)})

    def wait(self, pid: int) -> int:
        """Return how a process ended: its exit status, or minus the signal."""
        return self._ask({"wait": pid})

    def _ask(self, what: object) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return int(line_of(self._process))


@contextmanager
def forking(module: str) -> Iterator[Server]:
    server = Server(module)
    try:
        yield server
    finally:
        server.close()


def serve(work: Callable[[Wanted], object], errors_of: Callable[[Wanted], str]) -> None:
    """Be the program: fork processes, and wait for them, as standard input says."""
    children: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            pid, status = os.waitpid(asked["wait"], 0)
            children.discard(pid)
            answer = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        else:
            answer = os.fork()
            if answer == 0:
                _be_child(work, asked["fork"], errors_of(asked["fork"]))
            children.add(answer)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _be_child(work: Callable[[Wanted], object], wanted: Wanted, errors: str) -> NoReturn:
    status = 1
    try:
        out = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 2)
        os.dup2(out, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        work(wanted)
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)
