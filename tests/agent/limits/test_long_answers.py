"""Answers that list what a cluster has, or elect many coordinators, are made in slices, each from one image.

The work is counted where it is done: elements that are made, scores of agents, names that are sorted, ACLs that are
compared. A task that runs whenever the event loop lets it ends each count; no test measures time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType

import pytest

from headrace.agent.access.admin.acls import AclFilter
from headrace.agent.cluster import routing
from headrace.agent.cluster.routing import Routes
from headrace.agent.limits import work_slices
from headrace.agent.limits.work_slices import BLOCK, ELEMENT_UNITS, UNITS_MAX, WorkSlices
from headrace.agent.topics.metadata.routing_requests import TRANSACTION
from headrace.metastore.api.agents import TRANSACTION_VERSION, FeatureRange
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.protocol.typed import Schema
from load.workloads.image_view import ImageView
from load.workloads.long_requests import Counts, LongRequest, LongRequests, with_access
from tests.agent.topics.test_long_metadata import Runs, agents, image, topic, view_of
from tests.patch import Patch

COUNTS = Counts(acls=1_000, quotas=600, groups=1_000, transactions=1_000, named=1_300)
AGENTS = 25
LONGEST = UNITS_MAX + BLOCK
"""A slice, and one more step."""


def a_cluster(partitions: list[int]) -> ImageView:
    """Return the view of an agent, with topics of so many partitions."""
    found = image([topic(number, count) for number, count in enumerate(partitions)], agents(AGENTS))
    features = MappingProxyType({TRANSACTION_VERSION: FeatureRange(0, 2)})
    return view_of(with_access(dataclasses.replace(found, features=features), COUNTS))


MANY_TOPICS, LARGE_TOPIC = [1] * 1_700, [3_500]
NAMES = tuple(LongRequests(a_cluster([1]), COUNTS).all())
OF_PARTITIONS = ("DescribeLogDirs of one address", "DescribeLogDirs", "ElectLeaders", "ListPartitionReassignments",
                 "OffsetFetch of all topics", "DescribeProducers")  # fmt: skip


@contextmanager
def counted(runs: Runs) -> Iterator[None]:
    """Count the work that makes answers."""

    with pytest.MonkeyPatch.context() as patch:
        score = runs.counting(routing.score, lambda *_: 1)
        for module in (routing, routing):
            patch.setattr(module, "score", score)
        patch.setattr(Schema, "make", runs.counting(Schema.make, lambda *_: ELEMENT_UNITS))
        patch.setattr(AclFilter, "matches", runs.counting(AclFilter.matches, lambda *_: 1))
        patch.setattr(TopicImage, "key", runs.counting(TopicImage.key, lambda *_: 1))
        patch.setattr(work_slices, "sorted", runs.counting(sorted, len), raising=False)
        yield


async def answer(asked: LongRequest, turn: Callable[[], object]) -> list[bytes]:
    """Return the bytes of the answer; `turn` is called whenever the event loop runs other tasks."""

    async def others() -> None:
        while True:
            turn()
            await asyncio.sleep(0)

    turning = asyncio.create_task(others())
    response = await asked.handler(asked.request)
    buffers = await response.encoded(WorkSlices().did)
    turning.cancel()
    assert buffers is not None
    return [bytes(each) for each in buffers]


async def longest_of(asked: LongRequest) -> Runs:
    """Count the work of an answer between the turns of the event loop."""
    runs = Runs()
    with counted(runs):
        await answer(asked, runs.end)
    return runs


@pytest.mark.parametrize(
    ("name", "partitions"),
    [(name, MANY_TOPICS) for name in NAMES] + [(name, LARGE_TOPIC) for name in OF_PARTITIONS],
    ids=[*NAMES, *(f"{name} in a large topic" for name in OF_PARTITIONS)],
)
async def test_no_turn_is_long(name: str, partitions: list[int]) -> None:
    runs = await longest_of(LongRequests(a_cluster(partitions), COUNTS).all()[name]())
    assert runs.longest <= LONGEST
    assert runs.total > LONGEST, "there was enough to do"


async def test_coordinators_of_transactions_are_elected_in_slices() -> None:
    runs = await longest_of(LongRequests(a_cluster([1]), COUNTS)._coordinators(TRANSACTION))
    assert runs.longest <= LONGEST
    assert runs.total >= AGENTS * COUNTS.named


OF_ONE_IMAGE = (
    "DescribeLogDirs",
    "ElectLeaders",
    "ListConfigResources",
    "FindCoordinator of groups",
    "ListTransactions",
    "DescribeTransactions",
)
"""Those that need the image more than once. Groups are judged by this agent's lease, too; offsets by the newest image
when all of them are there; the others take one part of the image."""


@pytest.mark.parametrize("name", OF_ONE_IMAGE)
async def test_an_answer_is_of_one_image(name: str) -> None:
    expected = await answer(LongRequests(a_cluster(MANY_TOPICS), COUNTS).all()[name](), lambda: None)
    asked = LongRequests(a_cluster(MANY_TOPICS), COUNTS).all()[name]()
    view: ImageView = asked.handler._cluster  # type: ignore[attr-defined]
    turns = 0

    def replace() -> None:
        nonlocal turns
        turns += 1
        if turns > 1:  # the store has answered
            view.image = MetadataImage(agents=agents(2))

    assert await answer(asked, replace) == expected
    assert turns > 2


async def test_turns_are_long_if_elections_cost_nothing(patch: Patch) -> None:
    """Planted: groups are counted, but not the agents that compete for each."""
    patch.replace(Routes, "coordinator_scores", lambda self, group_id: 0)
    for name in ("FindCoordinator of groups", "ListGroups", "OffsetFetch of many groups"):
        runs = await longest_of(LongRequests(a_cluster([1]), COUNTS).all()[name]())
        assert runs.longest > LONGEST


@pytest.mark.parametrize("name", ["DescribeLogDirs of one address", "ListTransactions", "DescribeAcls"])
async def test_turns_are_long_if_work_is_not_counted(name: str, patch: Patch) -> None:
    """Planted: no slice is ever full."""
    patch.replace(WorkSlices, "did", _nothing)
    runs = await longest_of(LongRequests(a_cluster(MANY_TOPICS), COUNTS).all()[name]())
    assert runs.longest > LONGEST


async def _nothing(self: WorkSlices, units: int) -> None:
    """Count nothing."""


async def test_items_are_in_order_and_each_is_made_once() -> None:
    runs = Runs()
    slices = WorkSlices(runs.pause, units_max=100)
    items = [number * 7_919 % 5_003 for number in range(5_000)]
    assert await slices.in_order(items) == sorted(items)
    assert await slices.in_order(items, lambda number: -number, 300) == sorted(items, reverse=True)
    assert (await slices.in_order([]), await slices.each(str, [2, 1])) == ([], ("2", "1"))
