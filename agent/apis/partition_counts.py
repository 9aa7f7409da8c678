"""CreatePartitions, and Headrace's own SetPartitionCount and ScaleTopic."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence

from kio.schema.create_partitions.v3.request import CreatePartitionsRequest
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse

from headrace.agent.access.audited_changes import Change, of_entities
from headrace.agent.access.authorization.ask import GatedRequest
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, by_name, each
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.topics.counts.create_partitions import CreatePartitions
from headrace.agent.topics.counts.scale_topic import ScaleTopic
from headrace.agent.topics.counts.set_partition_count import SetPartitionCount
from headrace.agent.topics.counts.topic_doubling import TopicDoubling
from headrace.agent.topics.counts.topic_halving import TopicHalving
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
