"""Rules of OffsetCommit, OffsetFetch and OffsetDelete: a group, and topics by name or by id."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.ask import DENIED_UNITS, GatedRequest, split
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import FAILED, Check, Rule, mirrored
from headrace.agent.limits.work_slices import TOPIC_UNITS, WorkSlices
from headrace.metastore.segment_logs.rendered_topics import rendered_topic
from headrace.protocol.refused_elements import refused_element
from headrace.protocol.request import Response

_GROUP, _TOPIC = AclResource.GROUP, AclResource.TOPIC
_DENIED = FAILED[_TOPIC]
_FIRST_WITH_CODE = 2
"""The version of OffsetFetch from which on its response has an error code for all."""


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


def _of_share_group(operation: AclOperation) -> Callable[[GatedRequest], Awaitable[Response]]:
    """Alter or delete: the operation on the group, and READ on each topic."""

    def serve(ask: GatedRequest) -> Awaitable[Response]:
        if not ask.allows(operation, _GROUP, ask.entity.group_id):
            return ask.refuse(FAILED[_GROUP])
        return split(
            ask,
            "topics",
            "responses",
            lambda topic: ask.allows(AclOperation.READ, _TOPIC, topic.topic_name),
            lambda topic: ask.refused("responses", topic, _DENIED),
        )

    return serve


async def _describe_share_offsets(ask: GatedRequest) -> Response:
    """Groups without DESCRIBE get the error; of the others, topics without it do, or are left out.

    The handler never sees a topic that the client may not describe: the order and the number of the partitions of its
    answer would say which of them exist.
    """
    slices = WorkSlices()
    allowed, refused, denied = [], list[Any](), defaultdict[str, list[Any]](list)
    for group in ask.entity.groups:
        await slices.did(TOPIC_UNITS)
        if not ask.allows(AclOperation.DESCRIBE, _GROUP, group.group_id):
            refused.append(dataclasses.replace(ask.refused("groups", group, FAILED[_GROUP]), topics=()))
            await slices.did(DENIED_UNITS)
            continue
        if group.topics is not None:
            verdicts = await slices.each(
                lambda topic: (topic, ask.allows(AclOperation.DESCRIBE, _TOPIC, topic.topic_name)),
                group.topics,
                DENIED_UNITS,
            )
            denied[group.group_id] += [_refused_topic(ask, topic, _DENIED) for topic, good in verdicts if not good]
            group = dataclasses.replace(group, topics=tuple(topic for topic, good in verdicts if good))
        allowed.append(group)

    async def shown(group: Any) -> Any:
        if group.error_code:
            return group
        seen = await ask.seen(_TOPIC, group.topics, lambda topic: str(topic.topic_name), slices)
        return dataclasses.replace(group, topics=(*seen, *denied.get(group.group_id, ())))

    async def change(entity: Any) -> Any:
        return dataclasses.replace(entity, groups=(*[await shown(group) for group in entity.groups], *refused))

    if not allowed:
        return await ask.answer(groups=tuple(refused))
    return await ask.pass_on_changed(change, groups=tuple(allowed))


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
        denied[group.group_id] = [_refused_topic(ask, topic, code) for topic, code in codes if code]
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


def _refused_topic(ask: GatedRequest, topic: Any, code: ErrorCode) -> Any:
    return refused_element(ask.element_type("groups", "topics"), topic, code)


_EACH_TOPIC = "each topic"
OFFSET_COMMIT = Rule(
    _commit,
    (
        Check(AclOperation.READ, _GROUP, FAILED[_GROUP]),
        Check(AclOperation.READ, _TOPIC, _DENIED, _EACH_TOPIC),
    ),
)
OFFSET_FETCH = Rule(
    _fetch,
    (
        Check(AclOperation.DESCRIBE, _GROUP, FAILED[_GROUP], "each group"),
        Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, _EACH_TOPIC),
        Check(AclOperation.DESCRIBE, _TOPIC, None, "all topics of a group"),
    ),
)
OFFSET_DELETE = Rule(
    _delete,
    (
        Check(AclOperation.DELETE, _GROUP, FAILED[_GROUP]),
        Check(AclOperation.READ, _TOPIC, _DENIED, _EACH_TOPIC),
    ),
)

DESCRIBE_SHARE_GROUP_OFFSETS = Rule(
    _describe_share_offsets,
    (
        Check(AclOperation.DESCRIBE, _GROUP, FAILED[_GROUP], "each group"),
        Check(AclOperation.DESCRIBE, _TOPIC, _DENIED, _EACH_TOPIC),
        Check(AclOperation.DESCRIBE, _TOPIC, None, "all topics of a group"),
    ),
)
ALTER_SHARE_GROUP_OFFSETS = Rule(
    _of_share_group(AclOperation.READ),
    (
        Check(AclOperation.READ, _GROUP, FAILED[_GROUP]),
        Check(AclOperation.READ, _TOPIC, _DENIED, "each topic"),
    ),
)
DELETE_SHARE_GROUP_OFFSETS = Rule(
    _of_share_group(AclOperation.DELETE),
    (
        Check(AclOperation.DELETE, _GROUP, FAILED[_GROUP]),
        Check(AclOperation.READ, _TOPIC, _DENIED, "each topic"),
    ),
)
