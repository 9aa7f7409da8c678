"""Clients that wait for long answers of Metadata: one computation for all, within the memory for replies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.agent.listener.memory import ConnectionReplies, ReplyMemory
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.encoded_answers import LongAnswers
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import Request, Response
from tests.agent.topics.test_long_metadata import agents, image, topic, topics_of, view_of
from tests.agent.topics.test_shared_metadata import asks, handler_of, sent
from tests.patch import Patch


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[MetadataImage]:
    """The images of which all topics were described, once for each answer."""
    found: list[MetadataImage] = []
    real = DescribedTopics.every

    async def every(self: DescribedTopics, shown: MetadataImage, *given: Any) -> Any:
        found.append(shown)
        return await real(self, shown, *given)

    monkeypatch.setattr(DescribedTopics, "every", every)
    return found


# -- one computation for many clients


async def computed_for(clients: int, computed: list[MetadataImage]) -> int:
    """Return how many answers are computed for clients that ask for all topics at once, while the image changes all the
    time and other clients get short answers.
    """
    computed.clear()
    view = view_of(image([topic(number, 12) for number in range(20)], agents(3)))
    others = iter(range(1, 1_000_000))
    is_short = False

    async def pause() -> None:
        nonlocal is_short
        if not is_short:
            is_short = True
            view.image = image([topic(number, 12, epoch=next(others)) for number in range(20)], agents(3))
            await handler(asks([topic(1, 12).name]))
            is_short = False
        await asyncio.sleep(0)

    handler = handler_of(view, pause, units_max=100)
    requests = [asks() for _ in range(clients)]
    answers = await asyncio.gather(*(handler(request) for request in requests))
    assert {len(topics_of(*each)) for each in zip(requests, answers, strict=True)} == {20}
    return len(computed)


async def test_clients_share_an_answer_while_the_image_changes(computed: list[MetadataImage], patch: Patch) -> None:
    assert await computed_for(30, computed) == 2
    patch.replace(LongAnswers, "joined", lambda self, key: None)
    assert await computed_for(30, computed) == 30, "planted: each waits for its own turn"


async def test_nothing_is_computed_for_clients_that_have_gone(computed: list[MetadataImage]) -> None:
    view = view_of(image([topic(number, 12) for number in range(20)], agents(3)))
    handler = handler_of(view)
    first = asyncio.create_task(handler(asks()))
    await asyncio.sleep(0)
    requests = [asks(version=9 + number % 4, zone="abc"[number % 3]) for number in range(24)]
    waiting = [asyncio.create_task(handler(request)) for request in requests]
    stays = asyncio.create_task(handler(asks(version=9)))
    await asyncio.sleep(0)
    for request in requests:
        request.connection.closed = True
    assert [answer.buffers for answer in await asyncio.gather(*waiting)] == [None] * 24
    await asyncio.gather(first, stays)
    assert len(computed) == 2, "the first, and that of the one who stays"


async def test_those_that_joined_one_that_was_cancelled_are_answered(computed: list[MetadataImage]) -> None:
    view = view_of(image([topic(number, 12) for number in range(20)], agents(3)))
    handler = handler_of(view)
    tasks = [asyncio.create_task(handler(asks(version=version))) for version in (12, 9, 9, 9)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert all(isinstance(answer, Response) for place, answer in enumerate(answers) if place != 1)
    assert len(computed) == 2


# -- memory


async def most_in_use() -> tuple[int, int]:
    """Return the most bytes of replies, and the largest reply, when clients ask for many topics and read nothing for a
    while. No two ask for the same.
    """
    view = view_of(image([topic(number, 12) for number in range(20)], agents(3)))
    handler = handler_of(view)
    memory = ReplyMemory(1)
    replies = ConnectionReplies(memory)
    largest = most = 0
    unread: list[int] = []

    async def serve(request: Request) -> None:
        """Do the same as agent/listener/connection.py."""
        nonlocal largest, most
        request.connection.replies = replies
        await replies.reserve(0)
        size = len(sent(await handler(request)))
        replies.charge_other(size)
        unread.append(size)
        largest, most = max(largest, size), max(most, memory.in_use_bytes)

    kinds = [(version, zone, flag) for version in range(9, 13) for zone in "abc" for flag in (False, True)]
    served = [asyncio.create_task(serve(asks(version=v, zone=z, operations=flag))) for v, z, flag in kinds]
    while not all(task.done() for task in served):
        for _ in range(200):
            await asyncio.sleep(0)
        assert unread
        replies.release_other(unread.pop())
    return most, largest


async def test_a_long_answer_is_computed_when_there_is_room_for_it(patch: Patch) -> None:
    most, largest = await most_in_use()
    assert most <= largest + 1

    async def at_once(_: Metadata, request: Request) -> bool:
        return request.connection.closed

    patch.replace(Metadata, "_has_gone", at_once)
    most, largest = await most_in_use()
    assert most > 3 * largest, "planted: all that wait for their turn are let in at once"
