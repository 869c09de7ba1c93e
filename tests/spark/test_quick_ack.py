"""What tasks are sent confirms its receipt when it is unpickled."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from streamkeep.pipeline.distribution import quick_ack
from streamkeep.pipeline.distribution.units import run_units
from streamkeep.pipeline.options import parse_read
from streamkeep.pipeline.source.reader import StreamkeepReader
from streamkeep.pipeline.source.stream_reader import StreamkeepStreamReader

# In a process of its own, where nothing else opens and closes connections.
PROMPT = """
import os, socket
from streamkeep.pipeline.distribution import quick_ack

handles = sorted(os.listdir("/proc/self/fd"))
assert quick_ack.acknowledge_now() == 0
left, right = socket.socketpair()
with left, right, socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as client:
        served, _ = server.accept()
        with served:
            client.sendall(b"first")
            assert quick_ack.acknowledge_now() == 3  # the server and both ends
            assert served.recv(10) == b"first"
            assert client.fileno() >= 0
            served.sendall(b"answer")
            assert client.recv(10) == b"answer"
    left.sendall(b"as ever")
    assert right.recv(10) == b"as ever"
assert sorted(os.listdir("/proc/self/fd")) == handles
"""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux is asked")
def test_connections_of_tcp_are_confirmed_and_nothing_else_is_touched() -> None:
    command = [sys.executable, "-c", PROMPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_where_there_is_no_such_option_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_ack, "_HANDLES", "/proc/nowhere")
    assert quick_ack.acknowledge_now() == 0
    monkeypatch.undo()
    monkeypatch.delattr(socket, "TCP_QUICKACK", raising=False)
    monkeypatch.setattr(os, "listdir", pytest.fail)
    assert quick_ack.acknowledge_now() == 0


def test_what_is_sent_to_tasks_confirms_when_it_is_unpickled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    confirmed: list[int] = []
    monkeypatch.setattr(quick_ack, "acknowledge_now", lambda: confirmed.append(1))
    options = parse_read({"path": "/nowhere/store", "subscribe": "s"})
    schema = StructType()
    sent = [
        quick_ack.QuickAckCall(max),
        StreamkeepReader(options, schema, ()),
        StreamkeepStreamReader(options, schema),
    ]
    assert not confirmed
    call, reader, stream_reader = (pickle.loads(pickle.dumps(one)) for one in sent)
    assert len(confirmed) == 3
    assert call(3, 5) == 5
    assert reader.options == stream_reader.options == options


def test_the_units_of_a_job_confirm_theirs() -> None:
    sent: list[Any] = []

    class Parts:
        def mapPartitions(self, function: Any) -> Parts:
            sent.append(function)
            return self

        def collect(self) -> list[str]:
            return ["done"]

    context = SimpleNamespace(parallelize=lambda units, count: Parts())
    spark: Any = SimpleNamespace(_sc=context, sparkContext=context)
    assert run_units(spark, [1], lambda unit: [str(unit)]) == ["done"]
    (function,) = sent
    assert isinstance(function, quick_ack.QuickAckCall)
    assert list(function([pickle.dumps(1)])) == ["1"]
