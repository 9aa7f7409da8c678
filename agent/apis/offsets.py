"""The APIs about committed offsets: a group, and topics by name or by id; and Headrace's own ConsumerGroupPosition."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse

from headrace.agent.access.audit import Change, of_entities
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import DENIED_UNITS, FAILED, Check, GatedRequest, Rule, mirrored, split
from headrace.agent.apis.api_row import ApiRow, raw_answer, refused_topic
from headrace.agent.apis.parts import GroupParts
from headrace.agent.groups.administration import OffsetDelete
from headrace.agent.groups.offsets.requests import OffsetCommit, OffsetFetch, TxnOffsetCommit
from headrace.agent.limits.work_slices import TOPIC_UNITS, WorkSlices
from headrace.agent.peers.forwarding.forwarding import Elements, Whole
from headrace.metastore.segment_logs.topics import rendered_topic
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.ordered_requests import (
    GROUP_POSITION_KEY,
    GroupPositionResponse,
    decode_position_request,
    encode_position_response,
)
from headrace.protocol.request import Response

_GROUP, _TOPIC, _NAME = AclResource.GROUP, AclResource.TOPIC, AclResource.TRANSACTIONAL_ID
_DENIED = FAILED[_TOPIC]
_FIRST_WITH_CODE = 2
"""The version of OffsetFetch from which on its response has an error code for all."""
_FIRST_FETCH_OF_SEVERAL_GROUPS = 8
_BY_FIRST_FIELD = Whole.GROUP_IN_FIRST_FIELD


def _name_of(ask: GatedRequest, topic: Any) -> str | None:
    """Return the name of a topic by name or by id; None for an id that is unknown."""
    if not hasattr(topic, "topic_id"):
        return str(topic.name)
    found = rendered_topic(topic.topic_id) or ask.image.topics_by_id.get(topic.topic_id)
    return None if found is None else found.name


def _is_unknown(ask: GatedRequest, topics: Any) -> bool:
    """Return whether the image should be brought up to date first."""
    return not ask.is_caught_up and any(_name_of(ask, topic) is None for topic in topics or ())


def _code(ask: GatedRequest, topic: Any, operation: AclOperation) -> ErrorCode:
    name = _name_of(ask, topic)
    if name is None:
        return ErrorCode.unknown_topic_id
    return ErrorCode.none if ask.allows(operation, _TOPIC, name) else _DENIED


def _read_topics(ask: GatedRequest) -> Awaitable[Response]:
    codes: dict[int, ErrorCode] = {}

    def is_allowed(topic: Any) -> bool:
        code = codes[id(topic)] = _code(ask, topic, AclOperation.READ)
        return code is ErrorCode.none

    return split(ask, "topics", "topics", is_allowed, lambda topic: ask.refused("topics", topic, codes[id(topic)]))


def _commit(ask: GatedRequest) -> Awaitable[Response]:
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id):
        return mirrored("topics", "topics")(ask, FAILED[_GROUP])
    if _is_unknown(ask, ask.entity.topics):
        return ask.after_catching_up(_commit)
    return _read_topics(ask)


def _commit_in_transaction(ask: GatedRequest) -> Awaitable[Response]:
    refuse = mirrored("topics", "topics")
    if not ask.allows(AclOperation.WRITE, _NAME, ask.entity.transactional_id):
        return refuse(ask, FAILED[_NAME])
    if not ask.allows(AclOperation.READ, _GROUP, ask.entity.group_id):
        return refuse(ask, FAILED[_GROUP])
    return split(
        ask,
        "topics",
        "topics",
        lambda topic: ask.allows(AclOperation.READ, _TOPIC, topic.name),
        lambda topic: ask.refused("topics", topic, FAILED[_TOPIC]),
    )


def _delete(ask: GatedRequest) -> Awaitable[Response]:
    if not ask.allows(AclOperation.DELETE, _GROUP, ask.entity.group_id):
        return ask.refuse(FAILED[_GROUP])
    return _read_topics(ask)


def _fetch(ask: GatedRequest) -> Awaitable[Response]:
    if hasattr(ask.entity, "groups"):
        if any(_is_unknown(ask, group.topics) for group in ask.entity.groups):
            return ask.after_catching_up(_fetch)
        return _fetch_of_groups(ask)
    if not ask.allows(AclOperation.DESCRIBE, _GROUP, ask.entity.group_id):
        if ask.request.api_version >= _FIRST_WITH_CODE:
            return ask.refuse(FAILED[_GROUP])
        return mirrored("topics", "topics")(ask, FAILED[_GROUP])
    if ask.entity.topics is None:
        return ask.pass_on_changed(lambda entity: _described(ask, entity, WorkSlices()))
    return split(
        ask,
        "topics",
        "topics",
        lambda topic: ask.allows(AclOperation.DESCRIBE, _TOPIC, topic.name),
        lambda topic: ask.refused("topics", topic, _DENIED),
    )


async def _described(ask: GatedRequest, answer: Any, slices: WorkSlices) -> Any:
    """All topics of a group (or of a response) without those that the client may not describe."""
    topics = await ask.seen(_TOPIC, answer.topics, partial(_name_of, ask), slices)
    return dataclasses.replace(answer, topics=topics)


async def _fetch_of_groups(ask: GatedRequest) -> Response:
    """Groups without DESCRIBE get the error; of the others, topics without it do."""
    slices = WorkSlices()
    asked, refused, denied = [], list[Any](), dict[str, list[Any]]()
    for group in ask.entity.groups:
        await slices.did(TOPIC_UNITS)
        if not ask.allows(AclOperation.DESCRIBE, _GROUP, group.group_id):
            refused.append(dataclasses.replace(ask.refused("groups", group, FAILED[_GROUP]), topics=()))
            await slices.did(DENIED_UNITS)
            continue
        codes = await slices.each(
            lambda topic: (topic, _code(ask, topic, AclOperation.DESCRIBE)), group.topics or (), DENIED_UNITS
        )
        good = tuple(topic for topic, code in codes if code is ErrorCode.none)
        denied[group.group_id] = [refused_topic(ask, topic, code) for topic, code in codes if code]
        asked.append(group if group.topics is None else dataclasses.replace(group, topics=good))
    is_whole = {group.group_id for group in asked if group.topics is None}

    async def change(entity: Any) -> Any:
        groups = [
            await _described(ask, group, slices) if group.group_id in is_whole else group for group in entity.groups
        ]
        together = [
            group
            if group.error_code
            else dataclasses.replace(group, topics=(*group.topics, *denied.get(group.group_id, ())))
            for group in groups
        ]
        return dataclasses.replace(entity, groups=(*together, *refused))

    if not asked:
        return await ask.answer(groups=tuple(refused))
    if not refused and not is_whole and not any(denied.values()):
        return await ask.pass_on()
    return await ask.pass_on_changed(change, groups=tuple(asked))


def _position(ask: GatedRequest) -> Awaitable[Response]:
    asked = decode_position_request(ask.request.body, ask.request.connection.request_elements_max)
    code = ErrorCode.none
    if not ask.allows(AclOperation.READ, _GROUP, asked.group_id):
        code = FAILED[_GROUP]
    elif not all(ask.allows(AclOperation.READ, _TOPIC, name) for name in asked.topics):
        code = FAILED[_TOPIC]
    if code is ErrorCode.none:
        return ask.pass_on()
    return raw_answer(ask, encode_position_response(GroupPositionResponse(int(code), {})))


@of_entities
def deleted_offsets(request: OffsetDeleteRequest, response: OffsetDeleteResponse) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change(f"GROUP:{request.group_id}", response.error_code, "offsets")
        return
    for topic in response.topics:
        for partition in topic.partitions:
            what = f"offset of {topic.name} partition {partition.partition_index}"
            yield Change(f"GROUP:{request.group_id}", partition.error_code, what)


_READS_GROUP = Check(AclOperation.READ, _GROUP, FAILED[_GROUP])
_READS_EACH_TOPIC = Check(AclOperation.READ, _TOPIC, _DENIED, "each topic")
OFFSET_ROWS: dict[int, ApiRow[GroupParts]] = {
    ApiKey.OFFSET_COMMIT: ApiRow(
        lambda of: OffsetCommit(of.offsets, of.cluster, of.in_force),
        Rule(_commit, (_READS_GROUP, _READS_EACH_TOPIC)),
        route=_BY_FIRST_FIELD,
    ),
    ApiKey.TXN_OFFSET_COMMIT: ApiRow(
        lambda of: TxnOffsetCommit(of.offsets, of.cluster, of.in_force),
        Rule(
            _commit_in_transaction,
            (Check(AclOperation.WRITE, _NAME, FAILED[_NAME]), _READS_GROUP, _READS_EACH_TOPIC),
        ),
        route=Whole.GROUP_ID,
    ),
    ApiKey.OFFSET_FETCH: ApiRow(
        lambda of: OffsetFetch(of.offsets, of.cluster),
        Rule(
            _fetch,
            (
                Check(AclOperation.DESCRIBE, _GROUP, FAILED[_GROUP], "each group"),
                Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, "each topic"),
                Check(AclOperation.DESCRIBE, _TOPIC, None, "all topics of a group"),
            ),
        ),
        route=Elements(
            "groups", "groups", lambda group: str(group.group_id), first_version=_FIRST_FETCH_OF_SEVERAL_GROUPS
        ),
    ),
    ApiKey.OFFSET_DELETE: ApiRow(
        lambda of: OffsetDelete(of.administration, of.cluster),
        Rule(_delete, (Check(AclOperation.DELETE, _GROUP, FAILED[_GROUP]), _READS_EACH_TOPIC)),
        deleted_offsets,
        _BY_FIRST_FIELD,
    ),
    GROUP_POSITION_KEY: ApiRow(
        lambda of: of.position,
        Rule(_position, (_READS_GROUP, Check(AclOperation.READ, _TOPIC, FAILED[_TOPIC], "all topics"))),
        route=_BY_FIRST_FIELD,
        is_advertised=False,
    ),
}
