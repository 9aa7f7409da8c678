"""DescribeTopicPartitions of many topics: a page is from one image, and is made in slices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.agent.access.authorization.access import AclAccess
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.limits.work_slices import TOPIC_UNITS, UNITS_MAX
from headrace.agent.topics.metadata import described_topics
from headrace.agent.topics.metadata.described_topics import DescribeTopicPartitions
from headrace.config.settings import STANDARD_AUTHORIZER, Settings
from headrace.protocol.request import RequestHandler
from tests.agent.client_calls import a_request
from tests.agent.topics.test_long_metadata import Runs, agents, image, topic, view_of
from tests.patch import Patch

DESCRIBE = 75
ALL_PAGES = bytes.fromhex("01 00000010 ff 00")
"""Body of a request: no names, 16 partitions, no cursor, no tags."""


async def test_pages_of_many_topics_are_from_one_image_and_in_order() -> None:
    topics = [topic(number, 3) for number in range(3_000)]
    view = view_of(image(topics, agents(30), 0))
    handler: RequestHandler = DescribeTopicPartitions(view, shared=None, authorizer=None)
    response = await handler(a_request(DESCRIBE, 0, ALL_PAGES))
    entity = response.entity
    assert [each.name for each in entity.topics] == sorted(each.name for each in topics)[:6]
    assert [len(each.partitions) for each in entity.topics] == [3, 3, 3, 3, 3, 1]
    assert entity.next_cursor.partition_index == 1


async def most_skipped_at_once() -> int:
    """Return how many topics that the client may not describe are passed over between two turns of the event loop."""
    view = view_of(image([topic(number, 1) for number in range(3_000)], agents(3)))
    authorizer = Authorizer(Settings(authorizer_class_name=STANDARD_AUTHORIZER), view)
    handler: RequestHandler = DescribeTopicPartitions(view, shared=None, authorizer=authorizer)
    runs = Runs()
    real = AclAccess.allows

    def allows(self: AclAccess, *given: Any) -> bool:
        runs.did(1)
        return real(self, *given)

    async def others() -> None:
        while True:
            await runs.pause()

    turning = asyncio.create_task(others())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AclAccess, "allows", allows)
        response = await handler(a_request(DESCRIBE, 0, ALL_PAGES))
    turning.cancel()
    assert (response.entity.topics, response.entity.next_cursor) == ((), None)
    assert runs.total == 3_000
    return runs.longest


async def test_topics_that_a_page_does_not_show_are_passed_over_in_slices(patch: Patch) -> None:
    assert await most_skipped_at_once() <= UNITS_MAX // TOPIC_UNITS + 1
    patch.replace(described_topics, "TOPIC_UNITS", 0)
    assert await most_skipped_at_once() == 3_000, "planted: they cost nothing"
