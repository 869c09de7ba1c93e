"""Tasks: functions whose calls can be put into a queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given, whole
from streamkeep.jobs.job import Job
from streamkeep.jobs.layout import CONCURRENCY, TASK, Fields
from streamkeep.jobs.options import (
    PUT_WITH,
    Errors,
    Options,
    TaskOptions,
    check_options,
    check_priority,
)
from streamkeep.jobs.putting import put_all

if TYPE_CHECKING:
    from streamkeep.jobs.queue import Queue

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_MOST_SHAPES: Final = 100  # of calls, since a function with **kwargs may have any number


def name_of(function: Callable[..., object]) -> str:
    """Return the name of a function; raise ArgumentError if it has none, as functools.partial."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise ArgumentError(
            f"{as_given(function)} has no name for its jobs; next: give one, as task(name=...)"
        )
    return name


class Task(Generic[Parameters, Result]):
    """A function of a queue. Called, it is the function; `delay` puts a call into the queue.

    Attributes:
        name: how jobs name it.
        is_async: whether it is a coroutine function.
        policy: retries, backoff, max_runtime, result_ttl, concurrency (0 for no limit).
    """

    def __init__(
        self, queue: Queue, function: Callable[Parameters, Result], options: TaskOptions
    ) -> None:
        """Take the options of `Queue.task`; raise ArgumentError for a wrong one."""
        self.queue = queue
        self.call = function
        self.name = options.get("name") or name_of(function)
        policy = queue.core.policy.with_options(options)
        concurrency = whole(options.get("concurrency", 0), "concurrency", 0)
        self.policy = policy._replace(concurrency=concurrency)
        self.is_async = inspect.iscoroutinefunction(function)
        self._retry_on = check_errors(options.get("retry_on", Exception), "retry_on")
        self._give_up_on = check_errors(options.get("give_up_on", ()), "give_up_on")
        check_priority(options.get("priority"))
        self.put_options: Options = {}
        for option in PUT_WITH:
            if option in options:
                self.put_options[option] = options[option]
        self._shapes: set[tuple[object, ...]] = set()  # of calls that the function takes
        update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return self.call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<streamkeep.jobs.Task {self.name!r} of {self.queue.name!r}>"

    def delay(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Job:
        """Put a call of the function into the queue; return its job.

        Durable on return, as the store was opened; in a block of `store.transaction()`, with it.

        Raises:
            TypeError: the function does not take these arguments.
            PayloadError: the arguments cannot be encoded.
            QueueFullError, QueueDrainingError: nothing was put.
        """
        payload, common = self.call_of(args, kwargs)
        return put_all(self.queue.core, [(payload, self.put_options)], common)[0]

    async def adelay(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Job:
        """Put a call as `delay` does, without holding up the event loop, as for each sync."""
        return (await self.queue.core.aio.delay(self, *args, **kwargs)).job

    def call_of(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[bytes, bytes]]:
        """Return the payload of a call, and the fields that every call of the task has.

        Raises:
            TypeError: the function does not take these arguments.
        """
        self._check_call(args, kwargs)
        fields: Fields = {TASK: self.name.encode()}
        if self.policy.concurrency:
            fields[CONCURRENCY] = b"%d" % self.policy.concurrency
        return [list(args), dict(kwargs)], fields

    def options(self, **options: Unpack[Options]) -> Task[Parameters, Result]:
        """Return the task with options for its next calls: `send.options(key="ann").delay(...)`.

        The options are those of `Queue.put`.
        """
        task = copy(self)
        task.put_options = {**self.put_options, **check_options(options)}
        return task

    def _check_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError unless the function takes these arguments.

        Their number and their names decide it, so each shape of a call is checked once: to bind the
        arguments would cost a tenth of a put. A function that wraps another one takes what it says
        itself, since it may add arguments.
        """
        shape = (len(args), *kwargs)
        if shape in self._shapes:
            return
        try:
            signature = inspect.signature(self.call, follow_wrapped=False)
        except (TypeError, ValueError):  # a function in C, which may have none
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"the task {self.name!r} does not take these arguments: {error}; next: give it "
                f"those of {self.name}{signature}"
            ) from None
        if len(self._shapes) < _MOST_SHAPES:
            self._shapes.add(shape)

    def may_retry(self, error: BaseException) -> bool:
        """Return whether a job that raised this may run again."""
        # The default is for all that a handler raises, also for SystemExit, which is no Exception.
        retried = issubclass(Exception, self._retry_on) or isinstance(error, self._retry_on)
        return retried and not isinstance(error, self._give_up_on)


def check_errors(errors: Errors, name: str) -> Errors:
    """Return classes of exceptions; raise ArgumentError for anything else."""
    found = errors if isinstance(errors, tuple) else (errors,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in found):
        raise ArgumentError(f"{name} must be classes of exceptions, not {errors!r}")
    return found
