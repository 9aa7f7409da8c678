"""Clients share answers of Metadata, and none gets one that is not its own.

An answer is right if it is what an agent without any memory answers that client, by one of the images that this agent
had between the request and the answer. Planted bugs are found.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.access import Access
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import LITERAL, PREFIXED, AclOperation
from headrace.agent.limits.work_slices import WorkSlices, let_others_run
from headrace.agent.topics.metadata import metadata as metadata_module
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.encoded_answers import AnswerKey, EncodedAnswers, ShownAgents
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.config.settings import STANDARD_AUTHORIZER, Settings
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import AccessControlRecord
from headrace.protocol.request import Request, Response
from load.workloads.image_view import ImageView
from tests.agent.access.acls import an_acl
from tests.agent.client_calls import a_request
from tests.agent.topics.test_long_metadata import Pause, a_creation, agents, image, topic, topics_of, view_of
from tests.patch import Patch

METADATA = 3
LISTENERS = ("PLAINTEXT", "OUTSIDE")


def handler_of(view: ImageView, pause: Pause = let_others_run, units_max: int = 10) -> Metadata:
    """Return a handler that enforces ACLs; User:admin may do everything."""
    settings = Settings(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin")
    authorizer = Authorizer(settings, view)
    topics = DescribedTopics(view, a_creation(view), lambda: False, authorizer)
    made = Metadata(view, topics, shared=None, counts=None, authorizer=authorizer)
    made.slices = lambda: WorkSlices(pause, units_max)
    return made


def may_describe(principal: str, name: str, pattern_type: int = PREFIXED) -> AccessControlRecord:
    return an_acl(name, pattern_type=pattern_type, principal=principal, operation=AclOperation.DESCRIBE)


def asks(
    names: list[str] | None = None,
    *,
    principal: str = "User:admin",
    version: int = 12,
    zone: str = "a",
    listener: str = LISTENERS[0],
    operations: bool = False,
) -> Request:
    """Return a request for these topics, or for all."""
    topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    message = MetadataRequest(
        topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=operations
    )
    body = message.encode(version=version)
    request = a_request(METADATA, version, body, client_id=f"c,zone={zone}", listener=listener)
    request.connection.principal = principal
    return request


def sent(response: Response) -> bytes:
    assert response.buffers is not None
    return b"".join(response.buffers)


def held_agents(step: int) -> MappingProxyType[int, AgentImage]:
    """Agents of two zones with two listeners each, of which one is away."""
    made = [
        AgentImage(
            n, n, uuid.UUID(int=n), f"in-{n}", 9092, "ab"[n % 2], n % 4 == step % 4,
            listeners=tuple(Listener(name, f"{name}-{n}", 9092, 0) for name in LISTENERS),
        )
        for n in range(1, 7)
    ]  # fmt: skip
    return MappingProxyType({agent.node_id: agent for agent in made})


def image_at(step: int) -> MetadataImage:
    """Return the image of a step: agents, ACLs and topics change in turns. The topic u is deleted and created."""
    topics = [topic(number, 3, epoch=step // 3) for number in range(step // 3 % 3, 8)]
    again = TopicImage(uuid.UUID(int=900 + step // 3), 900 + step // 3, "u", 2, 2, (0, 0))
    acls = {
        may_describe("User:alice", "t0", PREFIXED),
        may_describe("User:bob", topics[(step + 1) // 3 % len(topics)].name, LITERAL),
        may_describe("User:bob" if (step + 1) // 3 % 2 else "User:alice", "u", LITERAL),
    }
    return replace(image([*topics, again], held_agents((step + 2) // 3)), access_controls=frozenset(acls))


class Clients:
    """Requests of several kinds of clients, while the image changes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = [image_at(0)]
        self.view = view_of(self.history[0])
        self.handler = handler_of(self.view, self.pause)
        self.wrong: list[str] = []
        self._right: dict[tuple[int, bytes, tuple[object, ...]], bytes] = {}

    def change(self) -> None:
        self.history.append(image_at(len(self.history)))
        self.view.image = self.history[-1]

    async def pause(self) -> None:
        if self.rng.random() < 0.05:
            self.change()
        await asyncio.sleep(0)

    def request(self) -> Request:
        rng = self.rng
        names = [topic(rng.randrange(8), 1).name for _ in range(3)] + ["u"]
        return asks(
            None if rng.random() < 0.6 else names,
            principal=rng.choice(("User:admin", "User:alice", "User:bob")),
            version=rng.choice((8, 12)),
            zone=rng.choice("abc"),
            listener=rng.choice(LISTENERS),
        )

    async def ask(self, request: Request) -> None:
        first = len(self.history) - 1
        answer = sent(await self.handler(request))
        for number in range(first, len(self.history)):
            if answer == await self._alone(number, request):
                return
        self.wrong.append(f"{request.connection.principal} images={first}..{len(self.history) - 1}")

    async def _alone(self, number: int, request: Request) -> bytes:
        """Return what this client is answered by this image alone."""
        connection = request.connection
        who = connection.principal, connection.listener, request.client_id, request.api_version
        kind = number, bytes(request.body), who
        if kind not in self._right:
            handler = handler_of(view_of(self.history[number]), units_max=10_000)
            another = replace(request, connection=replace(connection, access=None))
            self._right[kind] = sent(await handler(another))
        return self._right[kind]

    async def run(self) -> list[str]:
        """Return what was wrong."""
        asked = []
        for _ in range(40):
            asked.append(asyncio.create_task(self.ask(self.request())))
            for _ in range(self.rng.randrange(8)):
                await asyncio.sleep(0)
            if self.rng.random() < 0.2:
                self.change()
        await asyncio.gather(*asked)
        assert len(self.history) > 8
        return self.wrong


def _without(place: int, value: Any) -> Callable[..., AnswerKey | None]:
    real = metadata_module.answer_key

    def key(*given: Any) -> Any:
        found = real(*given)
        return None if found is None else (*found[:place], value, *found[place + 1 :])

    return key


def _first_access() -> Callable[[Metadata, Request], Access]:
    real, known = Metadata._access, dict[int, tuple[Request, Access]]()

    def access(self: Metadata, request: Request) -> Access:
        return known.setdefault(id(request), (request, real(self, request)))[1]

    return access


def _any_number(self: EncodedAnswers, key: AnswerKey | None, number: int) -> object:
    return _GET(self, key, 0)


_GET, _ENCODED = EncodedAnswers.get, ShownAgents.encoded
PLANTED: dict[str, Callable[[], tuple[Any, str, Any]]] = {
    "answers are kept for all zones": lambda: (metadata_module, "answer_key", _without(1, None)),
    "answers are kept for all listeners": lambda: (metadata_module, "answer_key", _without(2, "")),
    "rights of when the request arrived": lambda: (Metadata, "_access", _first_access()),
    "answers of earlier images": lambda: (EncodedAnswers, "get", _any_number),
    "one list of agents for all listeners": lambda: (
        ShownAgents,
        "encoded",
        lambda self, found, version, _, encode: _ENCODED(self, found, version, "", encode),
    ),
}


@pytest.fixture
def long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers for named topics wait for their turn, too."""
    monkeypatch.setattr(metadata_module, "UNITS_MAX", 10)


@pytest.mark.usefixtures("long_names")
async def test_each_client_gets_its_own_answer_of_an_image_that_the_agent_had() -> None:
    for seed in range(6):
        assert await Clients(seed).run() == [], f"seed={seed}"


@pytest.mark.usefixtures("long_names")
@pytest.mark.parametrize("bug", PLANTED)
async def test_planted_bugs_are_found(bug: str, patch: Patch) -> None:
    patch.replace(*PLANTED[bug]())
    for seed in range(20):
        if await Clients(seed).run():
            return
    pytest.fail("not found")


async def shown_after_a_right_ended() -> set[str]:
    """Return the topics that a client is shown that waits while its right ends and another topic is created."""
    old = [topic(number, 12) for number in range(30)]
    before = replace(image(old, agents(3)), access_controls=frozenset({may_describe("User:alice", "t")}))
    view = view_of(before)
    handler = handler_of(view)
    first = asyncio.create_task(handler(asks()))
    await asyncio.sleep(0)
    waiting = asks(principal="User:alice")
    second = asyncio.create_task(handler(waiting))
    await asyncio.sleep(0)
    assert not first.done()
    view.image = image([*old, topic(77, 1)], agents(3))
    await first
    return set(topics_of(waiting, await second))


async def test_a_topic_that_was_created_after_a_right_ended_is_not_shown(patch: Patch) -> None:
    secret = topic(77, 1).name
    assert secret not in await shown_after_a_right_ended()
    patch.replace(Metadata, "_access", _first_access())
    assert secret in await shown_after_a_right_ended(), "planted: rights of when the request arrived"


class Revoking(ImageView):
    """The agent learns that no client has any right when it catches up."""

    async def catch_up(self) -> MetadataImage:
        self.image = replace(self.image, access_controls=frozenset())
        return self.image


async def test_a_right_that_ends_while_a_name_is_looked_up_is_denied_under_that_name() -> None:
    known = topic(1, 3)
    first = replace(image([known], agents(3)), access_controls=frozenset({may_describe("User:alice", "t")}))
    request = asks([known.name, "t-unknown"], principal="User:alice")
    response = await handler_of(Revoking(first, 4))(request)
    shown = topics_of(request, response)
    assert (shown[known.name].error_code, shown[known.name].partitions) == (ErrorCode.topic_authorization_failed, [])
    assert shown[known.name].topic_id != known.topic_id
