"""Rules of the requests that are not Kafka's: their keys, and how they are read, are in protocol/.

Requests between agents are authorized by a proof of the cluster's secret, not by ACLs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.ask import GatedRequest
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule
from headrace.protocol.ordered_requests import (
    GroupPositionResponse,
    PartitionEpochs,
    decode_epochs_request,
    decode_position_request,
    encode_epochs_response,
    encode_position_response,
)
from headrace.protocol.refused_elements import message_of
from headrace.protocol.request import Response
from headrace.protocol.scale_topic import (
    GROUPS_OF_MESSAGE,
    ScaleResponse,
    ScaleStep,
    ShownReader,
    decode_scale_request,
    encode_scale_response,
    some_groups,
)
from headrace.protocol.set_partition_count import (
    CountResponse,
    decode_count_request,
    encode_count_response,
)
from headrace.protocol.typed import response_header

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC


def _position(ask: GatedRequest) -> Awaitable[Response]:
    asked = decode_position_request(ask.request.body, ask.request.connection.request_elements_max)
    code = ErrorCode.none
    if not ask.allows(AclOperation.READ, _GROUP, asked.group_id):
        code = FAILED[_GROUP]
    elif not all(ask.allows(AclOperation.READ, _TOPIC, name) for name in asked.topics):
        code = FAILED[_TOPIC]
    if code is ErrorCode.none:
        return ask.pass_on()
    return _answered(ask, encode_position_response(GroupPositionResponse(int(code), {})))


def _epochs(ask: GatedRequest) -> Awaitable[Response]:
    asked = decode_epochs_request(ask.request.body, ask.request.connection.request_elements_max)
    if all(ask.allows(AclOperation.DESCRIBE, _TOPIC, name) for name in asked):
        return ask.pass_on()
    code = int(FAILED[_TOPIC])
    refused = {name: [PartitionEpochs(index, code) for index in indexes] for name, indexes in asked.items()}
    return _answered(ask, encode_epochs_response(refused))


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


def _answered(ask: GatedRequest, body: bytes) -> Awaitable[Response]:
    return ask.answer_raw(response_header(ask.request.correlation_id, False), body)


GROUP_POSITION = Rule(
    _position,
    (
        Check(AclOperation.READ, _GROUP, FAILED[_GROUP]),
        Check(AclOperation.READ, _TOPIC, FAILED[_TOPIC], "all topics"),
    ),
)
LEADER_EPOCHS = Rule(_epochs, (Check(AclOperation.DESCRIBE, _TOPIC, FAILED[_TOPIC], "all topics"),))
SET_PARTITION_COUNT = Rule(_count, (Check(AclOperation.ALTER, _TOPIC, FAILED[_TOPIC]),))
SCALE_TOPIC = Rule(
    _scale,
    (
        Check(AclOperation.ALTER, _TOPIC, FAILED[_TOPIC]),
        Check(AclOperation.DESCRIBE, _TOPIC, FAILED[_TOPIC], "to look only, instead of ALTER"),
        Check(AclOperation.DESCRIBE, _GROUP, None, "each group that reads the topic"),
    ),
)
