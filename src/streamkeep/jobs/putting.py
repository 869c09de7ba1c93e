"""How programs put jobs into a queue: payloads and options."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from streamkeep.engine.api.views import Transaction
from streamkeep.format.core.durations import milliseconds
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import codecs, enqueue, layout
from streamkeep.jobs.core import Core
from streamkeep.jobs.errors import QueueError
from streamkeep.jobs.job import Job, current
from streamkeep.jobs.job_transaction import collecting
from streamkeep.jobs.layout import Fields
from streamkeep.jobs.options import Options, check_priority, fields_of, unix_ms
from streamkeep.jobs.state import Step
from streamkeep.jobs.tracing import outgoing


class Prepared(NamedTuple):
    """A put whose options are checked and whose payload is encoded."""

    fields: Fields
    priority: int
    delay_ms: int
    at_ms: int
    expires_ms: int


def put_all(
    core: Core, payloads: list[tuple[Any, Options]], common: Fields, *, always: bool = False
) -> list[Job]:
    """Put payloads, each with its options, and with fields that all get.

    Args:
        always: also if the queue is draining or full: a framework retries a job of the queue.
    """
    work, jobs = plan_put(core, payloads, common, always=always)
    core.set_up()
    if not collect(core, work):
        core.apply(work)
        if core.immediate and core.store.open_transaction() is None:
            core.run_if_immediate()
    return jobs


def collect(core: Core, work: Callable[[Transaction[Any]], None]) -> bool:
    """Add a put to the transaction of the job whose handler calls, if it collects puts."""
    block = collecting.get()
    while block is not None and not block.is_open:  # this task goes on after it
        block = block.outer
    if block is None or block.transaction.environment is not core.store._environment:
        return False
    block.transaction.collect(work)
    return True


def plan_put(
    core: Core, payloads: list[tuple[Any, Options]], common: Fields, *, always: bool = False
) -> tuple[Callable[[Transaction[Any]], None], list[Job]]:
    """Return the function of a transaction that puts jobs, and the jobs."""
    prepared = [prepare(core, payload, options, common) for payload, options in payloads]
    jobs = [Job(core.queue, "") for _ in prepared]
    always = always or is_follow_up(core)

    def work(txn: Transaction[Any]) -> None:
        step = Step(txn, core.names)
        for index, (one, job) in enumerate(zip(prepared, jobs, strict=True)):
            due_ms = one.at_ms or (step.now_ms + one.delay_ms if one.delay_ms else 0)
            fields = dict(one.fields)
            if one.expires_ms:
                from_ms = max(due_ms, step.now_ms)
                fields[layout.EXPIRES] = str(from_ms + one.expires_ms).encode()
            try:
                found = enqueue.put(step, fields, one.priority, due_ms, always=always)
            except QueueError as error:
                error.partly |= index > 0
                raise
            job._id, job._is_new = found
        step.save()

    return work, jobs


def is_follow_up(core: Core) -> bool:
    """Return whether a handler of this queue calls, whose puts are taken in any case."""
    job = current.get()
    if job is None or job.queue.name != core.name:
        return False
    return job.queue.store._environment is core.store._environment


def prepare(core: Core, payload: Any, options: Options, common: Fields) -> Prepared:
    chosen = options.get("codec")
    codec = core.codec if chosen is None else codecs.check_codec(chosen)
    encoded = codecs.encode(codec, payload, "the payload", core.most_payload)
    fields = {**common, layout.PAYLOAD: encoded, **fields_of(options)}
    if codec != codecs.JSON:
        fields[layout.CODEC] = codec.encode()
    if (key := options.get("key")) is not None:
        fields[layout.KEY] = _text(key, "key")
    if (unique := options.get("unique")) is not None:
        fields[layout.UNIQUE_NAME] = _text(unique, "unique")
    headers = outgoing(options.get("headers"))
    if headers is not None:
        texts = dict(headers) if isinstance(headers, Mapping) else {"": None}
        if not all(isinstance(one, str) for pair in texts.items() for one in pair):
            raise ArgumentError(f"headers must be texts, not {headers!r}")
        fields[layout.HEADERS] = json.dumps(texts).encode()
    expires, expires_ms = options.get("expires"), 0
    if isinstance(expires, datetime):
        fields[layout.EXPIRES] = str(unix_ms(expires, "expires")).encode()
    elif expires is not None:
        expires_ms = max(1, milliseconds(expires, "expires"))
    delay, at = options.get("delay"), options.get("at")
    if delay is not None and at is not None:
        raise ArgumentError(f"delay or at, not both: {delay!r}, {at!r}")
    return Prepared(
        fields,
        check_priority(options.get("priority")),
        0 if delay is None else milliseconds(delay, "delay"),
        0 if at is None else unix_ms(at, "at"),
        expires_ms,
    )


def _text(value: str, name: str) -> bytes:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"{name} must be a text that is not empty, not {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} must be a text of whole characters, not {value!r}") from None
