"""The active buffer closes at its size and never splits a request."""

from __future__ import annotations

import uuid

from headrace.agent.produce.files import ClosedFile, FlushReason
from headrace.agent.produce.flusher import ActiveBuffer
from headrace.agent.produce.requests import Arrival, PendingRequest
from headrace.protocol.produce_codec import ProducePartition, ProducePartitionReply, ProduceRequest, ProduceTopic
from headrace.storage.records.header import read_header
from tests.storage.batches import plain_batch

BATCH = plain_batch(1, b"x" * 100)


async def _request(deadline: float = 30.0) -> PendingRequest:
    produce = ProduceRequest(None, -1, 0, [ProduceTopic("t", None, [ProducePartition(0, None)])])
    return PendingRequest(produce, correlation_id=0, version=9, appended_at=0.0, deadline=deadline)


def _arrival(request: PendingRequest, key: int = 1, owner: int = -2) -> Arrival:
    reply = ProducePartitionReply(key)
    return Arrival(uuid.UUID(int=9), key, key, 0, owner, memoryview(BATCH), read_header(BATCH), request, reply)


async def test_a_size_is_reached_by_whole_requests() -> None:
    buffer = ActiveBuffer(flush_bytes=2 * len(BATCH))
    request = await _request()
    buffer.add(request, [_arrival(request)], 5, now=0.0)
    assert not buffer.is_full
    buffer.add(request, [_arrival(request, key) for key in (1, 2, 3)], 5, now=0.0)
    assert buffer.is_full
    file = buffer.close(FlushReason.SIZE, 0.0)
    assert file is not None
    assert file.trace.batch_count == 4
    assert file.trace.size_bytes == 4 * len(BATCH)


async def test_closing_starts_over() -> None:
    buffer = ActiveBuffer(flush_bytes=1)
    assert buffer.close(FlushReason.DRAIN, 0.0) is None
    request = await _request()
    buffer.add(request, [_arrival(request)], 5, now=1.0)
    first = buffer.close(FlushReason.LINGER, 1.1)
    assert first is not None
    assert (first.trace.opened_at, first.trace.closed_at, first.trace.reason) == (1.0, 1.1, FlushReason.LINGER)
    assert not buffer.is_full
    assert buffer.file is None
    assert buffer.add(request, [_arrival(request)], 6, now=2.0)


async def test_removing_streams_leaves_the_others_in_order() -> None:
    buffer = ActiveBuffer(flush_bytes=1)
    request = await _request()
    arrivals = [_arrival(request, key, owner) for owner in (-2, 77) for key in (1, 2)]
    buffer.add(request, arrivals, 5, now=0.0)
    file = buffer.close(FlushReason.SIZE, 0.0)
    assert file is not None
    assert file.drop({(77, 3), (78, 1)}) == []
    assert file.drop({(77, 1)}) == [arrivals[2]]
    assert isinstance(file.stage, ClosedFile)
    assert file.stage.runs == {1: [arrivals[0]], 2: [arrivals[1], arrivals[3]]}
    assert len(file.drop(file.streams)) == 3
    assert not file.stage.entries


async def test_only_late_requests_expire() -> None:
    buffer = ActiveBuffer(flush_bytes=1)
    soon, late = await _request(deadline=1.0), await _request(deadline=2.0)
    for request in (soon, late):
        buffer.add(request, [_arrival(request)], 5, now=0.0)
    file = buffer.close(FlushReason.SIZE, 0.0)
    assert file is not None
    assert file.waiting.expire(0.9) == 0
    assert file.waiting.expire(1.0) == 1
    assert (soon.is_answered, late.is_answered) == (True, False)
    assert file.waiting.expire(1.5) == 0
    assert not file.waiting.all_answered
    assert file.waiting.expire(2.0) == 1
    assert file.waiting.all_answered
