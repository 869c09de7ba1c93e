"""Spans of OpenTelemetry, if its API is installed: the worker's links to that of the put.

The context of the put travels in the headers of the job, as `traceparent`. The span of the worker
is not its child but linked to it, as OpenTelemetry has it for messages: a retry begins another. A
program that has not imported the API has no span, and pays one look into a dict per job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from streamkeep.jobs.handler_errors import texts_of

if TYPE_CHECKING:
    from streamkeep.jobs.job import Job

_NAME: Final = "streamkeep"
_API: Final = "opentelemetry.trace"


def outgoing(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return the headers of a put with the context of the span in which the caller is."""
    if _API not in sys.modules:
        return headers
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {**carrier, **(headers or {})} if carrier else headers


@contextmanager
def span_of(job: Job) -> Iterator[Any]:
    """Run a block in the span of a job; yield the span; None if no spans are recorded."""
    if _API not in sys.modules:  # to look for a package that is missing takes 0.1 ms
        yield None
        return
    from opentelemetry import propagate, trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # which records none
        yield None
        return
    put = trace.get_current_span(propagate.extract(job.headers)).get_span_context()
    links = [trace.Link(put)] if put.is_valid else []
    attributes: dict[str, Any] = {
        "messaging.system": "streamkeep",
        "messaging.operation.type": "process",
        "messaging.destination.name": job.queue.name,
        "messaging.message.id": job.id,
        "streamkeep.task": job.task,
        "streamkeep.attempt": job.attempt,
    }
    tracer = trace.get_tracer(_NAME)
    name = f"process {job.task or job.queue.name}"
    with tracer.start_as_current_span(
        name, kind=trace.SpanKind.CONSUMER, links=links, attributes=attributes
    ) as span:
        yield span


def note_outcome(span: Any, state: str, error: BaseException | None) -> None:
    if span is None:
        return
    from opentelemetry import trace

    span.set_attribute("streamkeep.outcome", state)
    if error is not None:
        kind, text, lines = texts_of(error)
        # What `record_exception` does, which fails with the text of the exception.
        names = "exception.type", "exception.message", "exception.stacktrace"
        span.add_event("exception", dict(zip(names, (kind, text, lines), strict=True)))
        span.set_status(trace.Status(trace.StatusCode.ERROR, text))
