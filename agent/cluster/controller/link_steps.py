"""The step "linked topics" of the active controller: copies are created, grow and are promoted; and how far they are.

Place: a row of controller.py's table. Workers say what the sources have (compactor/links); requests ask for
promotions (agent/topics/links.py); `plan` is pure.
Invariant: the step is planned from the newest image and from what the metastore says, and each change is made at the
image's offset under the controller epoch: a controller that takes over continues by looking again. A topic is created
with the rights of the principal who created its link, as they are at that moment. A name that an ordinary topic has
is never taken over. What is not copied is noted with the reason, which `headrace link show` shows.
One topic is promoted per transaction; the metastore checks once more that it is ready.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.cluster.controller.link_following import (
    OTHER_SOURCE,
    LinkJudge,
    WantedCopy,
    due_configs,
    due_deletions,
    judged_groups,
    wanted_configs,
)
from headrace.agent.cluster.controller.rounds import ControllerStep
from headrace.agent.cluster.follower import MetadataFollower
from headrace.config.link_configs import CREATOR, LINK_NAME, TopicFilter, is_paused, value_of
from headrace.metastore.api.linked_groups import LinkedGroup
from headrace.metastore.api.links import (
    FoundTopic,
    LinkedGrowth,
    LinkedProgress,
    LinkedTopic,
    LinkSource,
    NewLinkedTopic,
    Promotion,
    linked_epoch,
)
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.link_lag import NEVER, summed
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
CREATED_PER_LOOK = 50
PROMOTED_PER_LOOK = 20
TAKEN = "a topic of this name is here already, and is no copy"


NewId = Callable[[], uuid.UUID]


class LinkPlan(NamedTuple):
    """What is due."""

    created: list[NewLinkedTopic]
    grown: list[LinkedGrowth]
    refused: list[FoundTopic]
    """Found topics with the reason as their problem."""


class LinksOfImage:
    """Judges whether there are links; looks again only when configs changed."""

    def __init__(self) -> None:
        self._seen: object = None
        self._links: dict[str, Mapping[str, str]] = {}

    def __call__(self, image: MetadataImage) -> dict[str, Mapping[str, str]]:
        """Return the configs of each link."""
        if image.configs is not self._seen:
            self._seen, self._links = image.configs, image.links
        return self._links


def plan(
    image: MetadataImage,
    found: Sequence[FoundTopic],
    sources: Mapping[str, uuid.UUID],
    judge: LinkJudge,
    new_id: NewId,
) -> LinkPlan:
    """Judge what workers found. `sources`: the source's topic id of each copy, by the copy's name."""
    links = image.links
    filters = {name: TopicFilter(configs) for name, configs in links.items() if not is_paused(configs)}
    wanted: dict[str, FoundTopic] = {}
    grown, refused = list[LinkedGrowth](), list[FoundTopic]()
    for each in found:
        if each.problem or each.link not in filters or not filters[each.link].matches(each.name):
            continue
        topic = image.topics_by_name.get(each.name)
        if topic is not None:
            judged = _judge_existing(image, topic, each, sources)
            grown += [judged] if isinstance(judged, LinkedGrowth) else []
            refused += [each._replace(problem=judged)] if isinstance(judged, str) else []
        elif each.name in wanted:
            refused.append(each._replace(problem=f"link '{wanted[each.name].link}' copies a topic of this name"))
        elif len(wanted) < CREATED_PER_LOOK:
            wanted[each.name] = each
    asked = [(each, _new_topic(image, each, new_id)) for each in wanted.values()]
    reasons = judge.why_not(image, [WantedCopy(value_of(links[each.link], CREATOR), topic) for each, topic in asked])
    created = list[NewLinkedTopic]()
    for (each, copied), reason in zip(asked, reasons, strict=True):
        if reason is None:
            linked = copied._replace(configs={**copied.configs, LINK_NAME: each.link})
            created.append(NewLinkedTopic(linked, each.link, each.source_id, linked_epoch(each.leader_epoch)))
        else:
            refused.append(each._replace(problem=reason))
    return LinkPlan(created, grown, refused)


def _judge_existing(
    image: MetadataImage, topic: TopicImage, found: FoundTopic, sources: Mapping[str, uuid.UUID]
) -> LinkedGrowth | str | None:
    """Return the growth of a copy, or why the found topic is not copied; None if it is, as it should be."""
    link = image.link_of(topic.name)
    if link != found.link:
        return f"link '{link}' copies a topic of this name" if link else TAKEN
    if topic.name in sources and sources[topic.name] != found.source_id:
        return OTHER_SOURCE
    if found.partition_count <= topic.partition_count:
        return None
    return LinkedGrowth(topic.topic_id, topic.partition_count, found.partition_count, linked_epoch(found.leader_epoch))


def _new_topic(image: MetadataImage, found: FoundTopic, new_id: NewId) -> NewTopic:
    """The copy, without `link.name`."""
    return NewTopic(found.name, new_id(), found.partition_count, wanted_configs(image, found))


def due_promotions(progress: Sequence[LinkedProgress]) -> list[tuple[str, uuid.UUID]]:
    """The topics to promote now, by name and id: all partitions are ready, or it is forced."""
    topics = defaultdict[tuple[str, uuid.UUID], list[LinkedProgress]](list)
    for each in progress:
        if each.promotion is not Promotion.NONE:
            topics[each.topic, each.topic_id].append(each)
    return [
        topic
        for topic, partitions in topics.items()
        if all(each.is_ready or each.promotion is Promotion.FORCED for each in partitions)
    ]


class LinkSteps:
    """What the step does; one per candidate."""

    def __init__(
        self,
        metastore: Metastore,
        follower: MetadataFollower,
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry,
        judge: LinkJudge,
    ) -> None:
        self._metastore, self._api, self._follower = metastore, metastore.links, follower
        self._judge, self._rng = judge, rng
        self._metrics = LinkGauges(clock, registry)
        self._links = LinksOfImage()
        self.stand_by = self._metrics.clear

    def judge(self, image: MetadataImage) -> dict[str, Mapping[str, str]]:
        """Return the links; without one nothing is shown."""
        if not (links := self._links(image)):
            self._metrics.clear()
        return links

    def step(self) -> ControllerStep[Any]:
        """Return the row of the controller's table."""
        return ControllerStep("linked topics", self.judge, self.keep, lambda: LOOK_SECONDS, self.stand_by, is_long=True)

    async def keep(self, epoch: int, image: MetadataImage, links: Mapping[str, Mapping[str, str]]) -> bool:
        """Create, grow and promote what is due, and show how far the links are. True: there may be more."""
        progress = await self._api.linked_progress()
        self._metrics.show(links, await self._api.link_sources(), progress)
        found, linked = await self._api.found_topics(), await self._api.linked_topics()
        planned = await self._plan(image, found, linked)
        await self._note(planned.refused)
        if planned.created:
            if await self._api.create_linked_topics(epoch, image.offset, planned.created):
                first = planned.created[0].topic.name
                logger.info("linked topics created: topics=%d first=%s", len(planned.created), first)
            image = await self._follower.catch_up()
        if planned.grown and await self._api.grow_linked_topics(epoch, image.offset, planned.grown):
            logger.info("linked topics grew: topics=%d", len(planned.grown))
        await self._follow(epoch, found, linked)
        promoted = await self._promote(epoch, due_promotions(progress))
        return len(planned.created) == CREATED_PER_LOOK or promoted == PROMOTED_PER_LOOK

    async def _plan(self, image: MetadataImage, found: Sequence[FoundTopic], linked: Sequence[LinkedTopic]) -> LinkPlan:
        sources = {topic.name: topic.source_id for topic in linked}
        return plan(image, found, sources, self._judge, self._new_id)

    async def _follow(self, epoch: int, found: Sequence[FoundTopic], linked: Sequence[LinkedTopic]) -> None:
        """Let configs and deletions follow, and judge groups."""
        image = await self._follower.catch_up()
        due = due_configs(image, found, linked)
        if due.records and await self._metastore.cluster.append_records(
            image.offset, due.records, controller_epoch=epoch
        ):
            logger.info("configs of linked topics follow their sources: configs=%d", len(due.records))
        elif due.records:
            return
        if due.noted:
            await self._api.note_linked_configs(due.noted)
        image = await self._follower.catch_up() if due.records else image
        gone = due_deletions(image, found, linked, self._judge)
        if gone and await self._metastore.topics.delete_topics(image.offset, [topic.topic_id for topic in gone]):
            logger.warning("linked topics deleted as at their sources: topics=%s", [topic.name for topic in gone])
        groups = await self._metastore.linked_groups.linked_groups()
        self._metrics.show_groups(groups)
        if judged := judged_groups(image, groups, self._judge):
            links, group_ids, refusals = zip(*judged, strict=True)
            await self._metastore.linked_groups.note_group_refusals(links, group_ids, refusals)

    async def _note(self, refused: Sequence[FoundTopic]) -> None:
        if refused:
            names, links, problems = zip(*((each.name, each.link, each.problem) for each in refused), strict=True)
            await self._api.note_refused_topics(names, links, problems)

    async def _promote(self, epoch: int, due: Sequence[tuple[str, uuid.UUID]]) -> int:
        for name, topic_id in due[:PROMOTED_PER_LOOK]:
            image = await self._follower.catch_up()
            if topic_id not in image.topics_by_id or not image.link_of(name):
                continue
            if await self._api.promote_topics(epoch, image.offset, [topic_id], [name]):
                logger.info("linked topic promoted: topic=%s topic_id=%s", name, topic_id)
        return min(len(due), PROMOTED_PER_LOOK)

    def _new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)


class LinkGauges:
    """How far the links are, on the active controller; elsewhere nothing."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._lag = Gauge(
            "headrace_links_lag_records",
            "Offsets that the copies of a link lack, as of the last look at its source, on the active controller",
            ["link"],
            registry=registry,
        )
        self._bytes = Gauge(
            "headrace_links_lag_bytes",
            "Bytes that a link has to copy, by the mean size of a copied record, on the active controller",
            ["link"],
            registry=registry,
        )
        self._seconds = Gauge(
            "headrace_links_lag_seconds",
            "Longest time since a copy of a link had all that its source had, on the active controller",
            ["link"],
            registry=registry,
        )
        self._backlog = Gauge(
            "headrace_links_copying_partitions",
            "Partitions of a link that never had all that their source had, on the active controller",
            ["link"],
            registry=registry,
        )
        self._problems = Gauge(
            "headrace_links_problems",
            "Partitions of a link that are not copied, and 1 if its source is away, on the active controller",
            ["link"],
            registry=registry,
        )
        self._lost = Gauge(
            "headrace_links_lost_records",
            "Offsets that the source of a link no longer had when they were to be copied, on the active controller",
            ["link"],
            registry=registry,
        )
        self._groups = Gauge(
            "headrace_links_groups",
            "Groups that a link names; here: they came; refused: they are not copied, on the active controller",
            ["link", "state"],
            registry=registry,
        )
        self._groups_behind = Gauge(
            "headrace_links_groups_behind_records",
            "Largest sum of what the offsets of a group here are behind those at the source, of groups that have not"
            " come here, on the active controller",
            ["link"],
            registry=registry,
        )
        self._all = (
            self._lag,
            self._bytes,
            self._seconds,
            self._backlog,
            self._problems,
            self._lost,
            self._groups,
            self._groups_behind,
        )

    def clear(self) -> None:
        """Show nothing."""
        for each in self._all:
            each.clear()

    def show(
        self,
        links: Mapping[str, Mapping[str, str]],
        sources: Sequence[LinkSource],
        progress: Sequence[LinkedProgress],
    ) -> None:
        """Replace the previous values. A paused link shows no lag in time: it is meant to stay behind."""
        self.clear()
        now_ms = self._clock.wall_ms()
        away = {source.link for source in sources if source.problem}
        by_link = defaultdict[str, list[LinkedProgress]](list)
        for each in progress:
            by_link[each.link].append(each)
        for name, configs in links.items():
            current = [each for each in by_link[name] if each.current_ms]
            sums, followed = summed(by_link[name], now_ms), summed(current, now_ms)
            self._lag.labels(name).set(sums.lag)
            self._bytes.labels(name).set(sums.lag_bytes)
            seconds = 0 if is_paused(configs) or followed.lag_ms == NEVER else followed.lag_ms / 1000
            self._seconds.labels(name).set(seconds)
            self._backlog.labels(name).set(len(by_link[name]) - len(current))
            self._problems.labels(name).set(sums.problems + (name in away))
            self._lost.labels(name).set(sums.lost)

    def show_groups(self, groups: Sequence[LinkedGroup]) -> None:
        """Add the groups of links."""
        behind: dict[str, int] = {}
        for each in groups:
            state = "refused" if each.refusal else "here" if each.came_ms else "following"
            self._groups.labels(each.link, state).inc()
            if state == "following":
                behind[each.link] = max(each.behind, behind.get(each.link, 0))
        for link, most in behind.items():
            self._groups_behind.labels(link).set(most)
