"""One thread makes the calls for deferred transactions, after interrupts as well."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from crash.losses import in_child
from patience import PATIENCE_S
from streamkeep.engine.txn.image_thread import ImageThread, Task

DELAYS_S = (10e-6, 20e-6, 40e-6, 80e-6, 160e-6)


def idle() -> None:
    pass


def made() -> ImageThread:
    return ImageThread(lambda: -1.0, idle)


def test_a_stopped_thread_starts_again_and_makes_calls_in_order() -> None:
    image = made()
    seen: list[int] = []
    for turn in range(3):
        assert image.start()
        assert image.start()
        for number in range(3):
            assert image.do(lambda task, number=number: seen.append(number)) is None  # type: ignore[misc]
        assert image.stop(60.0), turn
        assert image.stop(0.0), "a second time there is nothing to stop"
    assert seen == [0, 1, 2] * 3


def test_an_error_of_a_call_is_raised_where_it_was_asked_for() -> None:
    image = made()
    image.start()

    def fail(task: Task) -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        image.do(fail)
    assert image.stop(60.0)


def interrupted_starts() -> None:
    def raise_interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, raise_interrupt)
    for number in range(200):
        image = made()
        try:
            signal.setitimer(signal.ITIMER_REAL, DELAYS_S[number % len(DELAYS_S)])
            image.start()
            time.sleep(0.002)  # the interrupt comes here, if it has not come before
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
        image.start()
        callers: set[int] = set()
        for _ in range(4):
            image.do(lambda task, callers=callers: callers.add(threading.get_ident()))  # type: ignore[misc]
        assert len(callers) == 1, "two threads make the calls"
        assert image.stop(60.0)


def test_an_interrupt_while_the_thread_starts_leaves_one_thread() -> None:
    assert in_child(interrupted_starts)


def test_an_interrupt_while_a_caller_asks_whether_to_give_up_does_not_leave_the_call() -> None:
    thread = made()
    assert thread.start()
    asked = threading.Event()
    calls: list[Task] = []

    def check() -> None:
        asked.set()
        raise KeyboardInterrupt

    def call(task: Task) -> None:
        assert asked.wait(PATIENCE_S)
        calls.append(task)

    with pytest.raises(KeyboardInterrupt):
        thread.do(call, check=check)
    assert len(calls) == 1
    assert thread.stop(PATIENCE_S)


def test_a_stop_that_was_interrupted_is_made_again() -> None:
    """It must not say that the thread has ended: LMDB would be closed under it."""
    image = made()
    assert image.start()
    begun, go_on = threading.Event(), threading.Event()

    def call(task: Task) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    def interrupt() -> None:
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    caller = threading.Thread(target=lambda: image.do(call))
    caller.start()
    assert begun.wait(PATIENCE_S)
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        image.stop(PATIENCE_S)
    assert not image.stop(0.0)
    go_on.set()
    assert image.stop(PATIENCE_S)
    caller.join()
