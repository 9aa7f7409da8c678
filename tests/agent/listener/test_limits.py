"""Limits that change while the listener runs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from headrace.agent.listener.server import KafkaListener
from headrace.protocol.request import Request, Response
from headrace.storage.clock import SystemClock
from tests.agent.listener.listener_client import DRAIN_SECONDS, Client, frame, limits


async def _echo(request: Request) -> Response:
    return Response([request.correlation_id.to_bytes(4, "big")])


async def test_how_many_connections_are_taken_may_change_at_any_time() -> None:
    allowed = [1]
    listener = KafkaListener(_echo, limits(), SystemClock(), CollectorRegistry(), lambda: allowed[0])
    port = await listener.start("127.0.0.1", 0)
    first = await Client.connect(port)
    await first.send(frame(1))
    assert (await first.reply())[0] == 1
    refused = await Client.connect(port)
    assert await refused.ended() == b""
    allowed[0] = 2
    second = await Client.connect(port)
    await second.send(frame(2))
    assert (await second.reply())[0] == 2
    allowed[0] = 1
    await first.send(frame(3))
    assert (await first.reply())[0] == 3, "who is there stays"
    for client in (first, second):
        await client.close()
    await listener.drain(DRAIN_SECONDS)
