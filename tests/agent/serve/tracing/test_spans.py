"""Spans of a real agent, as a real client causes them."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from headrace.agent.serve.tracing.spans import TEXT_MAX
from tests.agent.serve.tracing.traced_agent import traced_agent

SECRET = b"what-only-the-customer-may-read"
STEPS_OF_A_REQUEST = ["receive", "validate", "wait for flush", "put", "commit", "acknowledge"]


def _context(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def test_a_produce_request_has_its_steps_and_the_flush_links_to_it(metastore_url: str) -> None:
    async with traced_agent(metastore_url) as agent:
        assert await agent.produce([(b"k", b"v")] * 3, {"client.id": "writer"}) == [None] * 3
        spans = agent.spans
        requests, flushes = agent.named("produce"), agent.named("flush")
        for request in requests:
            assert request.kind is SpanKind.SERVER
            assert request.status.status_code is StatusCode.UNSET
            assert request.parent is None
            assert [step.name for step in agent.children(request)] == STEPS_OF_A_REQUEST
            assert request.attributes is not None
            assert request.attributes["messaging.client.id"] == "writer"
            assert request.attributes["headrace.acks"] == -1
        assert sorted((link.context.trace_id, link.context.span_id) for flush in flushes for link in flush.links) == (
            sorted(map(_context, requests))
        )
        for flush in flushes:
            assert agent.steps(flush) == ["buffer", "put", "commit"]
            assert flush.attributes is not None
            assert flush.attributes["headrace.committed"] is True
            assert len(str(flush.attributes["headrace.file_id"])) == 36
        for span in spans:
            assert span.start_time is not None
            assert span.end_time is not None
            assert span.start_time <= span.end_time


async def test_a_fetch_waits_locates_reads_and_replies(metastore_url: str) -> None:
    async with traced_agent(metastore_url, cache_bytes=0) as agent:
        await agent.produce([(b"k", b"v")])
        assert await agent.consume(1) == [b"v"]
        fetches = agent.named("fetch")
        read = [fetch for fetch in fetches if any("GET" in agent.steps(step) for step in agent.children(fetch))]
        assert len(read) == 1, [(fetch.name, agent.steps(fetch)) for fetch in fetches]
        steps = agent.steps(read[0])
        assert (steps[0], steps[-2:]) == ("locate", ["read", "reply"])
        assert read[0].attributes is not None
        assert read[0].attributes["messaging.client.id"] == "reader"
        assert int(str(read[0].attributes["headrace.response.bytes"])) > 60
        [bytes_read] = [step.attributes for step in agent.children(read[0]) if step.name == "read"]
        assert bytes_read is not None
        assert int(str(bytes_read["headrace.bytes"])) > 60
        assert all(get.parent for get in agent.named("GET")), "background work has no spans"


async def test_a_fetch_at_the_end_of_the_log_has_its_wait(metastore_url: str) -> None:
    async with traced_agent(metastore_url) as agent:
        reading = asyncio.create_task(agent.consume(1))
        while not (waits := agent.named("wait")):  # noqa: ASYNC110 - the exporter has no event
            await asyncio.sleep(0)
        await agent.produce([(b"k", b"v")])
        assert await reading == [b"v"]
        fetches = {_context(fetch)[1] for fetch in agent.named("fetch")}
        assert all(wait.parent and wait.parent.span_id in fetches for wait in waits)


async def test_no_span_has_anything_of_a_record_and_all_attributes_are_bounded(metastore_url: str) -> None:
    async with traced_agent(metastore_url, cache_bytes=0) as agent:
        await agent.produce([(SECRET, SECRET * 20)] * 50, {"client.id": "c" * 5_000})
        await agent.consume(50)
        assert len(agent.spans) > 10
        for span in agent.spans:
            shown = span.to_json()
            assert SECRET.decode() not in shown
            assert "header-name-of-a-record" not in shown
            assert not span.events
            assert len(span.attributes or {}) <= 16
            for value in (span.attributes or {}).values():
                texts = value if isinstance(value, tuple) else (value,)
                assert all(len(str(text)) <= TEXT_MAX for text in texts), (span.name, value)


async def test_a_refused_request_has_its_error(metastore_url: str) -> None:
    async with traced_agent(metastore_url, configs={"max.message.bytes": "200"}) as agent:
        assert await agent.produce([(b"k", SECRET * 20)]) == ["MSG_SIZE_TOO_LARGE"]
        [request] = agent.named("produce")
        assert agent.steps(request) == ["receive", "validate"]
        assert request.status.status_code is StatusCode.ERROR
        assert request.attributes is not None
        assert request.attributes["headrace.errors"] == ("message_too_large",)
        assert not agent.named("flush")


@pytest.mark.parametrize("count", [1, 40])
async def test_a_sampler_may_leave_all_of_them_out(metastore_url: str, count: int) -> None:
    async with traced_agent(metastore_url, ALWAYS_OFF) as agent:
        await agent.produce([(b"k", b"v")] * count)
        assert await agent.consume(count) == [b"v"] * count
        assert agent.spans == []
