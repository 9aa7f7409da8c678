"""Creates topics: decided on an image, appended only if the log still ends there.

Place: under CreateTopics (key 19, versions 2-7), and under Metadata for automatic creation.
Invariant: compare and append. If the log changed meanwhile, everything is checked again on the newer
image, so two agents never create the same name twice. A topic's id is drawn once per request: an append
with a lost response is recognised by the id. Each topic gets a separate result; a refused topic does not affect the
others.
Source: KIP-4, KIP-464 (-1 for defaults), KIP-525 (configs in the response), KIP-516 (topic ids).
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreatableTopicConfigs, CreatableTopicResult
from kio.schema.errors import ErrorCode

from headrace.agent.access.quotas.enforcement import MESSAGE, MutationQuotas, unlimited
from headrace.agent.cluster.log_change import LOG_KEPT_CHANGING, Appends
from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.streams.topology import InternalTopic
from headrace.agent.limits.refusal_log import RefusalLog
from headrace.agent.topics.topic_rules import (
    USE_DEFAULT,
    AcceptedTopic,
    Judgement,
    TopicDefaults,
    TopicRefusal,
    WantedTopic,
    judge,
)
from headrace.config.link_configs import matches
from headrace.config.topic_configs import TOPIC_CONFIGS
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.log.effective_configs import ConfigSource, EffectiveConfigs, shown_layers
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.clock import Clock
from headrace.storage.errors import OutcomeUnknownError, UnavailableError


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """Creates topics through the metastore."""

    cluster: ClusterView
    api: TopicApi
    clock: Clock
    rng: random.Random
    defaults: Callable[[], TopicDefaults]
    on_limit: Callable[[str], None] = lambda _: None
    """Called with the name of a setting that refuses topics."""

    def new_topic_id(self) -> uuid.UUID:
        """A random id, as in Kafka."""
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    async def create(
        self,
        wanted: Sequence[WantedTopic],
        *,
        deadline: float,
        validate_only: bool = False,
        is_automatic: bool = False,
    ) -> list[Judgement]:
        """One judgement per wanted topic, in order; `deadline` in seconds of the clock's monotonic().

        Created topics are in the image when this returns. A topic that could be neither created nor
        refused in time is refused with REQUEST_TIMED_OUT.
        """
        appends = Appends(self.cluster, self.clock, deadline)
        defaults = self.defaults().for_automatic_creation() if is_automatic else self.defaults()
        try:
            while True:
                image = await self.cluster.catch_up()
                judgements = judge(wanted, image, defaults)
                if is_automatic:
                    judgements = [
                        _awaited(image, topic.name) or judged for topic, judged in zip(wanted, judgements, strict=True)
                    ]
                missing = [judged.topic for judged in judgements if _is_missing(judged, image)]
                if not missing or validate_only:
                    for limit in {judged.limit for judged in judgements if isinstance(judged, TopicRefusal)} - {""}:
                        self.on_limit(limit)
                    return judgements
                if not appends.may_go_on:
                    return self._give_up(wanted, LOG_KEPT_CHANGING)
                appends.begin()
                with contextlib.suppress(OutcomeUnknownError):  # the next image shows whether it has these ids
                    if not await self.api.create_topics(image.offset, missing):
                        await appends.came_late()
        except UnavailableError as error:
            return self._give_up(wanted, str(error))

    def _give_up(self, wanted: Sequence[WantedTopic], reason: str) -> list[Judgement]:
        image = self.cluster.image
        late = TopicRefusal(ErrorCode.request_timed_out, reason)
        return [late if _is_missing(judged, image) else judged for judged in judge(wanted, image, self.defaults())]


def _awaited(image: MetadataImage, name: str) -> TopicRefusal | None:
    """Return why a topic is not created by itself: a link copies one of this name, as soon as its source has it."""
    if name in image.topics_by_name:
        return None
    for link, configs in image.links.items() if image.has_cluster_links else ():
        if matches(configs, name):
            message = f"link '{link}' copies a topic of this name: it is not created automatically"
            return TopicRefusal(ErrorCode.unknown_topic_or_partition, message)
    return None


def _is_missing(judged: Judgement, image: MetadataImage) -> TypeGuard[AcceptedTopic]:
    return isinstance(judged, AcceptedTopic) and judged.topic.topic_id not in image.topics_by_id


OVER_QUOTA = TopicRefusal(ErrorCode.throttling_quota_exceeded, MESSAGE)


CREATE_FOR_GROUP_SECONDS = 30.0


class CreateForGroup:
    """Creates what a streams group misses, as its client's own CreateTopics would. A CreateInternal of
    agent/groups/streams/internal_topics.py.
    """

    def __init__(self, creation: TopicCreation, mutations: MutationQuotas = unlimited) -> None:
        self._creation, self._mutations = creation, mutations

    async def __call__(self, request: Request, topics: Sequence[InternalTopic]) -> Mapping[str, str]:
        quota, failed = self._mutations(request), dict[str, str]()
        wanted = []
        for topic in topics:
            if quota.admits(topic.partition_count):
                factor = topic.replication_factor or USE_DEFAULT
                new_id = self._creation.new_topic_id()
                wanted.append(WantedTopic(topic.name, new_id, topic.partition_count, factor, configs=topic.configs))
            else:
                failed[topic.name] = OVER_QUOTA.message
        deadline = self._creation.clock.monotonic() + CREATE_FOR_GROUP_SECONDS
        judgements = await self._creation.create(wanted, deadline=deadline)
        for asked, judged in zip(wanted, judgements, strict=True):
            if isinstance(judged, TopicRefusal):
                failed[asked.name] = judged.message
        return failed


class CreateTopics:
    """Create topics, with their configs and partition counts."""

    def __init__(
        self, creation: TopicCreation, configs: EffectiveConfigs, mutations: MutationQuotas = unlimited
    ) -> None:
        self._creation, self._mutations = creation, mutations
        self._effective = configs
        self._refusals = RefusalLog()

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, CreateTopicsRequest)
        wanted = [self._wanted(topic) for topic in entity.topics]
        quota = unlimited(request) if entity.validate_only else self._mutations(request)
        is_admitted = [quota.admits(self._partition_count(topic)) for topic in wanted]
        created = await self._creation.create(
            [topic for topic, admitted in zip(wanted, is_admitted, strict=True) if admitted],
            deadline=request.received_at + entity.timeout.total_seconds(),
            validate_only=entity.validate_only,
        )
        following = iter(created)
        judgements = [next(following) if admitted else OVER_QUOTA for admitted in is_admitted]
        for topic, judged in zip(wanted, judgements, strict=True):
            if isinstance(judged, TopicRefusal) and judged.code is ErrorCode.invalid_config:
                self._refusals.refused(request, f"topic {topic.name}: {judged.message}")
        topics = tuple(
            self._result(schema, topic.name, judged, entity.validate_only)
            for topic, judged in zip(wanted, judgements, strict=True)
        )
        return quota.throttle(reply(request, schema.response(topics=topics)))

    def _partition_count(self, topic: WantedTopic) -> int:
        """Return what it will have, if it is created."""
        if topic.assignments:
            return len(topic.assignments)
        return topic.partition_count if topic.partition_count > 0 else self._creation.defaults().partition_count

    def _wanted(self, topic: CreatableTopic) -> WantedTopic:
        return WantedTopic(
            name=topic.name,
            topic_id=self._creation.new_topic_id(),
            partition_count=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=[(a.partition_index, a.broker_ids) for a in topic.assignments],
            configs=[(config.name, config.value) for config in topic.configs],
        )

    def _result(self, schema: Schema, name: str, judged: Judgement, validate_only: bool) -> CreatableTopicResult:
        match judged:
            case TopicRefusal(code, message):
                return schema.make(
                    CreatableTopicResult, name=name, topic_id=None, error_code=code, error_message=message, configs=()
                )
            case AcceptedTopic(topic, replication_factor):
                return schema.make(
                    CreatableTopicResult,
                    name=name,
                    topic_id=None if validate_only else topic.topic_id,
                    error_code=ErrorCode.none,
                    error_message=None,
                    num_partitions=topic.partition_count,
                    replication_factor=replication_factor,
                    configs=self._configs(schema, topic.configs),
                )

    def _configs(self, schema: Schema, given: dict[str, str]) -> tuple[CreatableTopicConfigs, ...]:
        if schema.version < 5:
            return ()
        return tuple(self._config(schema, name, given.get(name)) for name in TOPIC_CONFIGS)

    def _config(self, schema: Schema, name: str, given: str | None) -> CreatableTopicConfigs:
        layer = shown_layers(self._effective.topic_layers(self._creation.cluster.image, None, name))[0]
        return schema.make(
            CreatableTopicConfigs,
            name=name,
            value=layer.value if given is None else given,
            read_only=False,
            config_source=layer.source if given is None else ConfigSource.TOPIC,
            is_sensitive=False,
        )
