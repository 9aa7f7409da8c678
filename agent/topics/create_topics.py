"""CreateTopics (key 19, versions 2-7).

Place: request fields to topic_creation and back.
Invariant: each topic gets a separate result; a refused topic does not affect the others.
Source: KIP-4, KIP-464 (-1 for defaults), KIP-525 (configs in the response), KIP-516 (topic ids).
"""

from __future__ import annotations

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreatableTopicConfigs, CreatableTopicResult
from kio.schema.errors import ErrorCode

from headrace.agent.access.quotas.mutations import MESSAGE, MutationQuotas, unlimited
from headrace.agent.limits.refusal_log import RefusalLog
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import AcceptedTopic, Judgement, TopicRefusal, WantedTopic
from headrace.config.topic_configs import TOPIC_CONFIGS
from headrace.metastore.log.effective_configs import ConfigSource, EffectiveConfigs, shown_layers
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

OVER_QUOTA = TopicRefusal(ErrorCode.throttling_quota_exceeded, MESSAGE)


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
