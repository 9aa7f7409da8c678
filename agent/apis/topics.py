"""The APIs about topics as such: creation, deletion, partition counts, configs.

Place: rows of all_apis.py. They include Headrace's own SetPartitionCount and ScaleTopic. Configs are asked for by
the resource's type, which says what is asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse

from headrace.agent.access.audit import Change, of_entities
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.access.authorization.rule import (
    FAILED,
    Check,
    GatedRequest,
    Rule,
    Serve,
    by_name,
    each,
    split,
    whole,
)
from headrace.agent.apis.api_row import TABLE_NAMES, ApiRow, foreign_tables
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.peers.forwarding.forwarding import of_brokers
from headrace.agent.topics.configs.change_requests import AlterConfigs, IncrementalAlterConfigs, ListConfigResources
from headrace.agent.topics.configs.describe import DescribeConfigs
from headrace.agent.topics.counts.count_changes import CreatePartitions, SetPartitionCount
from headrace.agent.topics.counts.scaling import ScaleTopic, TopicDoubling, TopicHalving
from headrace.agent.topics.deletions import DeleteTopics
from headrace.agent.topics.topic_creation import CreateTopics
from headrace.metastore.log.image import TopicImage
from headrace.protocol.answers import message_of
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.own_requests import (
    GROUPS_OF_MESSAGE,
    SCALE_TOPIC_KEY,
    SET_PARTITION_COUNT_KEY,
    CountResponse,
    ScaleResponse,
    ScaleStep,
    ShownReader,
    decode_count_request,
    decode_scale_request,
    encode_count_response,
    encode_scale_response,
    some_groups,
)
from headrace.protocol.request import Request, RequestHandler, Response

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC


def _count(ask: GatedRequest) -> Awaitable[Response]:
    if ask.allows(AclOperation.ALTER, _TOPIC, decode_count_request(ask.request.body).topic):
        return ask.pass_on()
    code = FAILED[_TOPIC]
    return ask.answer_raw(encode_count_response(ask.request.correlation_id, CountResponse(int(code), message_of(code))))


def _scale(ask: GatedRequest) -> Awaitable[Response]:
    """Judge ScaleTopic: to look needs less than to change. Groups are shown to who may describe them."""
    asked = decode_scale_request(ask.request.body)
    operation = AclOperation.DESCRIBE if asked.step is ScaleStep.LOOK else AclOperation.ALTER
    if ask.allows(operation, _TOPIC, asked.topic):
        return _scaled(ask)
    code = FAILED[_TOPIC]
    return ask.answer_raw(encode_scale_response(ask.request.correlation_id, ScaleResponse(int(code), message_of(code))))


async def _scaled(ask: GatedRequest) -> Response:
    response = await ask.pass_on()
    answer: ScaleResponse = response.entity
    seen = tuple(each for each in answer.readers if ask.access.allows(AclOperation.DESCRIBE, _GROUP, each.group_id))
    if len(seen) == len(answer.readers):
        return response
    shown = answer._replace(readers=seen, message=_without_hidden(answer, seen))
    return Response(entity=shown, write=lambda entity: [encode_scale_response(ask.request.correlation_id, entity)])


def _without_hidden(answer: ScaleResponse, seen: Sequence[ShownReader]) -> str | None:
    """The message, which may end with the names of groups: without those that the client may not describe."""
    if answer.message is None or GROUPS_OF_MESSAGE not in answer.message:
        return answer.message
    before, _, _ = answer.message.partition(GROUPS_OF_MESSAGE)
    names = [each.group_id for each in seen]
    return f"{before}{some_groups(names)}, and {len(answer.readers) - len(seen)} that you may not describe"


@of_entities
def partitions(request: CreatePartitionsRequest, response: CreatePartitionsResponse) -> Iterator[Change]:
    counts = {topic.name: topic.count for topic in request.topics}
    for topic in response.results:
        yield Change(f"TOPIC:{topic.name}", topic.error_code, f"count {counts.get(topic.name)}")


def partition_count(request: Request, response: Response) -> Iterator[Change]:
    asked = decode_count_request(request.body)
    if not asked.validate_only:
        yield Change(f"TOPIC:{asked.topic}", response.entity.error_code, f"count {asked.partition_count}")


def scaled(request: Request, response: Response) -> Iterator[Change]:
    asked = decode_scale_request(request.body)
    if asked.step is not ScaleStep.LOOK and not asked.validate_only:
        yield Change(f"TOPIC:{asked.topic}", response.entity.error_code, asked.step.name.lower())


def _scale_topic(of: BrokerParts) -> RequestHandler:
    return ScaleTopic(
        TopicDoubling(of.cluster, of.metastore, of.clock),
        TopicHalving(of.cluster, of.metastore.topics, of.clock, of.configs, of.in_force.current),
    )


COUNT_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.CREATE_PARTITIONS: ApiRow(
        lambda of: CreatePartitions(of.counts, of.mutations),
        each("topics", "results", AclOperation.ALTER, _TOPIC, by_name),
        partitions,
    ),
    SET_PARTITION_COUNT_KEY: ApiRow(
        lambda of: SetPartitionCount(of.counts),
        Rule(_count, (Check(AclOperation.ALTER, _TOPIC, FAILED[_TOPIC]),)),
        partition_count,
        is_advertised=False,
    ),
    SCALE_TOPIC_KEY: ApiRow(
        _scale_topic,
        Rule(
            _scale,
            (
                Check(AclOperation.ALTER, _TOPIC, FAILED[_TOPIC]),
                Check(AclOperation.DESCRIBE, _TOPIC, FAILED[_TOPIC], "to look only, instead of ALTER"),
                Check(AclOperation.DESCRIBE, _GROUP, None, "each group that reads the topic"),
            ),
        ),
        scaled,
        is_advertised=False,
    ),
}


_BY_TYPE = {
    2: AclResource.TOPIC,
    4: AclResource.CLUSTER,
    8: AclResource.CLUSTER,
    16: AclResource.CLUSTER,
    32: AclResource.GROUP,
}
"""ConfigResource.Type: topic, broker, broker logger, client metrics, group. Handlers refuse other types."""
_NAMES = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
"""The same types, as the audit log names them."""


def _each(operation: AclOperation, answered: str) -> Serve:
    def is_allowed(ask: GatedRequest, resource: Any) -> bool:
        resource_type = _BY_TYPE.get(resource.resource_type)
        if resource_type is None:
            return True
        name = CLUSTER_NAME if resource_type is AclResource.CLUSTER else resource.resource_name
        names = [name]
        if resource_type is AclResource.TOPIC and operation is AclOperation.ALTER_CONFIGS:
            names += foreign_tables(ask, name, resource.configs)
        return all(ask.allows(operation, resource_type, each) for each in names)

    def serve(ask: GatedRequest) -> Awaitable[Response]:
        return split(
            ask,
            "resources",
            answered,
            lambda resource: is_allowed(ask, resource),
            lambda resource: ask.refused(answered, resource, FAILED[_BY_TYPE[resource.resource_type]]),
        )

    return serve


def _checks(operation: AclOperation) -> tuple[Check, ...]:
    return (
        Check(operation, AclResource.TOPIC, FAILED[AclResource.TOPIC], "each topic"),
        Check(operation, AclResource.GROUP, FAILED[AclResource.GROUP], "each group"),
        Check(operation, AclResource.CLUSTER, FAILED[AclResource.CLUSTER], "each other resource"),
    )


@of_entities
def configs(request: IncrementalAlterConfigsRequest, response: IncrementalAlterConfigsResponse) -> Iterator[Change]:
    asked = {
        (resource.resource_type, resource.resource_name): ",".join(config.name for config in resource.configs)
        for resource in request.resources
    }
    for resource in response.responses:
        kind = _NAMES.get(resource.resource_type, resource.resource_type)
        names = asked.get((resource.resource_type, resource.resource_name))
        yield Change(f"{kind}:{resource.resource_name}", resource.error_code, f"configs {names}")


_ALTER = Rule(
    _each(AclOperation.ALTER_CONFIGS, "responses"),
    (
        *_checks(AclOperation.ALTER_CONFIGS),
        Check(AclOperation.ALTER_CONFIGS, AclResource.TOPIC, FAILED[AclResource.TOPIC], TABLE_NAMES),
    ),
)
CONFIG_ROWS: dict[int, ApiRow[BrokerParts]] = {
    ApiKey.DESCRIBE_CONFIGS: ApiRow(
        lambda of: DescribeConfigs(of.cluster, of.configs, lambda: of.shared.is_set),
        Rule(_each(AclOperation.DESCRIBE_CONFIGS, "results"), _checks(AclOperation.DESCRIBE_CONFIGS)),
        route=of_brokers("results"),
    ),
    ApiKey.ALTER_CONFIGS: ApiRow(lambda of: AlterConfigs(of.change, of.configs), _ALTER, configs),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiRow(
        lambda of: IncrementalAlterConfigs(of.change, of.configs), _ALTER, configs, of_brokers("responses")
    ),
    ApiKey.LIST_CONFIG_RESOURCES: ApiRow(
        lambda of: ListConfigResources(of.cluster), whole(AclOperation.DESCRIBE_CONFIGS, AclResource.CLUSTER)
    ),
}


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
