"""Metadata of many topics is computed in slices: other tasks run in between, and each answer shows one image.

The work is counted where it is done (scores, pairs that are dealt, partitions, names), in units as the slices count
them; no test measures time. Planted bugs are found.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster import routing, spread
from headrace.agent.cluster.newest_counts import NONE, NewestCounts
from headrace.agent.cluster.routing import Routes
from headrace.agent.limits import work_slices
from headrace.agent.limits.work_slices import BLOCK, UNITS_MAX, WorkSlices, let_others_run
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.metadata.metadata_response import MetadataRendering
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.metastore.api.agents import LEADER_SPREAD, FeatureRange
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.protocol.request import Request, Response
from load.workloads.image_view import ImageView
from tests.agent.client_calls import a_request, read_reply
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock
from tests.patch import Patch

METADATA = 3
VERSION = 12
SHARDS = 64
Pause = Callable[[], Awaitable[object]]


def view_of(found: MetadataImage) -> ImageView:
    return ImageView(found, SHARDS)


def agents(count: int) -> MappingProxyType[int, AgentImage]:
    made = (AgentImage(n, n, uuid.UUID(int=n), f"agent-{n}", 9092, "abc"[n % 3], False) for n in range(1, count + 1))
    return MappingProxyType({agent.node_id: agent for agent in made})


def topic(number: int, partitions: int, epoch: int = 0) -> TopicImage:
    epochs = (epoch,) * partitions
    return TopicImage(uuid.UUID(int=number), number, f"t{number * 7919 % 100_003:06}", partitions, partitions, epochs)


def image(topics: list[TopicImage], held: MappingProxyType[int, AgentImage], level: int = 0) -> MetadataImage:
    return MetadataImage(
        topics_by_name=MappingProxyType({each.name: each for each in topics}),
        topics_by_id=MappingProxyType({each.topic_id: each for each in topics}),
        topics_by_number=MappingProxyType({each.topic_number: each for each in topics}),
        agents=held,
        features=MappingProxyType({LEADER_SPREAD: FeatureRange(1, level)} if level else {}),
    )


def a_creation(view: ImageView) -> TopicCreation:
    api: Any = FakeClusterApi(ManualClock())
    return TopicCreation(view, api, api.clock, random.Random(1), lambda: TopicDefaults(1, 1))


def metadata(
    view: ImageView, pause: Pause = let_others_run, units_max: int = UNITS_MAX, newest: NewestCounts | None = None
) -> Metadata:
    topics = DescribedTopics(view, a_creation(view), lambda: False)
    made = Metadata(view, topics, shared=None, counts=None, newest=newest)
    made.slices = lambda: WorkSlices(pause, units_max)
    return made


def all_topics(client_id: str = "test") -> Request:
    return a_request(METADATA, VERSION, MetadataRequest(topics=None).encode(version=VERSION), client_id=client_id)


def topics_of(request: Request, response: Response) -> dict[str, Any]:
    return {each.name: each for each in read_reply(request, response).topics}


class Runs:
    """Units of work between two pauses, as they are done."""

    def __init__(self) -> None:
        self.longest = self.total = self._units = 0

    def did(self, units: int) -> None:
        self._units += units
        self.total += units
        self.longest = max(self.longest, self._units)

    def counting(self, real: Callable[..., Any], units: Callable[..., int]) -> Callable[..., Any]:
        """Return `real`, which counts the units of its arguments."""

        def called(*given: Any, **named: Any) -> Any:
            self.did(units(*given))
            return real(*given, **named)

        return called

    def end(self) -> None:
        self._units = 0

    async def pause(self) -> None:
        self.end()
        await asyncio.sleep(0)


@contextmanager
def counted(runs: Runs) -> Iterator[None]:
    """Count scores, pairs that are dealt, partitions that are encoded and names that are sorted."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routing, "score", runs.counting(routing.score, lambda *_: 1))
        pairs = runs.counting(spread._dealt_block, lambda first, last, quotas, _: (last - first) * len(quotas))
        patch.setattr(spread, "_dealt_block", pairs)
        rendered = runs.counting(MetadataRendering._partitions, lambda _, __, ___, indexes: len(indexes))
        patch.setattr(MetadataRendering, "_partitions", rendered)
        patch.setattr(work_slices, "sorted", runs.counting(sorted, len), raising=False)
        yield


SHAPES = {
    "many topics": ([12] * 3_000, 3, 0),
    "many topics, dealt": ([12] * 1_500, 16, 10),
    "a large topic": ([20_000], 3, 0),
    "a large topic, dealt": ([5_000], 16, 10),
    "many agents": ([100] * 20, 400, 0),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_slice_is_long(shape: str) -> None:
    partitions, count, level = SHAPES[shape]
    view = view_of(image([topic(number, each) for number, each in enumerate(partitions)], agents(count), level))
    runs = Runs()
    with counted(runs):
        request = all_topics()
        shown = topics_of(request, await metadata(view, runs.pause)(request))
    assert sum(len(each.partitions) for each in shown.values()) == sum(partitions)
    assert runs.total > 2 * UNITS_MAX
    assert runs.longest <= UNITS_MAX + max(BLOCK, spread.BLOCK * spread.REGISTERED_MAX, count)


async def test_no_slice_is_long_after_agents_changed() -> None:
    """The work that is remembered is not done again, and what remains is in slices, too."""
    topics = [topic(number, 12) for number in range(500)]
    view = view_of(image(topics, agents(400)))
    runs = Runs()
    with counted(runs):
        handler, request = metadata(view, runs.pause), all_topics()
        await handler(request)
        first, runs.total = runs.total, 0
        view.image = image(topics, agents(401))
        await handler(request)
    assert first - runs.total >= 64 * 399, "one score for each shard, in place of 400"
    assert runs.longest <= UNITS_MAX + BLOCK


async def test_a_short_answer_never_pauses() -> None:
    async def pause() -> None:
        pytest.fail("paused")

    view = view_of(image([topic(number, 12) for number in range(20)], agents(3)))
    request = all_topics()
    assert len(topics_of(request, await metadata(view, pause)(request))) == 20


# -- one image


def leaders(shown: dict[str, Any]) -> dict[str, list[tuple[int, int, list[int]]]]:
    return {
        name: [(each.leader_id, each.leader_epoch, each.replica_nodes) for each in found.partitions]
        for name, found in shown.items()
    }


def changed(step: int, level: int) -> MetadataImage:
    """Agents come and go, topics come and go, and leader epochs rise."""
    held = {node_id: agent for node_id, agent in agents(12).items() if node_id % 5 != step % 5}
    found = [topic(number, 6, epoch=step) for number in range(step % 3, 40)]
    return image(found, MappingProxyType(held), level)


async def mixed(level: int) -> str | None:
    """Return what an answer shows that is not of the image in which it began, while each pause changes the image."""
    for begin in range(4):
        view = view_of(changed(begin, level))
        alone = all_topics()
        expected = leaders(topics_of(alone, await metadata(view_of(view.image))(alone)))
        steps = iter(range(begin + 1, 10_000))

        async def pause(view: ImageView = view, steps: Iterator[int] = steps) -> None:
            view.image = changed(next(steps), level)
            assert view.routes.image is view.image

        request = all_topics()
        shown = leaders(topics_of(request, await metadata(view, pause, units_max=20)(request)))
        if shown != expected:
            return f"begin={begin}"
        assert next(steps) > begin + 10, "the image changed"
    return None


@pytest.mark.parametrize("level", [0, 10])
async def test_an_answer_shows_one_image(level: int) -> None:
    assert await mixed(level) is None


@pytest.mark.parametrize("level", [0, 10])
async def test_routes_of_the_newest_image_are_found(level: int, patch: Patch) -> None:
    """A planted bug: topics are from the first image, leaders from the newest."""
    newest: list[Routes] = []
    real, made = Routes.leaders, Routes.__init__

    def remember(self: Routes, *given: Any) -> None:
        made(self, *given)
        newest.append(self)

    patch.replace(Routes, "__init__", remember)
    patch.replace(Routes, "leaders", lambda self, *given: real(newest[-1], *given))
    assert await mixed(level) is not None


# -- clients that wait for the same answer


async def test_clients_that_wait_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    real = MetadataRendering.topic

    async def rendered(self: MetadataRendering, found: TopicImage, slices: WorkSlices) -> bytes:
        encoded.append(found.name)
        return await real(self, found, slices)

    monkeypatch.setattr(MetadataRendering, "topic", rendered)
    view = view_of(image([topic(number, 12) for number in range(30)], agents(3)))
    handler = metadata(view, units_max=10)
    answers = await asyncio.gather(*(handler(all_topics()) for _ in range(50)))
    assert len(encoded) == 30
    assert len({id(answer.buffers[1]) for answer in answers if answer.buffers}) == 1


async def test_a_client_that_comes_later_sees_the_newer_image() -> None:
    view = view_of(image([topic(number, 12) for number in range(30)], agents(3)))
    handler = metadata(view, units_max=10)
    first = asyncio.create_task(handler(all_topics()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not first.done()
    view.image = image([topic(number, 12, epoch=1) for number in range(31)], agents(3))
    request = all_topics()
    late = topics_of(request, await handler(request))
    assert len(late) == 31
    assert len(topics_of(request, await first)) == 30
    kept = topics_of(request, await handler(request))
    assert leaders(kept) == leaders(late), "an older answer that ends later is not kept"


async def test_one_that_gives_up_does_not_keep_others_waiting() -> None:
    view = view_of(image([topic(number, 12) for number in range(30)], agents(3)))
    handler = metadata(view, units_max=10)
    first, second = (asyncio.create_task(handler(all_topics())) for _ in range(2))
    for _ in range(5):
        await asyncio.sleep(0)
    first.cancel()
    request = all_topics()
    assert len(topics_of(request, await second)) == 30


# -- counts that change meanwhile


async def doubled_meanwhile(*, names: list[str] | None) -> Any:
    """Return how a topic is shown that doubles during the answer."""
    small = [topic(number, 4) for number in range(20)]
    view = view_of(image(small, agents(3)))
    doubling = max(small, key=lambda each: each.name)
    grown = [topic(each.topic_number, 8) if each is doubling else each for each in small]
    steps = iter(range(1_000))

    async def pause() -> None:
        if next(steps) >= (0 if names is None else 1):  # names are looked up after the first pause
            view.image = image(grown, agents(3))

    newest = NewestCounts(view, ManualClock(), lambda: False)
    handler = metadata(view, pause, units_max=10, newest=newest)
    asked = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    body = MetadataRequest(topics=asked, allow_auto_topic_creation=False).encode(version=VERSION)
    request = a_request(METADATA, VERSION, body)
    shown = topics_of(request, await handler(request))
    again = topics_of(request, await handler(request))
    assert len(again[doubling.name].partitions) == 8, "what is not described is not kept"
    others = [found for name, found in shown.items() if name != doubling.name]
    assert {(found.error_code, len(found.partitions)) for found in others} == {(0, 4)}
    return shown[doubling.name]


@pytest.mark.requirement("X5")
@pytest.mark.parametrize("is_named", [False, True])
async def test_a_topic_that_doubles_during_the_answer_is_not_described(is_named: bool, patch: Patch) -> None:
    names = sorted(topic(number, 4).name for number in range(20)) if is_named else None
    found = await doubled_meanwhile(names=names)
    assert (found.error_code, found.partitions) == (ErrorCode.leader_not_available, [])

    async def unseen(*_: object) -> frozenset[uuid.UUID]:
        return NONE

    patch.replace(NewestCounts, "changed_since", unseen)
    found = await doubled_meanwhile(names=names)
    assert (found.error_code, len(found.partitions)) == (0, 4), "planted: the old count after the new one"


async def shown_to_the_last() -> int:
    """Return how many partitions the last of several clients is shown that share an answer, if the topic doubled after
    the first two got it.
    """
    small = [topic(number, 4) for number in range(20)]
    view = view_of(image(small, agents(3)))
    handler = metadata(view, units_max=10, newest=NewestCounts(view, ManualClock(), lambda: False))
    requests = [all_topics() for _ in range(5)]
    asked = [asyncio.create_task(handler(request)) for request in requests]
    doubled = image([topic(0, 8), *small[1:]], agents(3))
    asked[0].add_done_callback(lambda _: setattr(view, "image", doubled))
    answers = await asyncio.gather(*asked)
    counts = [
        len(topics_of(request, answer)[small[0].name].partitions)
        for request, answer in zip(requests, answers, strict=True)
    ]
    assert counts[:2] == [4, 4]
    return counts[-1]


@pytest.mark.requirement("X5")
async def test_an_answer_is_not_shared_after_a_topic_doubled(patch: Patch) -> None:
    assert await shown_to_the_last() == 8

    async def unseen(*_: object) -> frozenset[uuid.UUID]:
        return NONE

    patch.replace(NewestCounts, "changed_since", unseen)
    assert await shown_to_the_last() == 4, "planted: the old count after the new one"
