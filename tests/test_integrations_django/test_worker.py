"""The command `streamkeep_worker`."""

from __future__ import annotations

import os
import signal
import threading
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from patience import wait_until
from test_integrations_django import shop_tasks


def test_it_runs_what_is_due(backend: Any) -> None:
    results = [shop_tasks.add.enqueue(1, 2), shop_tasks.add_later.enqueue(3, 4)]
    call_command("streamkeep_worker", "--until-idle")
    for result in results:
        result.refresh()
    assert [one.return_value for one in results] == [3, 7]
    with pytest.raises(CommandError, match="one job after the other"):
        call_command("streamkeep_worker", "--until-idle", "--processes")


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_a_signal_stops_it_after_the_tasks_that_run(backend: Any, mode: str) -> None:
    result = shop_tasks.nap.enqueue(0.05)
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]

    def stop() -> None:
        wait_until(lambda: backend.get_result(result.id).status != "READY")
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        call_command("streamkeep_worker", f"--{mode}", "-c", "2")
    finally:
        stopper.join()
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    result.refresh()
    assert result.status == "SUCCESSFUL"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--backend", "mails"], "TASKS has no backend 'mails'; it has default"),
        (["--queues", "mails"], "has no queue mails; it has default"),
        (["--grace", "soon"], "soon"),
        (["-c", "0"], "concurrency"),
        (["--reload", "--processes"], "does not go with"),
    ],
)
def test_wrong_options_are_refused(backend: Any, args: list[str], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        call_command("streamkeep_worker", *args, stderr=StringIO())


def test_a_backend_of_another_kind_is_refused() -> None:
    module = type(shop_tasks.add).__module__.partition(".base")[0]
    dummy = {"BACKEND": f"{module}.backends.dummy.DummyBackend"}
    with (
        override_settings(TASKS={"default": dummy}),
        pytest.raises(CommandError, match="is a DummyBackend"),
    ):
        call_command("streamkeep_worker")
