"""How programs declare tasks: what `Queue` and `aio.Queue` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given
from streamkeep.jobs import periodic as rules_of
from streamkeep.jobs.core import Core
from streamkeep.jobs.options import OF_A_JOB, PUT_WITH, TaskOptions, check_task_options
from streamkeep.jobs.periodic import Missed, Rule
from streamkeep.jobs.putting import prepare
from streamkeep.jobs.task import Task, name_of

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Declaring:
    """The methods that declare tasks."""

    core: Core
    name: str

    @overload
    def task(self, function: Callable[Parameters, Result], /) -> Task[Parameters, Result]: ...

    @overload
    def task(
        self, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Parameters, Result]], Task[Parameters, Result]]: ...

    def task(  # type: ignore[misc]  # mypy cannot match the parameters of a decorator
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Any:
        """Make a task of a function: `@queue.task(retries=5, backoff="2s..10m")`.

        Args:
            name: how jobs name it; by default the name of the function.
            retries, backoff, result_ttl: instead of those of the queue.
            retry_on: exceptions after which a job is tried again; after others it is a dead letter.
            give_up_on: exceptions, among these, after which it is not.
            max_runtime: how long a call may run. A worker that does not end it loses the job, and
                the attempt has failed.
            concurrency: how many of its jobs may run at a time, in all processes; 0 for no limit.
            key, priority, unique, expires: of all its jobs, unless `options` says otherwise.

        Raises:
            ArgumentError: the queue has another task of that name in this program.
        """
        given = check_task_options(options)

        def make(made_of: Callable[..., Any]) -> Task[Any, Any]:
            if not callable(made_of):
                raise ArgumentError(f"a task is made of a function, not of {as_given(made_of)}")
            task: Task[Any, Any] = Task(self.core.queue, made_of, given)
            known = self.core.tasks.get(task.name.encode())
            if known is not None and not _same_function(known.call, made_of):
                raise ArgumentError(
                    f"the queue {self.name!r} has another task called {task.name!r}; give one of "
                    "them a name: @queue.task(name=...)"
                )
            self.core.tasks[task.name.encode()] = task
            return task

        return make if function is None else make(function)

    def periodic(
        self,
        cron: str,
        *,
        tz: str = "UTC",
        missed: Missed = "skip",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[TaskOptions],
    ) -> Callable[[Callable[Parameters, Result]], Task[Parameters, Result]]:
        """Make a task that runs at the times of a cron expression: `@queue.periodic("0 3 * * *")`.

        Workers store the rule when they start (`register_periodic`). Each time fires once, however
        many workers run. A rule stays until `unschedule`, also if no program has it any more.

        Args:
            cron: minute, hour, day of the month, month, weekday.
            tz: the name of the time zone that these are in.
            missed: what happens after times at which no worker ran. "skip": nothing; "once": one
                job for all of them; "all": one for each.
            args, kwargs: what the function is called with.
            options: those of `task`; `name` names the rule and the task, by default as the
                function. Those of a job may differ from those of a task that is given.

        Raises:
            ArgumentError: the expression, the zone or the rule is wrong, or an option is none that
                a job of a task that is given can have.
            TypeError: the function does not take `args` and `kwargs`.
        """
        if missed not in rules_of.MISSED:
            raise ArgumentError(f"missed must be one of {rules_of.MISSED}, not {missed!r}")
        if isinstance(args, (str, bytes)) or not isinstance(args, Sequence):
            raise ArgumentError(f"args must be a list, not {as_given(args)}")
        if not isinstance(kwargs or {}, Mapping):
            raise ArgumentError(f"kwargs must be a dict, not {as_given(kwargs)}")
        rules_of.next_time(cron, tz, 0)
        given = check_task_options(options)
        name = given.get("name")

        def make(made_of: Callable[Parameters, Result]) -> Task[Parameters, Result]:
            own: dict[str, Any] = {}
            if isinstance(made_of, Task):
                task: Any = made_of
                own = {one: value for one, value in given.items() if one != "name"}
                for one in own.keys() - OF_A_JOB:
                    raise ArgumentError(f"{one} is an option of the task {task.name!r} itself")
            elif (
                found := self.core.tasks.get((name or name_of(made_of)).encode())
            ) and _same_function(found.call, made_of):
                task = found  # it keeps its options
                own = {  # if its module was loaded again, the rule stays as it is stored
                    one: value
                    for one, value in given.items()
                    if one in PUT_WITH or found.policy.with_options({one: value}) != found.policy
                }
            else:
                task = self.task(**options)(made_of)
            payload, fields = task.call_of(args, kwargs or {})
            chosen: Any = {**task.put_options, **own}
            put = prepare(self.core, payload, chosen, fields)
            if put.delay_ms or put.at_ms:
                raise ArgumentError(f"the rule of {task.name!r} has times, and no delay or at")
            rule = Rule(name or task.name, cron, tz, missed, put.priority, put.fields)
            self.core.rules[rule.name] = rule._replace(expires_ms=put.expires_ms)
            return task  # type: ignore[no-any-return]

        return make


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return whether two functions are the same one, perhaps of a module that was loaded again."""
    return _home_of(one) == _home_of(other)


def _home_of(function: Callable[..., Any]) -> tuple[object, ...]:
    """Return where a function is written; what has no such place, as a partial, is only itself."""
    return (function.__module__, getattr(function, "__qualname__", function))
