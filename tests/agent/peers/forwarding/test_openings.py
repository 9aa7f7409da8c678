"""Openings of links: one that was seen and is sent again opens nothing, and agents of both versions forward requests.

Fault model: an attacker has every byte that went over a link, and sends any of it again on other connections, at once.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.agent.listener.host import UNKNOWN_FRAME_BYTES
from headrace.agent.peers.forwarding.links import LOST, ForwardLink
from headrace.agent.peers.forwarding.service import ForwardServer, _proves_links
from headrace.agent.peers.forwarding.wire import (
    ENVELOPE_KEY,
    NEWEST_ENVELOPE,
    NONCE_BYTES,
    ForwardOutcome,
    Opening,
    decode_opening,
    encode_opening,
)
from headrace.metastore.api.agents import AGENT_FEATURES, SHARED_ADDRESS, FeatureRange
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.frames import read_request_header
from headrace.protocol.request import ClientConnection, CloseConnection, Request, Response
from headrace.storage.errors import InvalidError
from tests.agent.listener.listener_client import Listening
from tests.agent.peers.forwarding.earlier_links import EarlierLink, EarlierServer
from tests.agent.peers.forwarding.link_world import HERE, SECRET, LinkWorld
from tests.agent.peers.forwarding.test_planted_bugs import Run
from tests.agent.peers.forwarding.test_sockets import HEARTBEAT, Owner, _link, _request
from tests.agent.peers.forwarding.test_sockets import owner as owner  # a fixture
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X2")
MIXES = {
    "both new": (ForwardLink, ForwardServer, True, 2),
    "the opener is older": (EarlierLink, ForwardServer, False, 1),
    "the answering agent is older": (ForwardLink, EarlierServer, True, 1),
    "both older": (EarlierLink, EarlierServer, False, 1),
}
"""-> (opener, answering agent, whether the opener is registered as one that proves its links, version of envelopes)."""


async def answer(request: Request) -> Response:
    return Response([b"answer ", bytes(request.body)])


class Sniffed:
    """A world that keeps its frames."""

    def __init__(self, world: LinkWorld) -> None:
        self.world = world
        self.frames: list[bytes] = []

    async def forward(self) -> None:
        """A client's request, served at the other agent."""
        pending = self.world.forward(self.world.client(1), 1)
        for _ in range(4):
            await self.world.clock.settle()
            self.frames += [frame for pipe, _ in self.world.pipes for frame in pipe.written]
            await self.world.deliver()
        assert pending.result()[0] is ForwardOutcome.ANSWERED

    def send_again(self, frames: list[bytes]) -> tuple[ClientConnection, int]:
        """Send them on another connection; (what the agent has of it, the number of the first frame it refused)."""
        attacker = ClientConnection(99, "10.6.6.6:5", listener="INTERNAL")
        handlers = (self.world.server.open, self.world.server.serve)
        for position, frame in enumerate(frames):
            view = memoryview(frame)[4:]
            api_key, version, number, client_id, start = read_request_header(view)
            request = Request(attacker, api_key, version, number, client_id, view[start:], 0.0)
            try:
                handlers[position > 0](request)
            except (CloseConnection, InvalidError):
                return attacker, position
        return attacker, len(frames)


@pytest.mark.parametrize("mix", MIXES)
async def test_agents_of_both_versions_forward(fake_clock: ManualClock, mix: str) -> None:
    link, server, proves, version = MIXES[mix]
    world = LinkWorld(fake_clock, answer, link=link, server=server, proves=lambda node_id: proves)
    pending = [world.forward(world.client(number), number, b"body") for number in range(3)]
    await world.open()
    await world.deliver()
    assert [each.result() for each in pending] == [(ForwardOutcome.ANSWERED, b"answer body")] * 3
    assert world.link._version == version
    assert world.pipes[0][1].is_link


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mix", MIXES)
async def test_mixed_agents_keep_every_rule_of_forwarding(fake_clock: ManualClock, mix: str, seed: int) -> None:
    link, server, proves, _ = MIXES[mix]
    await Run(fake_clock, seed, link, server, proves=proves).run()


async def test_an_opening_that_is_sent_again_opens_nothing(fake_clock: ManualClock) -> None:
    sniffed = Sniffed(LinkWorld(fake_clock, answer))
    await sniffed.forward()
    attacker, refused = sniffed.send_again(sniffed.frames[:1])
    assert not attacker.is_link, "it has the limits of every other connection"
    assert refused == 1
    attacker, refused = sniffed.send_again(sniffed.frames)
    assert refused == 1, "its first envelope is of another link"
    assert not attacker.is_link
    assert sniffed.world.refused() == 1
    assert attacker.when_closed is not None
    before = len(sniffed.world.server._links)
    attacker.when_closed()
    assert len(sniffed.world.server._links) == before - 1, "nothing is kept of it"


async def test_a_server_that_trusts_openings_is_found(fake_clock: ManualClock) -> None:
    """A planted bug: as it was before. The check above finds it."""
    sniffed = Sniffed(LinkWorld(fake_clock, answer, server=EarlierServer))
    await sniffed.forward()
    attacker, _ = sniffed.send_again(sniffed.frames[:1])
    assert attacker.is_link


async def test_an_opening_from_before_an_upgrade_is_refused_after_it(fake_clock: ManualClock) -> None:
    """The agent that sent it has registered again meanwhile, as one that proves its links."""
    is_upgraded = False
    world = LinkWorld(fake_clock, answer, link=EarlierLink, proves=lambda node_id: node_id == HERE and is_upgraded)
    sniffed = Sniffed(world)
    await sniffed.forward()
    assert sniffed.send_again(sniffed.frames[:1])[0].is_link, "until then it is taken"
    is_upgraded = True
    attacker, refused = sniffed.send_again(sniffed.frames[:1])
    assert (attacker.is_link, refused) == (False, 0)
    assert world.refused() == 1


async def test_the_version_of_an_opening_cannot_be_lowered(fake_clock: ManualClock) -> None:
    sniffed = Sniffed(LinkWorld(fake_clock, answer, proves=lambda node_id: False))
    await sniffed.forward()
    frame = bytearray(sniffed.frames[0])
    opening, _ = decode_opening(memoryview(bytes(frame))[14:], SECRET)
    position = bytes(frame).index(struct.pack(">iih", opening.asker, opening.asked, opening.newest_envelope)) + 8
    struct.pack_into(">h", frame, position, 1)
    assert sniffed.send_again([bytes(frame)])[1] == 0


async def test_a_first_envelope_may_follow_later(fake_clock: ManualClock) -> None:
    """An older agent opens a link for a client that has gone meanwhile, and uses it when the next one comes."""
    world = LinkWorld(fake_clock, answer, link=EarlierLink, proves=lambda node_id: False)
    gone = world.client(1)
    lost = world.forward(gone, 1)
    world.end(gone)
    await world.open()
    assert lost.result() == LOST
    await world.clock.advance(30.0)
    later = world.forward(world.client(2), 2)
    await world.deliver()
    assert later.result()[0] is ForwardOutcome.ANSWERED


@pytest.mark.parametrize(
    ("features", "proves"),
    [
        (AGENT_FEATURES, True),
        ({SHARED_ADDRESS: FeatureRange(1, 1)}, False),
        ({}, False),
        (None, False),
    ],
)
def test_an_agent_says_in_its_registration_that_it_proves_links(
    features: Mapping[str, FeatureRange] | None, proves: bool
) -> None:
    agents = {}
    if features is not None:
        agents[HERE] = AgentImage(HERE, 1, uuid.UUID(int=1), "here", 9092, None, fenced=False, features=features)
    view: Any = SimpleNamespace(image=MetadataImage(agents=agents))
    assert _proves_links(view, HERE) is proves


async def test_a_connection_that_only_opened_may_not_send_much(owner: tuple[Owner, Listening]) -> None:
    """An envelope may have 8 MB; before the first one the limit of unknown requests holds."""
    _, running = owner
    link = _link(running.port)
    opening = _opening_of(link)
    replaying = await running.connect()
    await replaying.send(opening)
    assert await replaying.reply()
    head = struct.pack(">ihhih", UNKNOWN_FRAME_BYTES + 1, ENVELOPE_KEY, 2, 2, -1)
    await replaying.send(head)
    assert await replaying.ended() == b""
    await replaying.close()
    assert (await link.forward(_request(1, HEARTBEAT, 500_000)))[0] is ForwardOutcome.ANSWERED
    await link.close()


def _opening_of(link: ForwardLink) -> bytes:
    opening = Opening(link._terms.now_ms(), 1, 2, NEWEST_ENVELOPE, b"n" * NONCE_BYTES)
    return encode_opening(opening, link._terms.secret, 1)[0]
