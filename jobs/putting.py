"""How programs put jobs into a queue: payloads, options, room."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import admission, codecs
from streamkeep.jobs.admission import Put
from streamkeep.jobs.base import QueueBase
from streamkeep.jobs.core import Core
from streamkeep.jobs.errors import QueueError, QueueFullError
from streamkeep.jobs.job import Job, running_job
from streamkeep.jobs.job_transaction import collecting
from streamkeep.jobs.layout import (
    BACKOFF,
    CODEC,
    EXPIRES,
    HEADERS,
    KEY,
    MAX_RUNTIME,
    PAYLOAD,
    PRIORITIES,
    RESULT_TTL,
    RETRIES,
    UNIQUE_NAME,
    Fields,
)
from streamkeep.jobs.options import Options, check_options
from streamkeep.jobs.state import Step, load_settings
from streamkeep.jobs.times import at_least, backoff_of, milliseconds, unix_ms
from streamkeep.jobs.tracing import outgoing

MOST_PAYLOAD: Final = 16 << 20


class Prepared(NamedTuple):
    """A put whose options are checked and whose payload is encoded."""

    fields: Fields
    priority: int
    delay_ms: int
    at_ms: int
    expires_ms: int


class PutMethods(QueueBase):
    """Puts; a base of `Queue`."""

    # --- put ------------------------------------------------------------------------------------

    def put(self, payload: Any, **options: Unpack[Options]) -> Job:
        """Put a payload, for `get`; return its job.

        Args:
            delay: how long it waits before it may be taken: seconds, or a text such as "5m".
            at: when it may be taken, an aware datetime. One that is past is now.
            key: jobs of one key are taken one at a time, in order; others are not held back.
            unique: a name that one job at a time may have, from its put to its end. If it is taken,
                nothing is put, and the job that has it is returned with `is_new` False.
            priority: "high", "normal" or "low". Lower ones are served now and then in any case.
            retries, backoff, max_runtime, result_ttl: instead of those of the queue.
            expires: a job that was not taken by then becomes a dead letter.
            headers: texts that travel with the job.
            codec: instead of that of the queue.

        Raises:
            PayloadError: the payload cannot be encoded.
            QueueFullError, QueueDrainingError: nothing was put.
        """
        return put_all(self.core, [(payload, check_options(options))], {})[0]

    def put_many(self, payloads: Iterable[Any], **options: Unpack[Options]) -> list[Job]:
        """Put several payloads in one transaction; all get the same options, which `put` has."""
        chosen = check_options(options)
        return put_all(self.core, [(payload, chosen) for payload in payloads], {})


def put_all(core: Core, payloads: list[tuple[Any, Options]], common: Fields) -> list[Job]:
    """Put payloads, each with its options, and with fields that all get."""
    work, jobs = plan_put(core, payloads, common)
    core.set_up()
    if not collect(core, work):
        put_when_room(core, work)
        if core.immediate and not core.runs_now() and core.store.open_transaction() is None:
            core.run_until_idle()
    return jobs


def collect(core: Core, work: Callable[[Transaction[Any]], None]) -> bool:
    """Add a put to the transaction of the job whose handler calls, if it collects puts."""
    collector = collecting.get()
    if collector is None or collector.environment is not core.store._environment:
        return False
    collector.collect(work)
    return True


def plan_put(
    core: Core, payloads: list[tuple[Any, Options]], common: Fields
) -> tuple[Callable[[Transaction[Any]], None], list[Job]]:
    """Return the function of a transaction that puts jobs, and the jobs."""
    prepared = [prepare(core, payload, options, common) for payload, options in payloads]
    puts = [Put("", True) for _ in prepared]
    always = runs_own_job(core)

    def work(txn: Transaction[Any]) -> None:
        step = Step(txn, core.names)
        for index, (one, put) in enumerate(zip(prepared, puts, strict=True)):
            due_ms = one.at_ms or (step.now_ms + one.delay_ms if one.delay_ms else 0)
            fields = dict(one.fields)
            if one.expires_ms:
                from_ms = max(due_ms, step.now_ms)
                fields[EXPIRES] = str(from_ms + one.expires_ms).encode()
            try:
                done = admission.put(step, fields, one.priority, due_ms, always=always)
            except QueueError as error:
                error.partly |= index > 0
                raise
            put.job_id, put.is_new = done.job_id, done.is_new
        step.save()

    return work, [Job(core.queue, "", put=put) for put in puts]


def prepare(core: Core, payload: Any, options: Options, common: Fields) -> Prepared:
    """Check the options of a put, and encode its payload, before any transaction."""
    chosen = options.get("codec")
    codec = core.codec if chosen is None else codecs.check_codec(chosen)
    fields = {**common, PAYLOAD: codecs.encode(codec, payload, "the payload", MOST_PAYLOAD)}
    if codec != codecs.JSON:
        fields[CODEC] = codec.encode()
    if (key := options.get("key")) is not None:
        fields[KEY] = _text(key, "key")
    if (unique := options.get("unique")) is not None:
        fields[UNIQUE_NAME] = _text(unique, "unique")
    if (retries := options.get("retries")) is not None:
        fields[RETRIES] = str(at_least(retries, 0, "retries")).encode()
    if (backoff := options.get("backoff")) is not None:
        fields[BACKOFF] = str(backoff_of(backoff)).encode()
    if (max_runtime := options.get("max_runtime")) is not None:
        fields[MAX_RUNTIME] = str(milliseconds(max_runtime, "max_runtime")).encode()
    if (result_ttl := options.get("result_ttl")) is not None:
        fields[RESULT_TTL] = str(milliseconds(result_ttl, "result_ttl")).encode()
    headers = outgoing(options.get("headers"))
    if headers is not None:
        fields[HEADERS] = json.dumps(check_headers(headers)).encode()
    expires, expires_ms = options.get("expires"), 0
    if isinstance(expires, datetime):
        fields[EXPIRES] = str(unix_ms(expires, "expires")).encode()
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


def put_when_room(core: Core, work: Callable[[Transaction[Any]], None]) -> None:
    """Put jobs; if the queue is full and says so, wait until there is room."""
    while True:
        try:
            return core.apply(work)
        except QueueFullError:
            store = core.store
            settings = core.read(lambda one: load_settings(one, core.names))
            if settings.when_full != "block" or store.open_transaction() is not None:
                raise

        store.read_when(partial(has_room, core), [(core.names.room_bell, None)])


def has_room(core: Core, snapshot: Snapshot[Any]) -> list[bool]:
    """Return [True] if the queue takes another job, else []."""
    return [] if admission.full(Step(snapshot.as_bytes(), core.names)) else [True]


def runs_own_job(core: Core) -> bool:
    """Return whether a handler of this queue calls: its follow-ups are taken in any case."""
    job = running_job()
    return job is not None and job.queue.name == core.name


def check_priority(priority: str | None) -> int:
    """Return the number of a priority; raise ArgumentError if there is none of that name."""
    if priority is None:
        return admission.NORMAL_NUMBER
    if priority not in PRIORITIES:
        raise ArgumentError(f"priority must be one of {PRIORITIES}, not {priority!r}")
    return PRIORITIES.index(priority)


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers; raise ArgumentError unless they are texts."""
    found = dict(headers) if isinstance(headers, Mapping) else {"": None}
    if not all(isinstance(one, str) for pair in found.items() for one in pair):
        raise ArgumentError(f"headers must be texts, not {headers!r}")
    return found


def _text(value: str, name: str) -> bytes:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"{name} must be a text that is not empty, not {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{name} must be a text of whole characters, not {value!r}") from None
