"""Links in memory, next to the metadata log of FakeClusterApi: what workers found, what the controller makes of it.

Place: for tests of the request LINKS and of the controller's step. What fails is said as in FakeClusterApi.
Differs from the metastore: no record of a partition's content; `progress` is what a test says.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.config.link_configs import LINK_RESOURCE
from headrace.metastore.api.agents import CLUSTER_LINKS, METADATA_FORMAT
from headrace.metastore.api.linked_groups import LinkedGroup
from headrace.metastore.api.links import (
    FoundTopic,
    LinkedGrowth,
    LinkedProgress,
    LinkedTopic,
    LinkSource,
    NewLinkedTopic,
    Promotion,
)
from headrace.metastore.log.kip631_records import ConfigRecord, FeatureLevelRecord
from tests.agent.cluster.fake_cluster_api import FakeClusterApi


@dataclass
class FakeLinkApi(FakeClusterApi):
    """One metastore with links; share it between the processes of a test."""

    found: list[FoundTopic] = field(default_factory=list)
    sources: list[LinkSource] = field(default_factory=list)
    progress: list[LinkedProgress] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    asked: dict[uuid.UUID, Promotion] = field(default_factory=dict)
    grown: list[LinkedGrowth] = field(default_factory=list)
    created: list[NewLinkedTopic] = field(default_factory=list)
    promoted: list[str] = field(default_factory=list)
    linked: list[LinkedTopic] = field(default_factory=list)
    groups_found: list[LinkedGroup] = field(default_factory=list)
    not_ready: set[uuid.UUID] = field(default_factory=set)
    """Topics that the metastore does not promote."""

    # -- what tests do manually

    def add_feature(self) -> None:
        for name, level in ((METADATA_FORMAT, 4), (CLUSTER_LINKS, 1)):
            self.append(FeatureLevelRecord(name=name, min_feature_level=1, max_feature_level=level))

    def add_link(self, name: str = "old", **configs: str) -> None:
        """Add a link. In names of configs, __ means a point."""
        given = {"bootstrap.servers": "kafka:9092", "topics": "orders.*", "link.creator": "User:alice"}
        given |= {key.replace("__", "."): value for key, value in configs.items()}
        self.append(
            *(
                ConfigRecord(resource_type=LINK_RESOURCE, resource_name=name, name=key, value=value)
                for key, value in given.items()
            )
        )

    def find(self, name: str, partitions: int = 2, *, link: str = "old", source: int = 7, **more: Any) -> None:
        """Note that a worker found the topic at the source."""
        values: dict[str, Any] = {"leader_epoch": 3, "configs": {"retention.ms": "1000"}} | more
        self.found = [each for each in self.found if (each.link, each.name) != (link, name)]
        self.found.append(FoundTopic(link, name, uuid.UUID(int=source), partitions, **values))

    def copy(self, topic: str, index: int = 0, *, link: str = "old", **more: Any) -> None:
        """Note how far a partition is; by default it has all that the source has."""
        topic_id = next((topic_id for topic_id, name in self.topics.items() if name == topic), uuid.UUID(int=1))
        values: dict[str, Any] = {
            "log_start_offset": 0, "high_watermark": 100, "source_start": 0, "source_end": 100, "source_stable": 100,
            "seen_ms": 999_000, "current_ms": 999_000, "copied_bytes": 1_000, "lost": 0, "promotion": Promotion.NONE,
            "is_ready": False, "problem": "",
        } | more  # fmt: skip
        self.progress.append(
            LinkedProgress(
                link=link, topic=topic, topic_id=topic_id, partition_index=index, partition_key=index, **values
            )
        )

    # -- agents and tools

    async def found_topics(self) -> list[FoundTopic]:
        await self._begin("found_topics")
        return self.found

    async def link_sources(self) -> list[LinkSource]:
        return self.sources

    async def linked_progress(self) -> list[LinkedProgress]:
        await self._begin("linked_progress")
        return self.progress

    async def forget_link(self, link: str) -> None:
        self.forgotten.append(link)
        self.found = [each for each in self.found if each.link != link]

    async def ask_promotion(self, topic_ids: Sequence[uuid.UUID], *, force: bool) -> int:
        self.asked |= dict.fromkeys(topic_ids, Promotion.FORCED if force else Promotion.ASKED)
        return len(topic_ids)

    # -- the controller

    async def linked_topics(self) -> list[LinkedTopic]:
        return [topic for topic in self.linked if topic.topic_id in self.topics]

    async def note_linked_configs(self, configs: Mapping[uuid.UUID, Mapping[str, str]]) -> None:
        await self._begin("note_linked_configs")
        self.linked = [
            topic._replace(configs=dict(configs.get(topic.topic_id, topic.configs or {}))) for topic in self.linked
        ]

    async def linked_groups(self) -> list[LinkedGroup]:
        return self.groups_found

    async def note_group_refusals(
        self, links: Sequence[str], group_ids: Sequence[str], refusals: Sequence[str]
    ) -> None:
        noted = dict(zip(zip(links, group_ids, strict=True), refusals, strict=True))
        self.groups_found = [
            each._replace(refusal=noted.get((each.link, each.group_id), each.refusal)) for each in self.groups_found
        ]

    async def note_refused_topics(self, names: Sequence[str], links: Sequence[str], problems: Sequence[str]) -> None:
        await self._begin("note_refused_topics")
        noted = dict(zip(zip(links, names, strict=True), problems, strict=True))
        self.found = [each._replace(problem=noted.get((each.link, each.name), each.problem)) for each in self.found]

    async def create_linked_topics(
        self, controller_epoch: int, expected_head: int, topics: Sequence[NewLinkedTopic]
    ) -> bool:
        await self._begin("create_linked_topics")
        self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return False
        for each in topics:
            self._append_topic(each.topic)
            self.created.append(each)
            for index in range(each.topic.partition_count):
                self.copy(each.topic.name, index, link=each.link, high_watermark=0)
        self._end("create_linked_topics")
        return True

    async def grow_linked_topics(
        self, controller_epoch: int, expected_head: int, growths: Sequence[LinkedGrowth]
    ) -> bool:
        await self._begin("grow_linked_topics")
        self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return False
        for each in growths:
            self.add_partitions(each.topic_id, each.first_index, each.partition_count)
            self.grown.append(each)
        return True

    async def promote_topics(
        self, controller_epoch: int, expected_head: int, topic_ids: Sequence[uuid.UUID], names: Sequence[str]
    ) -> bool:
        await self._begin("promote_topics")
        self._require_controller(controller_epoch)
        if not self._compare(expected_head) or self.not_ready & set(topic_ids):
            return False
        for name in names:
            self.append(ConfigRecord(resource_type=2, resource_name=name, name="link.name", value=None))
        self.promoted += names
        self.progress = [each for each in self.progress if each.topic not in names]
        self._end("promote_topics")
        return True
