"""Links over real sockets and the real listener: many waiting requests, and connections that are no links."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.peers.channel import ENVELOPE_KEY, OPEN_KEY
from headrace.agent.peers.connection import PeerTerms
from headrace.agent.peers.forwarding.links import LOST, ForwardLink, ForwardMetrics
from headrace.agent.peers.forwarding.service import ForwardServer
from headrace.agent.peers.forwarding.wire import Envelope, EnvelopeKind, ForwardOutcome, encode_envelope
from headrace.metastore.api.agents import Listener
from headrace.protocol.request import ClientConnection, Request, Response
from headrace.storage.clock import SystemClock
from tests.agent.listener.listener_client import Listening, listening, until

SECRET = b"secret"
NOW_MS = 1_700_000_000_000
JOIN, HEARTBEAT = 11, 12
GROUPS = 200


class Owner:
    """An agent that lets JoinGroup wait until the test says so, and answers Heartbeat at once."""

    def __init__(self) -> None:
        self.rebalanced = asyncio.Event()
        self.waiting = 0
        self.beats: list[str] = []
        self.metrics = ForwardMetrics(CollectorRegistry())
        server = ForwardServer(
            PeerTerms(SECRET, lambda: 2, lambda: NOW_MS), self._handle, random.Random(1), self.metrics, lambda _: True
        )
        server.served = frozenset((JOIN, HEARTBEAT))
        self.dispatcher = Dispatcher()
        self.dispatcher.register_unadvertised(OPEN_KEY, server.open)
        self.dispatcher.register_unadvertised(ENVELOPE_KEY, server.serve)

    async def _handle(self, request: Request) -> Response:
        if request.api_key == JOIN:
            self.waiting += 1
            await self.rebalanced.wait()
        else:
            self.beats.append(request.connection.peer)
        return Response([bytes(request.body)])


@pytest.fixture
async def owner() -> AsyncIterator[tuple[Owner, Listening]]:
    made = Owner()
    async with listening(made.dispatcher.handle) as running:
        yield made, running
        made.rebalanced.set()


def _link(port: int, secret: bytes = SECRET) -> ForwardLink:
    return ForwardLink(
        2,
        Listener("INTERNAL", "127.0.0.1", port, 0),
        PeerTerms(secret, lambda: 1, lambda: NOW_MS),
        SystemClock(),
        random.Random(2),
        ForwardMetrics(CollectorRegistry()),
    )


def _request(number: int, api_key: int, size: int = 10) -> Request:
    client = ClientConnection(number, f"10.0.0.1:{number}")
    return Request(client, api_key, 4, number, None, memoryview(number.to_bytes(4, "big") * size), 0.0)


async def test_200_groups_on_one_link_beat_while_one_rebalance_waits(owner: tuple[Owner, Listening]) -> None:
    made, running = owner
    link = _link(running.port)
    joining = [link.forward(_request(number, JOIN)) for number in range(GROUPS)]
    await until(lambda: made.waiting == GROUPS)
    for _ in range(5):
        beats = [link.forward(_request(number, HEARTBEAT)) for number in range(1, GROUPS)]
        for number, (outcome, rest) in enumerate(await asyncio.gather(*beats), 1):
            assert outcome is ForwardOutcome.ANSWERED
            assert bytes(rest) == number.to_bytes(4, "big") * 10
    assert not any(each.done() for each in joining)
    assert len(running.listener._host.connections) == 1, "one link"
    made.rebalanced.set()
    for number, (outcome, rest) in enumerate(await asyncio.gather(*joining)):
        assert (outcome, bytes(rest)) == (ForwardOutcome.ANSWERED, number.to_bytes(4, "big") * 10)
    await link.close()


async def test_requests_and_answers_of_megabytes(owner: tuple[Owner, Listening]) -> None:
    _, running = owner
    link = _link(running.port)
    for outcome, rest in await asyncio.gather(*(link.forward(_request(n, HEARTBEAT, 500_000)) for n in range(3))):
        assert (outcome, len(rest)) == (ForwardOutcome.ANSWERED, 2_000_000)
    await link.close()


async def test_a_connection_without_the_secret_is_closed(owner: tuple[Owner, Listening]) -> None:
    made, running = owner
    link = _link(running.port, b"another")
    assert await link.forward(_request(1, HEARTBEAT)) == LOST
    await link.close()
    for frame in (
        encode_envelope(Envelope(EnvelopeKind.REQUEST, 1, NOW_MS, HEARTBEAT), b"k" * 32, 1),
        encode_envelope(Envelope(EnvelopeKind.PING, 1), b"k" * 32, 1),
        struct.pack(">ihhih", 8 + 2 + 40, OPEN_KEY, 0, 1, -1) + b"x" * 40,
        struct.pack(">ihhih", 8 + 2, ENVELOPE_KEY, 1, 1, -1),
    ):
        client = await running.connect()
        await client.send(frame)
        assert await client.ended() == b""
        await client.close()
    assert made.beats == []


@pytest.mark.parametrize("seed", range(5))
async def test_hostile_frames_end_their_connection_and_no_other(owner: tuple[Owner, Listening], seed: int) -> None:
    made, running = owner
    rng = random.Random(seed)
    link = _link(running.port)
    assert (await link.forward(_request(1, HEARTBEAT)))[0] is ForwardOutcome.ANSWERED
    for _ in range(40):
        client = await running.connect()
        body = rng.randbytes(rng.randrange(200))
        head = struct.pack(">hhih", rng.choice((OPEN_KEY, ENVELOPE_KEY)), rng.choice((0, 1, 2)), rng.randrange(9), -1)
        await client.send(struct.pack(">i", len(head) + len(body)) + head + body)
        assert await client.ended() == b""
        await client.close()
    assert (await link.forward(_request(2, HEARTBEAT)))[0] is ForwardOutcome.ANSWERED
    assert made.beats == ["10.0.0.1:1", "10.0.0.1:2"]
    assert made.metrics.refused._value.get() == 40
    await link.close()


async def test_a_draining_agent_answers_what_it_has(owner: tuple[Owner, Listening]) -> None:
    made, running = owner
    link = _link(running.port)
    joining = link.forward(_request(1, JOIN))
    await until(lambda: made.waiting == 1)
    draining = asyncio.ensure_future(running.listener.drain(30))
    await asyncio.sleep(0)
    made.rebalanced.set()
    assert (await joining)[0] is ForwardOutcome.ANSWERED
    await draining
    assert await link.forward(_request(2, HEARTBEAT)) == LOST
    await link.close()
