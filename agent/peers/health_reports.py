"""Asks other agents what they reach, and answers the same question.

Place: asked by cli/process/http_app.py while this process's own probes fail; the answer is a handler of the Kafka
listener.
Invariant: one round asks at most PEERS_ASKED agents and ends within TIMEOUT_SECONDS, regardless of them. An agent that
does not answer reports nothing. Nothing is answered without the cluster's secret: the connection is closed. Question
and answer carry an HMAC with that secret, verified before anything else is used; the answer's covers the question's, so
it belongs to this question only. The API key is private and not advertised.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable
from typing import NamedTuple

from headrace.agent.cluster.view import ClusterView
from headrace.agent.peers.channel import NOT_OURS, PEER_HEALTH, PEER_HEALTH_KEY, SEAL_BYTES, framed, seal
from headrace.agent.peers.connection import PeerConnection, PeerTerms
from headrace.metastore.api.cluster import opened_with
from headrace.metastore.log.image import AgentImage
from headrace.protocol.request import Request, Response
from headrace.storage.clock import Clock
from headrace.storage.dependency import BUCKET, METASTORE, Reported
from headrace.storage.errors import CorruptError, HeadraceError, InvalidError

logger = logging.getLogger(__name__)

PEERS_ASKED = 3
TIMEOUT_SECONDS = 1.0
VERSION = 0
DEPENDENCIES = (METASTORE, BUCKET)
"""Dependencies by their bit in the answer."""

_QUESTION = struct.Struct(">qii")
_ANSWER = struct.Struct(">i32sB")
ANSWER_BYTES = _ANSWER.size


class AgentReports:
    """Implements readiness.PeerReports, and a Handler."""

    def __init__(
        self,
        terms: PeerTerms,
        view: ClusterView,
        own_reached: Callable[[], frozenset[str]],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """`own_reached`: the dependencies that this process reaches now."""
        self._terms = terms
        self._view = view
        self._own_reached = own_reached
        self._clock = clock
        self._rng = rng

    async def reported(self) -> Reported:
        """Return what the agents asked reach now, and whether any of them answered."""
        others = [agent for agent in self._view.image.live_agents() if agent.node_id != self._view.node_id]
        chosen = self._rng.sample(others, min(PEERS_ASKED, len(others)))
        questions = [asyncio.ensure_future(self._ask(agent)) for agent in chosen]
        timer = asyncio.ensure_future(self._clock.sleep(TIMEOUT_SECONDS))
        everything = asyncio.gather(*questions)
        await asyncio.wait((everything, timer), return_when=asyncio.FIRST_COMPLETED)
        for task in (timer, *questions):
            task.cancel()
        answers = await asyncio.gather(*questions, return_exceptions=True)
        await asyncio.gather(everything, return_exceptions=True)
        heard = [answer for answer in answers if isinstance(answer, frozenset)]
        return Reported(frozenset().union(*heard), bool(heard) or not others)

    async def handle(self, request: Request) -> Response:
        """Return what this process reaches. CloseConnection for an unauthorized, stale or misdirected question."""
        PEER_HEALTH.check_version(request.api_version, VERSION)
        (question, mac), secret = opened_with(self._terms.secret, lambda secret: decode_question(request.body, secret))
        PEER_HEALTH.check_addressee(question.asked, self._view.node_id, question.sent_ms, self._terms.now_ms())
        request.connection.is_agent = True
        return Response([encode_answer(request.correlation_id, secret, mac, self._own_reached())])

    async def _ask(self, agent: AgentImage) -> frozenset[str] | None:
        """None: it did not answer."""
        connection: PeerConnection | None = None
        try:
            address = agent.endpoint(self._terms.listener)
            connection = await self._terms.connect(PEER_HEALTH, address.host, address.port)
            question = Question(self._terms.now_ms(), self._view.node_id, agent.node_id)
            correlation_id = connection.next_id()
            frame, mac = encode_question(question, self._terms.secret, correlation_id)
            answer = await connection.ask(correlation_id, frame, ANSWER_BYTES)
            return decode_answer(answer, self._terms.secret, mac)
        except HeadraceError as error:
            logger.info("an agent did not say what it reaches: node_id=%d error=%s", agent.node_id, error)
            return None
        finally:
            if connection is not None:
                connection.close()


class Question(NamedTuple):
    """`asker` and `asked` are node ids; `sent_ms` on the database's clock."""

    sent_ms: int
    asker: int
    asked: int


def encode_question(question: Question, secret: bytes, correlation_id: int) -> tuple[bytes, bytes]:
    """(the request frame with its length, the question's MAC, which verifies the answer)."""
    body = _QUESTION.pack(*question)
    mac = seal(secret, body)
    return framed(PEER_HEALTH_KEY, VERSION, correlation_id, mac + body), mac


def decode_question(body: memoryview, secret: bytes) -> tuple[Question, bytes]:
    """(question, its MAC). InvalidError if it is malformed or not from an agent of this cluster."""
    if len(body) != SEAL_BYTES + _QUESTION.size:
        raise PEER_HEALTH.error(InvalidError, f"malformed question: bytes={len(body)}")
    rest, mac = PEER_HEALTH.unsealed(body, secret, refusal=NOT_OURS)
    return Question(*_QUESTION.unpack(rest)), mac


def encode_answer(correlation_id: int, secret: bytes, question_mac: bytes, reached: frozenset[str]) -> bytes:
    """The response frame after its length."""
    bits = sum(1 << bit for bit, name in enumerate(DEPENDENCIES) if name in reached)
    return _ANSWER.pack(correlation_id, seal(secret, question_mac, bytes((bits,))), bits)


def decode_answer(frame: memoryview, secret: bytes, question_mac: bytes) -> frozenset[str]:
    """The dependencies that the answering agent reaches. CorruptError unless it answers this question."""
    if len(frame) != ANSWER_BYTES:
        raise PEER_HEALTH.error(CorruptError, f"malformed answer: bytes={len(frame)}")
    _, mac, bits = _ANSWER.unpack(frame)
    PEER_HEALTH.check_answer(mac, secret, question_mac, bytes((bits,)), refusal=f"answer is {NOT_OURS}")
    return frozenset(name for bit, name in enumerate(DEPENDENCIES) if bits >> bit & 1)
