"""Spans: the worker's links to that of the put, where OpenTelemetry is installed."""

from __future__ import annotations

import sys

import pytest

from patience import PATIENCE_S
from streamkeep.jobs import Queue, Worker
from streamkeep.jobs.tracing import outgoing
from test_jobs.test_worker import working

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def test_a_program_without_spans_puts_no_headers(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    assert outgoing(None) is None
    assert outgoing({"a": "b"}) == {"a": "b"}


def test_the_span_of_the_worker_links_to_that_of_the_put(queue: Queue) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import propagate, trace
    from opentelemetry.context import attach, detach
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    @queue.task(retries=0)
    def fails(number: int) -> None:
        raise ValueError(f"no paper {number}")

    token = attach(propagate.extract({"traceparent": PARENT}))
    try:
        job = fails.delay(1)
    finally:
        detach(token)
    with working(Worker(queue)), pytest.raises(Exception, match="no paper 1"):
        job.result(timeout=PATIENCE_S)
    (span,) = exporter.get_finished_spans()
    assert span.name == "process fails"
    assert f"{span.links[0].context.trace_id:032x}" == TRACE
    attributes = dict(span.attributes or {})
    assert attributes["streamkeep.outcome"] == "failed"
    assert attributes["messaging.message.id"] == job.id
    assert span.status.status_code is trace.StatusCode.ERROR
