"""CreateTopics and DeleteTopics."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.errors import ErrorCode

from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.apis.shared_rules import TABLE_NAMES, foreign_tables
from headrace.agent.topics.create_topics import CreateTopics
from headrace.agent.topics.delete_topics import DeleteTopics
from headrace.metastore.log.image import TopicImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Response

_TOPIC = AclResource.TOPIC
_DENIED = FAILED[_TOPIC]
_CONFIGS_SHOWN_FROM = 5
"""The version of CreateTopics from which on its answer shows configs."""


def _create(ask: GatedRequest) -> Awaitable[Response]:
    """CREATE on the cluster or on the topic; the answer shows configs only with DESCRIBE_CONFIGS."""
    everywhere = ask.access.allows(AclOperation.CREATE, AclResource.CLUSTER)

    def may_create(topic: CreatableTopic) -> bool:
        if everywhere:
            return True
        names = [topic.name, *foreign_tables(ask, topic.name, topic.configs)]
        return all(ask.allows(AclOperation.CREATE, _TOPIC, name) for name in names)

    def without_configs(entity: CreateTopicsResponse) -> CreateTopicsResponse:
        return dataclasses.replace(entity, topics=tuple(map(_shown_to(ask), entity.topics)))

    change = without_configs if ask.request.api_version >= _CONFIGS_SHOWN_FROM else _unchanged
    return split(ask, "topics", "topics", may_create, lambda topic: ask.refused("topics", topic, _DENIED), change)


def _shown_to(ask: GatedRequest) -> Callable[[Any], Any]:
    def shown(topic: Any) -> Any:
        if topic.error_code or ask.access.allows(AclOperation.DESCRIBE_CONFIGS, _TOPIC, topic.name):
            return topic
        return dataclasses.replace(
            topic, topic_config_error_code=int(_DENIED), num_partitions=-1, replication_factor=-1, configs=()
        )

    return shown


def _unchanged(entity: Any) -> Any:
    return entity


def _delete(ask: GatedRequest) -> Awaitable[Response]:
    """DELETE on the cluster or on the topic. Without DESCRIBE an answer does not say whether a topic exists."""
    if ask.access.allows(AclOperation.DELETE, AclResource.CLUSTER):
        return ask.pass_on()
    if hasattr(ask.entity, "topic_names"):
        refusals = {name: _why_not_deleted(ask, ask.image.topics_by_name.get(name), name) for name in _names(ask)}
        return split(
            ask,
            "topic_names",
            "responses",
            lambda name: refusals[name] is None,
            lambda name: ask.refused("responses", name, refusals[name] or ErrorCode.none),
        )
    wanted = [(topic, ask.image.topics_by_id.get(topic.topic_id)) for topic in ask.entity.topics]
    if not ask.is_caught_up and any(each.name is None and found is None for each, found in wanted):
        return ask.after_catching_up(_delete)
    judged = {id(each): _judged(ask, each, found) for each, found in wanted}
    return split(ask, "topics", "responses", lambda topic: judged[id(topic)] is None, lambda topic: judged[id(topic)])


def _names(ask: GatedRequest) -> tuple[str, ...]:
    names: tuple[str, ...] = ask.entity.topic_names
    return names


def _why_not_deleted(ask: GatedRequest, topic: TopicImage | None, name: str) -> ErrorCode | None:
    if not ask.allows(AclOperation.DESCRIBE, _TOPIC, name):
        return _DENIED
    if ask.allows(AclOperation.DELETE, _TOPIC, name):
        return None
    return _DENIED if topic is not None else ErrorCode.unknown_topic_or_partition


def _judged(ask: GatedRequest, asked: DeleteTopicState, found: TopicImage | None) -> Any:
    """The answer to one element of version 6; None if it may be deleted, or is malformed."""
    if asked.name is not None:
        code = _why_not_deleted(ask, ask.image.topics_by_name.get(asked.name), asked.name)
        if code is None or asked.topic_id is not None:
            return None  # with both, the handler refuses it
        return ask.refused("responses", asked, code)
    if found is None:
        return ask.refused("responses", asked, ErrorCode.unknown_topic_id)
    if ask.allows(AclOperation.DELETE, _TOPIC, found.name):
        return None
    refused = ask.refused("responses", asked, _DENIED)
    return dataclasses.replace(refused, name=found.name) if _is_seen(ask, found.name) else refused


def _is_seen(ask: GatedRequest, name: str) -> bool:
    return ask.access.allows(AclOperation.DESCRIBE, _TOPIC, name)


@of_entities
def topics(request: CreateTopicsRequest, response: CreateTopicsResponse) -> Iterator[Change]:
    for topic in response.topics:
        yield Change(f"TOPIC:{topic.name}", topic.error_code)


@of_entities
def deleted_topics(request: DeleteTopicsRequest, response: DeleteTopicsResponse) -> Iterator[Change]:
    for topic in response.responses:
        named = topic.name if topic.name is not None else f"id={topic.topic_id}"
        yield Change(f"TOPIC:{named}", topic.error_code)


_OR_CLUSTER = "or on the cluster"
TOPIC_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.CREATE_TOPICS: ApiRow(
        lambda of: CreateTopics(of.creation, of.configs, of.mutations),
        Rule(
            _create,
            (
                Check(AclOperation.CREATE, _TOPIC, _DENIED, f"each topic; {_OR_CLUSTER}"),
                Check(AclOperation.CREATE, _TOPIC, _DENIED, f"{TABLE_NAMES}; {_OR_CLUSTER}"),
                Check(AclOperation.DESCRIBE_CONFIGS, _TOPIC, None, "configs in the answer"),
            ),
        ),
        topics,
    ),
    ApiKey.DELETE_TOPICS: ApiRow(
        lambda of: DeleteTopics(of.cluster, of.metastore.topics, of.clock, of.mutations),
        Rule(
            _delete,
            (
                Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, "each topic"),
                Check(AclOperation.DELETE, _TOPIC, _DENIED, f"each topic; {_OR_CLUSTER}"),
            ),
        ),
        deleted_topics,
    ),
}
