"""X14: the controller's step of links: what it creates, grows, refuses and promotes, and what its metrics say."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.controller.link_following import OTHER_SOURCE, WantedCopy
from headrace.agent.cluster.controller.link_steps import CREATED_PER_LOOK, TAKEN, LinkSteps
from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.linked_groups import NO_OFFSETS, LinkedGroup
from headrace.metastore.api.links import GONE, LINKED_EPOCH, LinkedTopic, LinkSource, Promotion
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import FencedError, OutcomeUnknownError
from tests.agent.cluster.fake_link_api import FakeLinkApi
from tests.manual_clock import ManualClock
from tests.nouns import nouns

pytestmark = pytest.mark.requirement("X14")
EPOCH = 5


class World:
    """An active controller, in a cluster with the link `old` that copies orders.*."""

    def __init__(self, clock: ManualClock) -> None:
        self.api = FakeLinkApi(clock)
        self.api.controller = ControllerLease(1, EPOCH, is_own=True)
        self.api.add_feature()
        self.api.add_link()
        self.follower = MetadataFollower(nouns(self.api).cluster)
        self.registry = CollectorRegistry()
        self.denied: set[str] = set()
        """Topics that a creator may not write to."""
        self.wanted: list[WantedCopy] = []
        self.steps = LinkSteps(nouns(self.api), self.follower, clock, random.Random(1), self.registry, self)

    def why_not(self, image: MetadataImage, wanted: Sequence[WantedCopy]) -> list[str | None]:
        self.wanted += wanted
        return ["may not WRITE" if each.topic.name in self.denied else None for each in wanted]

    def why_not_deleted(self, creator: str, topic: str) -> str | None:
        return "may not DELETE" if topic in self.denied else None

    def why_no_offsets(self, creator: str, group_id: str) -> str | None:
        return "may not READ" if group_id in self.denied else None

    async def look(self, epoch: int = EPOCH) -> bool:
        """One turn of the step; True if there may be more."""
        image = await self.follower.catch_up()
        links = self.steps.judge(image)
        return bool(links) and await self.steps.keep(epoch, image, links)

    def metric(self, name: str, link: str = "old") -> float | None:
        return self.registry.get_sample_value(f"headrace_links_{name}", {"link": link})

    def problems(self) -> dict[str, str]:
        return {f"{each.link}:{each.name}": each.problem for each in self.api.found if each.problem}

    def add_copy(self, name: str = "orders", partitions: int = 1, **progress: Any) -> uuid.UUID:
        topic_id = self.api.add_topic(name, partitions, {"link.name": "old"})
        for index in range(partitions):
            self.api.copy(name, index, **progress)
        return topic_id

    def made_from(self, name: str, source: int, configs: dict[str, str] | None = None) -> None:
        """Say from which topic of the source the copy is made, and which configs of it were set here last."""
        (topic_id,) = [topic_id for topic_id, known in self.api.topics.items() if known == name]
        self.api.linked.append(LinkedTopic(topic_id, name, "old", uuid.UUID(int=source), Promotion.NONE, configs))


@pytest.fixture
def world(fake_clock: ManualClock) -> World:
    return World(fake_clock)


async def test_found_topics_are_created_with_the_configs_and_the_rights_of_their_link(world: World) -> None:
    world.api.find("orders", 3, configs={"retention.ms": "5", "table.enable": "true", "low.latency.enable": "true",
                                         "link.name": "theirs", "segment.bytes": "nonsense"})  # fmt: skip
    await world.look()
    (created,) = world.api.created
    assert created.topic.configs == {"retention.ms": "5", "link.name": "old"}
    assert (created.link, created.source_id, created.leader_epoch) == ("old", uuid.UUID(int=7), LINKED_EPOCH)
    assert [(each.creator, each.topic.name, each.topic.partition_count) for each in world.wanted] == [
        ("User:alice", "orders", 3)
    ]
    assert world.api.image.link_of("orders") == "old"
    await world.look()
    assert len(world.api.created) == 1
    assert world.problems() == {}


async def test_what_a_link_does_not_name_is_not_created(world: World) -> None:
    world.api.find("payments")
    world.api.find("orders.x", problem="message format v1")
    world.api.find("orders.y", link="gone")
    world.api.add_link("paused", topics="p.*", link__state="paused")
    world.api.find("p1", link="paused")
    await world.look()
    assert (world.api.created, world.wanted) == ([], [])


async def test_a_creator_without_rights_gets_a_reason_and_no_topic(world: World) -> None:
    world.denied.add("orders.secret")
    for name in ("orders.open", "orders.secret"):
        world.api.find(name)
    await world.look()
    assert [each.topic.name for each in world.api.created] == ["orders.open"]
    assert world.problems() == {"old:orders.secret": "may not WRITE"}
    world.denied.clear()
    await world.look()
    assert len(world.api.created) == 1, "until the next report of the source"
    world.api.find("orders.secret")
    await world.look()
    assert len(world.api.created) == 2


async def test_a_name_that_is_taken_stays_what_it_is(world: World) -> None:
    world.api.add_topic("orders.own")
    world.api.add_link("second")
    world.api.find("orders.own", 9)
    world.api.find("orders.both")
    world.api.find("orders.both", link="second")
    await world.look()
    assert [(each.link, each.topic.name) for each in world.api.created] == [("old", "orders.both")]
    text = "link 'old' copies a topic of this name"
    assert world.problems() == {"old:orders.own": TAKEN, "second:orders.both": text}
    world.api.find("orders.both", link="second")
    await world.look()
    assert world.problems()["second:orders.both"] == text
    assert world.api.grown == []


async def test_a_copy_grows_with_its_source_and_with_no_other_topic(world: World) -> None:
    topic_id = world.add_copy("orders", 2)
    world.made_from("orders", 7)
    world.api.find("orders", 2)
    await world.look()
    assert world.api.grown == []
    world.api.find("orders", 4)
    await world.look()
    assert [tuple(each) for each in world.api.grown] == [(topic_id, 2, 4, LINKED_EPOCH)]
    world.api.find("orders", 8, source=8)
    await world.look()
    assert len(world.api.grown) == 1
    assert world.problems() == {"old:orders": OTHER_SOURCE}


async def test_many_topics_take_several_looks(world: World) -> None:
    for number in range(CREATED_PER_LOOK + 1):
        world.api.find(f"orders.{number}")
    assert await world.look()
    assert len(world.api.created) == CREATED_PER_LOOK
    assert not await world.look()
    assert len(world.api.created) == CREATED_PER_LOOK + 1


@pytest.mark.parametrize("behind", [False, True])
async def test_a_lost_answer_and_another_change_create_no_topic_twice(world: World, behind: bool) -> None:
    world.api.find("orders")
    if behind:
        world.api.fail_after["create_linked_topics"].append(OutcomeUnknownError("planned"))
        with pytest.raises(OutcomeUnknownError):
            await world.look()
    else:
        world.api.before_append = lambda: world.api.add_topic("other") and None
        await world.look()
        assert world.api.created == []
    await world.look()
    assert len(world.api.created) == 1


async def test_an_old_controller_creates_nothing(world: World) -> None:
    world.api.find("orders")
    with pytest.raises(FencedError):
        await world.look(EPOCH - 1)
    assert world.api.created == []


async def test_topics_are_promoted_when_all_their_partitions_are_ready(world: World) -> None:
    world.add_copy("orders.a", 2, promotion=Promotion.ASKED, is_ready=True)
    world.add_copy("orders.b", 2, promotion=Promotion.ASKED, is_ready=True)
    world.api.progress[-1] = world.api.progress[-1]._replace(is_ready=False)
    world.add_copy("orders.c", 1, promotion=Promotion.FORCED)
    world.add_copy("orders.d", 1, is_ready=True)
    await world.look()
    assert world.api.promoted == ["orders.a", "orders.c"]
    assert [world.api.image.link_of(f"orders.{name}") for name in "abcd"] == ["", "old", "", "old"]
    await world.look()
    assert world.api.promoted == ["orders.a", "orders.c"]


async def test_a_topic_that_the_metastore_finds_not_ready_is_tried_again(world: World) -> None:
    topic_id = world.add_copy(promotion=Promotion.ASKED, is_ready=True)
    world.api.not_ready.add(topic_id)
    await world.look()
    assert world.api.promoted == []
    world.api.not_ready.clear()
    await world.look()
    assert world.api.promoted == ["orders"]


async def test_metrics_say_how_far_links_are_and_end_with_them(world: World) -> None:
    now_ms = world.api.clock.wall_ms()
    world.add_copy("orders.a", high_watermark=60, source_end=100, current_ms=now_ms - 30_000, copied_bytes=600, lost=2)
    world.add_copy("orders.b", high_watermark=1, current_ms=0, copied_bytes=10, problem="truncated")
    world.api.sources.append(LinkSource("old", "c", now_ms, "no server answered"))
    await world.look()
    found = {name: world.metric(name) for name in ("lag_records", "lag_bytes", "lag_seconds", "problems",
                                                   "copying_partitions", "lost_records")}  # fmt: skip
    assert found == {"lag_records": 139, "lag_bytes": 1_390, "lag_seconds": 30, "problems": 2,
                     "copying_partitions": 1, "lost_records": 2}  # fmt: skip
    world.api.add_link(link__state="paused")
    await world.look()
    assert world.metric("lag_seconds") == 0
    world.steps.stand_by()
    assert world.metric("lag_records") is None


async def test_without_links_nothing_is_asked(fake_clock: ManualClock) -> None:
    world = World(fake_clock)
    assert world.steps.judge(MetadataImage()) == {}
    assert not world.api.calls["found_topics"]


def _configs(world: World, topic: str) -> dict[str, str]:
    """The topic's configs in the log, without the one that makes it a copy."""
    own = world.follower.image.configs.get((2, topic), {})
    return {name: value for name, value in own.items() if name != "link.name"}


async def test_configs_follow_where_they_changed_at_the_source_and_others_stay(world: World) -> None:
    world.api.add_topic(
        "orders", 1, {"link.name": "old", "retention.ms": "5", "segment.ms": "77", "max.message.bytes": "9"}
    )
    world.made_from("orders", 7, {"retention.ms": "5", "segment.ms": "70", "max.message.bytes": "9"})
    world.api.find("orders", 1, configs={"retention.ms": "6", "segment.ms": "70", "retention.bytes": "8"})
    await world.look()
    await world.follower.catch_up()
    expected = {"retention.ms": "6", "segment.ms": "77", "retention.bytes": "8"}
    assert _configs(world, "orders") == expected, "what was set here, and did not change there, stays"
    assert world.api.linked[0].configs == {"retention.ms": "6", "segment.ms": "70", "retention.bytes": "8"}
    head = len(world.api.log)
    await world.look()
    assert len(world.api.log) == head


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_copy_is_deleted_as_at_its_source_only_where_the_link_says_so(world: World, is_allowed: bool) -> None:
    for name in ("orders", "orders-again", "orders-kept"):
        world.add_copy(name)
        world.made_from(name, 7, {})
    world.denied = set() if is_allowed else {"orders", "orders-again"}
    world.api.linked[2] = world.api.linked[2]._replace(promotion=Promotion.ASKED)
    for name in ("orders", "orders-kept"):
        world.api.find(name, 0, configs={}, problem=GONE)
    world.api.find("orders-again", 1, configs={}, source=8)
    await world.look()
    assert sorted(world.api.topics.values()) == ["orders", "orders-again", "orders-kept"], "not by default"
    world.api.add_link(link__delete__topics="true")
    await world.look()
    await world.follower.catch_up()
    kept = ["orders-kept"] if is_allowed else ["orders", "orders-again", "orders-kept"]
    assert sorted(world.api.topics.values()) == kept, "not one that is to be promoted"


async def test_groups_are_judged_by_the_rights_of_their_links_creator(world: World) -> None:
    world.denied = {"secret"}
    found = LinkedGroup("old", "app", "classic", "Stable", None, 0, 0, 0, 0, 0, 0)
    share, of_no_link = found._replace(group_id="queue", kind="share"), found._replace(link="gone")
    world.api.groups_found = [found, found._replace(group_id="secret"), share, of_no_link]
    await world.look()
    assert [each.refusal for each in world.api.groups_found] == ["", "may not READ", NO_OFFSETS, None]
    came = found._replace(group_id="came", came_ms=5, behind=99, refusal="")
    world.api.groups_found += [came, found._replace(group_id="slow", behind=7, refusal="")]
    await world.look()
    shown = [
        world.registry.get_sample_value("headrace_links_groups", {"link": "old", "state": state})
        for state in ("following", "here", "refused")
    ]
    assert shown == [2, 1, 2]
    assert world.metric("groups_behind_records") == 7
    del world.api.groups_found[-2:]
    world.denied = set()
    await world.look()
    assert [each.refusal for each in world.api.groups_found] == ["", "", NO_OFFSETS, None]
