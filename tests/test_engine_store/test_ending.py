"""Programs that end without closing their store, and interrupts at any step of that."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import streamkeep
from inside import checkpoint_now, environment_of, tickets_in, wait_table_of
from patience import PATIENCE_S, run_threads, wait_until
from streamkeep import recovery
from streamkeep.engine.api import store
from streamkeep.engine.notify import notifier
from streamkeep.engine.store import ending, opening, registry
from streamkeep.engine.system import failpoints, locks
from streamkeep.engine.system.safe_files import Folder
from tiers import daily_or_all

ADDS = """
import multiprocessing, sys, threading
import streamkeep

def add(path):
    global store
    store = streamkeep.open(path, sync="none")
    for number in range(20):
        store.xadd("s", {"n": number})
"""
PROGRAMS = {
    "its end": "add(sys.argv[1])",
    "an error": "add(sys.argv[1]); raise SystemExit(3)",
    "an open snapshot": "add(sys.argv[1]); snapshot = store.snapshot().__enter__()",
    "a daemon thread that waits": """
add(sys.argv[1])
ready = threading.Event()
def wait():
    ready.set()
    store.xread({"s": "$"}, block=0)
threading.Thread(target=wait, daemon=True).start()
ready.wait()
""",
    "a child of multiprocessing": """
child = multiprocessing.get_context("fork").Process(target=add, args=(sys.argv[1],))
child.start()
child.join()
assert child.exitcode == 0
""",
    "a forked child": """
import os, warnings
add(sys.argv[1])
warnings.simplefilter("ignore", DeprecationWarning)  # a process with threads forks
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
store.xadd("s", {"n": "after the child"})
""",
}
_daily = ("its end",)


def ended(code: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *options, "-c", code, str(path)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(name, id=name, marks=() if name in _daily else pytest.mark.slow)
        for name in PROGRAMS
    ],
)
def test_a_program_that_does_not_close_its_store_leaves_it_closed(path: Path, program: str) -> None:
    code = ADDS + PROGRAMS[program]
    done = ended(code, path)
    assert (done.returncode, done.stderr) == (3 if "SystemExit" in code else 0, "")
    with streamkeep.open(path, readonly=True) as store:  # it would refuse what lacks commits
        count = store.xlen("s")
    with streamkeep.open(path) as store:
        assert store.durability().last_recovery is None
        assert store.xlen("s") == count >= 20
    assert list(recovery.check(path)) == []


@pytest.mark.slow
def test_a_program_that_has_removed_its_store_ends_without_a_word(path: Path) -> None:
    code = ADDS + "import shutil\nadd(sys.argv[1])\nshutil.rmtree(sys.argv[1])"
    done = ended(code, path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forgotten_store_gives_a_warning_and_is_closed_at_the_end(path: Path) -> None:
    code = (
        "import sys, streamkeep\n"
        "streamkeep.open(sys.argv[1]).xadd('s', {'n': '1'})\n"
        "with streamkeep.open(sys.argv[1]) as store:\n"
        "    store.xadd('s', {'n': '2'})\n"
    )
    done = ended(code, path, "-W", "default")
    assert "ResourceWarning: unclosed <streamkeep.Store" in done.stderr
    with streamkeep.open(path) as store:
        assert store.durability().last_recovery is None
        assert store.xlen("s") == 2


# --- an interrupt at any step of opening and closing leaves the store to the other threads --------

# Functions whose every step is tried.
_STEPS: Final = {
    (store.__file__, "__init__"),
    (opening.__file__, "open_environment"),
    (ending.__file__, "release"),
    (ending.__file__, "_last_steps"),
    (ending.__file__, "_take"),
}
_FILES: Final = {registry.__file__, threading.__file__}


class Interrupt:
    """Raises KeyboardInterrupt in this thread at a step, counted from the first.

    Python looks for signals where a function begins and after each call, and so does this. One
    between the return of `Store.__init__` and the caller's own statement is not tried: a store that
    nobody can name stays open until the process ends. Nor is one after `__enter__`, where only
    Python 3.14 looks, also in `threading`; see `locks`.
    """

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if (
            event != "c_call"
            and (event, code.co_name) != ("return", "__init__")
            and (event, getattr(arg, "__name__", "")) != ("c_return", "__enter__")
            and (code.co_filename in _FILES or (code.co_filename, code.co_name) in _STEPS)
        ):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.mark.usefixtures("plain_locks")
def test_no_interrupt_leaves_a_reentrant_lock_taken() -> None:
    lock: Any = locks.make_reentrant_lock("registry")
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0003)
    try:
        for _ in range(300):
            with suppress(KeyboardInterrupt):
                armed = True
                while True:
                    with lock:
                        pass
            with ThreadPoolExecutor(1) as other:
                assert other.submit(lock.acquire, timeout=1).result()
                other.submit(lock.release).result()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def is_open(path: Path) -> bool:
    """Return whether this process has a store open; other tests may have left theirs."""
    return registry.identity_of(path) in registry.registry.environments


def opened_and_closed(path: Path, interrupt: Interrupt) -> bool:
    """Open and close a store, closing it again after an interrupt; say whether there was one."""
    one: store.Store[bytes] | None = None
    sys.setprofile(interrupt)
    try:
        one = streamkeep.open(path, sync="none")
        one.close()
    except KeyboardInterrupt:
        if one is not None:
            one.close()
    finally:
        sys.setprofile(None)
    return interrupt.left <= 0  # what it ended may have dealt with it


@pytest.mark.usefixtures("plain_locks")
def test_an_interrupt_at_any_step_leaves_the_store_to_others(path: Path) -> None:
    lengths: list[int] = []

    def use() -> None:
        with streamkeep.open(path, sync="none") as one:
            one.xadd("s", {"f": "v"})
            lengths.append(one.xlen("s"))

    use()
    step = uses = 1
    while opened_and_closed(path, Interrupt(step)):
        other = threading.Thread(target=use, daemon=True)
        other.start()
        other.join(PATIENCE_S)
        uses += 1
        assert lengths == list(range(1, uses + 1)), step
        assert not is_open(path), f"step {step} left the store open"
        step += daily_or_all(2, 1)
    assert step > 20


@pytest.mark.usefixtures("plain_locks")
def test_an_interrupt_while_an_open_store_is_opened_again_counts_no_user(path: Path) -> None:
    step = 0
    interrupted = True
    while interrupted:
        step += 1
        with streamkeep.open(path, sync="none"):
            interrupted = opened_and_closed(path, Interrupt(step))
        assert not is_open(path), f"step {step} left the store open"
    assert step > 10


@pytest.mark.parametrize("archives", [False, True])
def test_two_threads_that_close_a_store_leave_the_other_ones_open(
    path: Path, archives: bool
) -> None:
    with streamkeep.open(path, sync="none") as other:
        for number in range(20):
            one = streamkeep.open(path, sync="none", archive_every=60 if archives else None)
            ready = threading.Barrier(2)

            def close(one: store.Store[bytes] = one, ready: threading.Barrier = ready) -> None:
                ready.wait(PATIENCE_S)
                one.close()

            threads = [threading.Thread(target=close) for _ in range(2)]
            run_threads(threads)
            other.xadd("s", {"f": "v"})
            assert other.xlen("s") == number + 1
    assert not is_open(path)


# --- what a signal handler calls in the middle of a call of its thread ----------------------------


def handled(path: Path, point: str, call: Callable[[store.Store[bytes]], object]) -> object:
    """Return what `call` returns or raises where a signal handler could run it at a failpoint."""
    outcomes: list[object] = []

    def handle() -> None:
        try:
            outcomes.append(call(one))
        except streamkeep.StreamkeepError as error:
            outcomes.append(error)

    def use() -> None:
        failpoints.arm(point, handle)
        one.xadd("s", {"of": "the call"})
        one.close()

    one = streamkeep.open(path)
    one.xadd("s", {"of": "the call"})
    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it waits for itself"
    assert not is_open(path)
    with streamkeep.open(path) as again:
        assert [one.fields for one in again.xrange("s")] == [{b"of": b"the call"}] * 2
    assert list(recovery.check(path)) == []
    return outcomes[0]


IN_A_COMMIT = ("commit:journaled", "commit:made", "journal:sync", "journal:synced")
IN_THE_END = ("flush:ending", "checkpoint:pinned", "checkpoint:synced")


@pytest.mark.parametrize("point", IN_A_COMMIT)
def test_a_signal_handler_in_a_commit_neither_writes_nor_closes(tmp_path: Path, point: str) -> None:
    def transact(one: store.Store[bytes]) -> None:
        with one.transaction() as txn:
            txn.xadd("s", {"of": "the handler"})

    for number, call in enumerate(
        (store.Store.close, lambda one: one.xadd("s", {"of": "the handler"}), transact)
    ):
        outcome = handled(tmp_path / str(number), point, call)
        assert isinstance(outcome, streamkeep.StoreError), outcome
        assert "in a signal handler, set a flag or raise" in str(outcome)


@pytest.mark.parametrize("point", IN_THE_END)
def test_a_signal_handler_in_close_closes_nothing_and_opens_nothing(
    tmp_path: Path, point: str
) -> None:
    assert handled(tmp_path / "closed", point, store.Store.close) is None
    outcome = handled(tmp_path / "opened", point, lambda one: streamkeep.open(one.path))
    assert isinstance(outcome, streamkeep.StoreError), outcome
    assert "this thread is closing the store" in str(outcome)


@pytest.mark.parametrize("point", ["checkpoint:pinned", "checkpoint:synced"])
def test_a_signal_handler_in_a_checkpoint_does_not_close(tmp_path: Path, point: str) -> None:
    with streamkeep.open(tmp_path / "store") as one:
        one.xadd("s", {"f": "v"})
        refused: list[object] = []

        def handle() -> None:
            with pytest.raises(streamkeep.StoreError, match="making a checkpoint") as caught:
                one.close()
            refused.append(caught)

        failpoints.arm(point, handle)
        checkpoint_now(one)
        assert refused
        one.xadd("s", {"f": "v"})
        assert one.xlen("s") == 2


def test_a_signal_handler_where_a_wait_begins_does_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = notifier.Bell.__init__
    refused: list[str] = []

    def begin(bell: notifier.Bell, folder: Folder) -> None:
        monkeypatch.undo()
        with pytest.raises(streamkeep.StoreError) as caught:
            one.close()
        refused.append(str(caught.value))
        made(bell, folder)

    with streamkeep.open(tmp_path / "store") as one:
        monkeypatch.setattr(notifier.Bell, "__init__", begin)
        assert one.xread({"s": "$"}, block=1) == []
        assert "this thread is beginning or ending a wait" in refused[0]
        assert one.xread({"s": "$"}, block=1) == []


def test_a_signal_handler_where_a_reader_is_woken_does_not_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def open_pipe(folder: Folder, name: str) -> int:
        monkeypatch.undo()
        with pytest.raises(streamkeep.StoreError) as caught:
            one.close()
        refused.append(str(caught.value))
        return folder.open_pipe(name)

    with streamkeep.open(tmp_path / "store") as one:
        reader = threading.Thread(target=one.xread, args=({"s": "$"},), kwargs={"block": 0})
        reader.start()
        wait_until(lambda: tickets_in(wait_table_of(one)) == 1)
        monkeypatch.setattr(Folder, "open_pipe", open_pipe)
        one.xadd("s", {"f": "v"})
        reader.join(PATIENCE_S)
        assert "this thread is waking a reader" in refused[0]
        assert one.xlen("s") == 1


@pytest.mark.usefixtures("plain_locks")
def test_a_signal_handler_does_not_wait_behind_the_call_that_it_interrupts(tmp_path: Path) -> None:
    leads, go_on = threading.Event(), threading.Event()
    refused: list[str] = []

    def stay() -> None:
        leads.set()
        assert go_on.wait(PATIENCE_S)

    def interrupt() -> None:
        wait_until(lambda: len(environment_of(one).group_commit._queue) == 1)
        signal.pthread_kill(main, signal.SIGUSR1)
        wait_until(lambda: refused != [])
        go_on.set()

    def handle(number: int, frame: FrameType | None) -> None:
        with pytest.raises(streamkeep.StoreError) as caught:
            one.xadd("s", {"of": "the handler"})
        refused.append(str(caught.value))

    main = threading.get_ident()
    former = signal.signal(signal.SIGUSR1, handle)
    with streamkeep.open(tmp_path / "store") as one:
        one.xadd("s", {"f": "v"})
        failpoints.arm("commit:journaled", stay)
        threads = [
            threading.Thread(target=one.xadd, args=("s", {"f": "v"}), daemon=True),
            threading.Thread(target=interrupt, daemon=True),
        ]
        threads[0].start()
        assert leads.wait(PATIENCE_S)
        threads[1].start()
        one.xadd("s", {"f": "v"})
        for thread in threads:
            thread.join(PATIENCE_S)
        assert one.xlen("s") == 3
    signal.signal(signal.SIGUSR1, former)
    assert refused[0].startswith("this thread is in a call that writes to the store")
