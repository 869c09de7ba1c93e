"""A real S3 server on loopback (moto's), which can be made as careless as some are.

It is a process of its own: delta-rs keeps all threads of a process waiting for some answers. Run as
a program, this module serves, and says its port on standard output.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patience import PATIENCE_S

BUCKET = "bucket"
GOOD, CARELESS, LOCKED = "good", "careless", "locked"
_TESTS = Path(__file__).resolve().parent.parent
_MODE = "/-/mode/"


class S3Server:
    """A server that runs."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client has to have in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def behave(self, mode: str) -> None:
        """Choose what kind of server it is.

        Args:
            mode: GOOD; CARELESS, which ignores `If-None-Match`, so that a file that must be new may
                replace another; LOCKED, which allows nobody anything.
        """
        self._put(f"{_MODE}{mode}")

    def make_bucket(self) -> None:
        """Make the bucket that tests use."""
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
            assert process.stdout is not None
            server = S3Server(int(process.stdout.readline()))
            server.make_bucket()
            yield server
        finally:
            process.terminate()


class _Application:
    """Moto's S3, with manners to choose."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            create_backend_app,
        )

        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._mode = GOOD

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path.startswith(_MODE):
            self._mode = path.removeprefix(_MODE)
            start("200 OK", [])
            return []
        if self._mode == LOCKED:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]
        if self._mode == CARELESS:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        answer: Iterable[bytes] = self._moto(environ, start)
        return answer


def _serve() -> None:
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, _Application(), threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()
