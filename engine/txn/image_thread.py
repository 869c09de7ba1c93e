"""The thread that begins and ends the deferred transactions of one environment.

LMDB's write lock belongs to the thread that begins a transaction: if another thread ends it, the
lock stays taken. So this thread makes both calls for the others, which wait for it. In between it
looks whether a transaction has become idle. Compiled by mypyc.

Two such threads must never share the tasks: one would end what the other has begun. An interrupt
(Ctrl-C) may leave a thread that runs and is not known. So each thread has a queue of its own, and
tasks go only to that of the known one.

The module `threading` is not used: `Thread.start` takes a lock of all threads in interpreted code,
and from Python 3.14 on an interrupt there may leave it taken, so that no thread begins any more.
"""

from __future__ import annotations

import _thread
import queue
from collections.abc import Callable
from typing import Final

_CHECK_S: Final = 0.25  # how often a caller that may give up asks whether it should


class Task:
    """A call that the thread makes for another one.

    Attributes:
        began: LMDB has begun a transaction for it.
        abandoned: its caller does not wait any more, unless it `began`.
    """

    def __init__(self, call: Callable[[Task], None]) -> None:
        self.call = call
        self.error: BaseException | None = None
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.ended = False
        self.began = False
        self.abandoned = False

    def is_wanted(self) -> bool:
        """Note that LMDB has begun a transaction; return whether the caller still waits."""
        self.began = True  # first: a caller that gives up looks at it afterwards
        return not self.abandoned


class ImageThread:
    """The thread, which is started by the first task."""

    def __init__(self, pause: Callable[[], float], look: Callable[[], None]) -> None:
        """Say what the thread does between tasks.

        Args:
            pause: returns after how many seconds without a task to look; -1 for never.
            look: is called then.
        """
        self._pause = pause
        self._look = look
        self._ended: queue.SimpleQueue[None] | None = None  # of the thread that runs
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()

    def start(self) -> bool:
        """Start the thread if it does not run; return whether it runs."""
        if self._ended is None:
            tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
            ended: queue.SimpleQueue[None] = queue.SimpleQueue()
            try:
                _thread.start_new_thread(self._run, (tasks, ended))
            except RuntimeError:  # the system grants no thread, or the interpreter is ending
                return False
            except BaseException:
                tasks.put(None)  # it may run even so
                raise
            self._tasks = tasks
            self._ended = ended
        return True

    def stop(self, patience_s: float) -> bool:
        """End the thread; return False if it waits for LMDB's lock, where nothing wakes it."""
        ended = self._ended
        if ended is not None:
            self._tasks.put(None)
            try:
                ended.get(True, patience_s)
            except queue.Empty:
                return False
            self._ended = None  # not before: after an interrupt, the caller stops it again
        return True

    def do(
        self,
        call: Callable[[Task], None],
        *,
        quiet: bool = False,
        check: Callable[[], None] | None = None,
    ) -> BaseException | None:
        """Have the thread make a call, and return when it has.

        Args:
            quiet: return an interrupt that came in the meantime, instead of raising it.
            check: raises if the caller should give up. The call may still be made later, but only
                up to `Task.is_wanted`.
        """
        task = Task(call)
        self._tasks.put(task)
        interrupt: BaseException | None = None
        while not task.ended:  # an interrupt must not leave while the thread has the transaction
            try:
                if check is None or task.abandoned:
                    task.done.get()
                else:
                    task.done.get(True, _CHECK_S)
            except queue.Empty:
                assert check is not None
                try:
                    check()
                except Exception:
                    task.abandoned = True
                    if not task.began:
                        raise
                except BaseException as error:
                    interrupt = error
            except BaseException as error:
                interrupt = error
        if task.error is not None:
            raise task.error
        if interrupt is not None and not quiet:
            raise interrupt
        return interrupt

    def _run(self, tasks: queue.SimpleQueue[Task | None], ended: queue.SimpleQueue[None]) -> None:
        """Make the calls until a task is None."""
        try:
            self._work(tasks)
        finally:
            ended.put(None)

    def _work(self, tasks: queue.SimpleQueue[Task | None]) -> None:
        """Make the calls; look when none has come for a while."""
        while True:
            pause = self._pause()
            try:  # an idle store costs nothing
                task = tasks.get() if pause < 0 else tasks.get(True, pause)
            except queue.Empty:
                if tasks is self._tasks:
                    self._look()
                continue
            if task is None:
                return
            try:
                task.call(task)
            except BaseException as error:
                task.error = error
            task.ended = True
            task.done.put(None)
