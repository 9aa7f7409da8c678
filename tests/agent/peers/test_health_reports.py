"""What agents tell each other about metastore and bucket, over real sockets and the real listener."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.agent.peers.channel import PEER_HEALTH_KEY, WINDOW_MS
from headrace.agent.peers.connection import PeerTerms
from headrace.agent.peers.health_reports import (
    PEERS_ASKED,
    TIMEOUT_SECONDS,
    AgentReports,
    Question,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.storage.clock import SystemClock
from headrace.storage.dependency import Reported
from headrace.storage.errors import CorruptError, InvalidError
from tests.agent.cluster.standing_view import StandingView
from tests.manual_clock import ManualClock

SECRET = b"s" * 32
LIMITS = Limits(1 << 20, 1 << 26, 64, 100, 60_000)


class Agent:
    """One agent with a listener. `reached` is what it reports; `skew_ms` moves its clock."""

    def __init__(self, node_id: int, secret: bytes = SECRET) -> None:
        self.node_id = node_id
        self.clock = ManualClock()
        self.view = StandingView(4, node_id=node_id, broker_epoch=1)
        self.reached: frozenset[str] = frozenset()
        self.questions = 0
        self.skew_ms = 0
        self.reports = AgentReports(
            PeerTerms(secret, lambda: self.view.node_id, lambda: self.clock.wall_ms() + self.skew_ms),
            self.view,
            self._own,
            self.clock,
            random.Random(1),
        )
        dispatcher = Dispatcher()
        dispatcher.register_unadvertised(PEER_HEALTH_KEY, self.reports.handle)
        self.listener = KafkaListener(dispatcher.handle, LIMITS, SystemClock(), CollectorRegistry())
        self.port = 0

    def _own(self) -> frozenset[str]:
        self.questions += 1
        return self.reached


class Agents:
    """Agents that all see each other."""

    def __init__(self, *members: Agent) -> None:
        self.members = members

    async def start(self) -> None:
        for member in self.members:
            member.port = await member.listener.start("127.0.0.1", 0)
        images = {
            m.node_id: AgentImage(m.node_id, 1, uuid.UUID(int=m.node_id), "127.0.0.1", m.port, None, False)
            for m in self.members
        }
        for member in self.members:
            member.view.image = replace(MetadataImage(), agents=MappingProxyType(images))

    async def stop(self) -> None:
        for member in self.members:
            await member.listener.drain(0)


@pytest.fixture
async def three() -> AsyncIterator[Agents]:
    agents = Agents(Agent(1), Agent(2), Agent(3))
    await agents.start()
    yield agents
    await agents.stop()


async def test_what_any_other_agent_reaches_is_reached(three: Agents) -> None:
    asker, second, third = three.members
    assert await asker.reports.reported() == Reported(frozenset(), is_heard=True)
    second.reached = frozenset({"bucket"})
    assert (await asker.reports.reported()).reached == {"bucket"}
    third.reached = frozenset({"metastore"})
    assert (await asker.reports.reported()).reached == {"bucket", "metastore"}


async def test_an_agent_does_not_ask_itself_and_asks_few() -> None:
    agents = Agents(*map(Agent, range(1, 9)))
    await agents.start()
    try:
        agents.members[0].reached = frozenset({"bucket"})
        assert (await agents.members[0].reports.reported()).reached == frozenset()
        assert agents.members[0].questions == 0
        assert sum(member.questions for member in agents.members) == PEERS_ASKED
    finally:
        await agents.stop()


async def test_an_agent_that_is_gone_or_in_another_cluster_reports_nothing(three: Agents) -> None:
    asker, second, third = three.members
    third.reached = frozenset({"bucket"})
    await second.listener.drain(0)
    assert (await asker.reports.reported()).reached == {"bucket"}
    third.skew_ms = WINDOW_MS + 1
    assert (await asker.reports.reported()).reached == frozenset()
    stranger = Agents(Agent(1), Agent(2, b"x" * 32))
    await stranger.start()
    stranger.members[1].reached = frozenset({"bucket"})
    assert (await stranger.members[0].reports.reported()).reached == frozenset()
    await stranger.stop()


async def test_a_silent_agent_delays_the_round_by_no_more_than_its_limit(three: Agents) -> None:
    asker = three.members[0]
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    image = AgentImage(9, 1, uuid.UUID(int=9), "127.0.0.1", port, None, False)
    asker.view.image = replace(MetadataImage(), agents=MappingProxyType({9: image}))
    round_ = asyncio.ensure_future(asker.reports.reported())
    await asker.clock.advance(TIMEOUT_SECONDS)
    assert await round_ == Reported(frozenset(), is_heard=False)
    silent.close()


async def test_an_agent_without_others_is_heard_by_itself() -> None:
    """No other agent could be better off, so its failures are the whole cluster's."""
    alone = Agents(Agent(1))
    await alone.start()
    assert await alone.members[0].reports.reported() == Reported(frozenset(), is_heard=True)
    await alone.stop()


def test_a_question_is_for_one_agent_of_one_cluster() -> None:
    question = Question(5, 1, 2)
    frame, mac = encode_question(question, SECRET, 7)
    body = memoryview(frame)[-48:]
    assert decode_question(body, SECRET) == (question, mac)
    with pytest.raises(InvalidError, match="not from an agent of this cluster"):
        decode_question(body, b"x" * 32)
    for size in (0, 31, 32, 47):
        with pytest.raises(InvalidError, match="malformed"):
            decode_question(body[:size], SECRET)


def test_an_answer_belongs_to_its_question_and_cannot_be_altered() -> None:
    _, mac = encode_question(Question(5, 1, 2), SECRET, 7)
    _, later = encode_question(Question(6, 1, 2), SECRET, 8)
    answer = encode_answer(7, SECRET, mac, frozenset({"bucket"}))
    assert decode_answer(memoryview(answer), SECRET, mac) == {"bucket"}
    altered = answer[:-1] + bytes((answer[-1] ^ 1,))
    for frame, asked in ((answer, later), (altered, mac), (answer[:-1], mac)):
        with pytest.raises(CorruptError):
            decode_answer(memoryview(frame), SECRET, asked)
