"""What admin tools ask of the offsets of share groups: describe, alter, delete.

DescribeShareGroupOffsets (key 90, versions 0-1), AlterShareGroupOffsets (91, version 0), DeleteShareGroupOffsets
(92, version 0).

Place: between request fields and the owner's partitions.
Invariant: only a group without members is changed, under its claim, and an answer says so only once it is stored. A
group of another kind, or none at all, has no offsets, and is not changed: GROUP_ID_NOT_FOUND. While share.version is
0 nothing is asked.
Source: Kafka's message schemas, KIP-932, KIP-1226 (lag).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kio.schema.alter_share_group_offsets.v0.request import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
)
from kio.schema.alter_share_group_offsets.v0.response import (
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest
from kio.schema.delete_share_group_offsets.v0.response import DeleteShareGroupOffsetsResponseTopic
from kio.schema.describe_share_group_offsets.v1.request import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kio.schema.describe_share_group_offsets.v1.response import (
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.claims import Held
from headrace.agent.groups.coordinators import elect
from headrace.agent.groups.group_values import is_legal_group_id
from headrace.agent.groups.offsets.judged_offsets import ResolvedTopics, resolve
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.group_partitions import GroupPartitions
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.api.groups import EMPTY, GroupApi
from headrace.metastore.api.read import ReadableEnds
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import TopicImage
from headrace.protocol.errors import coordinator_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)


CLAIMS = 5
"""How many claims a deletion tries while clients that are no members any more still write."""


class ShareOffset(NamedTuple):
    """An offset in one partition. `lag`: records from the start on that are not done; -1 if it is not known."""

    start: int
    lag: int


class ShareOffsets:
    """Every answer carries a code; nothing raises for what clients can do."""

    def __init__(
        self,
        api: GroupApi,
        administration: GroupAdministration,
        owner: ShareOwner,
        create: Callable[[str], Awaitable[Held | ErrorCode]],
    ) -> None:
        """`create`: returns a share group, a new one if there is none of this id."""
        self._api, self._administration, self._owner, self._create = api, administration, owner, create

    async def describe(self, group_id: str) -> dict[int, ShareOffset] | ErrorCode:
        """Partition key -> what the group has done there, of all that it has begun: nothing if there is no such share
        group, as in Kafka.
        """
        owned = await self._loaded(group_id)
        if owned is ErrorCode.group_id_not_found:
            return {}
        if isinstance(owned, ErrorCode):
            return owned
        partitions = dict(owned.group.partitions)
        ends: Mapping[int, ReadableEnds | ErrorCode] = {}
        if self._owner.logs is not None:
            ends = await self._owner.logs.ends(
                {key: each.end for key, each in partitions.items()},
                committed=owned.group.configs().read_committed,
            )
        found = {}
        for key, each in partitions.items():
            end = ends.get(key)
            lag = max(end.end - each.start - each.done_after_start(), 0) if isinstance(end, ReadableEnds) else -1
            found[key] = ShareOffset(each.start, lag)
        return found

    async def alter(self, group_id: str, starts: Mapping[int, int]) -> dict[int, ErrorCode] | ErrorCode:
        """Begin at these offsets, also if there is no such group yet, as in Kafka. Each partition's code.

        An offset beyond the high watermark counts as that: the next owner would take it so.
        """
        owned = await self._loaded(group_id, create=bool(starts))
        if isinstance(owned, ErrorCode):
            return owned
        try:
            starts = await self._within_the_logs(starts)
        except HeadraceError as error:
            logger.warning("share offsets not altered: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        refusal = await owned.set_starts(starts)
        if refusal is not ErrorCode.none:
            return refusal
        gone = ErrorCode.unknown_topic_or_partition
        return {key: ErrorCode.none if key in owned.group.partitions else gone for key in starts}

    async def _within_the_logs(self, starts: Mapping[int, int]) -> Mapping[int, int]:
        """Return them with none beyond its high watermark. HeadraceError if that is not known."""
        if self._owner.logs is None or not starts:
            return starts
        ends = await self._owner.logs.high_watermarks(starts)
        return {key: min(start, ends.get(key, start)) for key, start in starts.items()}

    async def delete(self, group_id: str, keys: Collection[int]) -> Collection[int] | ErrorCode:
        """Forget what the group has done in these partitions; return those in which it had begun. A write that is under
        way would bring it back, and one with an unknown outcome may arrive later: the deletion is the first write of a
        claim.
        """
        for _ in range(CLAIMS):
            owned = await self._loaded(group_id)
            if isinstance(owned, ErrorCode):
                return owned
            if owned.group.state_name != EMPTY:
                return ErrorCode.non_empty_group
            if owned.stop():
                return await self._delete(owned, keys)
            self._owner.drop(owned)
        return ErrorCode.coordinator_load_in_progress

    async def _delete(self, owned: GroupPartitions, keys: Collection[int]) -> Collection[int] | ErrorCode:
        group_id = owned.group.group_id
        begun = [key for key in keys if key in owned.group.partitions]
        try:
            await self._api.delete_offsets(group_id, owned.held.epoch, sorted(keys))
            self._owner.forget(owned, keys)
        except HeadraceError as error:
            logger.warning("share offsets not deleted: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        finally:
            self._owner.drop(owned)  # it is read again, with or without them
        return begun

    async def _loaded(self, group_id: str, *, create: bool = False) -> GroupPartitions | ErrorCode:
        held = await self._administration.existing(group_id)
        if create and held is ErrorCode.group_id_not_found:
            held = await self._create(group_id)
        if not isinstance(held, Held):
            return held
        if not isinstance(held.group, ShareGroup):
            return ErrorCode.group_id_not_found
        owned = self._owner.partitions_of(held, held.group)
        try:
            await owned.load()
        except HeadraceError as error:
            logger.warning("share group not loaded: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        return ErrorCode.not_coordinator if owned.is_over else owned


NOT_BEGUN = ShareOffset(-1, -1)


class _ByTopic:
    """What the three have in common."""

    def __init__(self, offsets: ShareOffsets, cluster: ClusterView, rules: ShareGroupRules) -> None:
        self._offsets, self._cluster, self._rules = offsets, cluster, rules

    def _refusal(self, group_id: str) -> ErrorCode:
        if not self._rules.is_offered:
            return ErrorCode.unsupported_version
        return ErrorCode.none if is_legal_group_id(group_id) else ErrorCode.invalid_group_id

    async def _resolve(self, names: Iterable[str]) -> ResolvedTopics:
        return await resolve(self._cluster, names, by_id=False)


class DescribeShareGroupOffsets(_ByTopic):
    """Describe where share groups are, and how far they are behind."""

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeShareGroupOffsetsRequest)
        slices, groups = WorkSlices(), []
        for group in entity.groups:
            await elect(self._cluster.routes, group.group_id, slices)
            groups.append(await self._describe(schema, group))
        return reply(request, schema.response(groups=tuple(groups)))

    async def _describe(
        self, schema: Schema, group: DescribeShareGroupOffsetsRequestGroup
    ) -> DescribeShareGroupOffsetsResponseGroup:
        """Return the group's part of the answer: the topics that the request names, or all."""
        topics: tuple[DescribeShareGroupOffsetsResponseTopic, ...] = ()
        code = self._refusal(group.group_id)
        if code is ErrorCode.none:
            offsets = await self._offsets.describe(group.group_id)
            if isinstance(offsets, ErrorCode):
                code = offsets
            elif group.topics is None:
                topics = self._all(schema, offsets)
            else:
                topics = await self._asked(schema, group.topics, offsets)
        return schema.make(
            DescribeShareGroupOffsetsResponseGroup,
            group_id=group.group_id,
            topics=topics,
            error_code=code,
            error_message=None,
        )

    def _all(
        self, schema: Schema, found: Mapping[int, ShareOffset]
    ) -> tuple[DescribeShareGroupOffsetsResponseTopic, ...]:
        by_number: defaultdict[int, dict[int, ShareOffset]] = defaultdict(dict)
        for key, offset in sorted(found.items()):
            number, index = split_partition_key(key)
            by_number[number][index] = offset
        topics = self._cluster.image.topics_by_number
        return tuple(
            _described(schema, topics[number].name, topics[number], offsets)
            for number, offsets in by_number.items()
            if number in topics
        )

    async def _asked(
        self, schema: Schema, asked: Sequence[DescribeShareGroupOffsetsRequestTopic], found: Mapping[int, ShareOffset]
    ) -> tuple[DescribeShareGroupOffsetsResponseTopic, ...]:
        topics = await self._resolve(each.topic_name for each in asked)
        made = []
        for each in asked:
            topic = topics.found.get(each.topic_name)
            if topic is None:
                missing = {int(index): topics.missing for index in each.partitions}
                made.append(_described(schema, each.topic_name, None, {}, missing))
                continue
            keys = {int(index): topic.key(index) for index in each.partitions}
            offsets = {index: found.get(key, NOT_BEGUN) for index, key in keys.items() if key is not None}
            gone = [index for index, key in keys.items() if key is None]
            codes = dict.fromkeys(gone, ErrorCode.unknown_topic_or_partition)
            made.append(_described(schema, topic.name, topic, offsets, codes))
        return tuple(made)


def _described(
    schema: Schema,
    name: str,
    topic: TopicImage | None,
    offsets: Mapping[int, ShareOffset],
    codes: Mapping[int, ErrorCode] | None = None,
) -> DescribeShareGroupOffsetsResponseTopic:
    def partition(index: int, offset: ShareOffset, code: ErrorCode) -> DescribeShareGroupOffsetsResponsePartition:
        return schema.make(
            DescribeShareGroupOffsetsResponsePartition,
            partition_index=index,
            start_offset=offset.start,
            leader_epoch=0 if topic is None or code else topic.leader_epochs[index],
            lag=offset.lag,
            error_code=code,
            error_message=None,
        )

    return schema.make(
        DescribeShareGroupOffsetsResponseTopic,
        topic_name=name,
        topic_id=None if topic is None else topic.topic_id,
        partitions=(
            *(partition(index, offset, ErrorCode.none) for index, offset in offsets.items()),
            *(partition(index, NOT_BEGUN, code) for index, code in (codes or {}).items()),
        ),
    )


class AlterShareGroupOffsets(_ByTopic):
    """Let a share group without members begin elsewhere."""

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, AlterShareGroupOffsetsRequest)
        topics = await self._resolve(topic.topic_name for topic in entity.topics)
        starts = {
            key: each.start_offset
            for topic in entity.topics
            if (found := topics.found.get(topic.topic_name)) is not None
            for each in topic.partitions
            if (key := found.key(each.partition_index)) is not None and each.start_offset >= 0
        }
        codes: dict[int, ErrorCode] | ErrorCode = self._refusal(entity.group_id)
        if codes is ErrorCode.none:
            codes = await self._offsets.alter(entity.group_id, starts)
        if isinstance(codes, ErrorCode):
            return reply(request, schema.response(error_code=codes, error_message=None, responses=()))

        def code(found: TopicImage | None, each: AlterShareGroupOffsetsRequestPartition) -> ErrorCode:
            if found is None:
                return topics.missing
            key = found.key(each.partition_index)
            if key is None:
                return ErrorCode.unknown_topic_or_partition
            return codes.get(key, ErrorCode.invalid_request)

        responses = tuple(
            schema.make(
                AlterShareGroupOffsetsResponseTopic,
                topic_name=topic.topic_name,
                topic_id=None if (found := topics.found.get(topic.topic_name)) is None else found.topic_id,
                partitions=tuple(
                    schema.make(
                        AlterShareGroupOffsetsResponsePartition,
                        partition_index=each.partition_index,
                        error_code=code(found, each),
                        error_message=None,
                    )
                    for each in topic.partitions
                ),
            )
            for topic in entity.topics
        )
        return reply(request, schema.response(error_code=ErrorCode.none, error_message=None, responses=responses))


class DeleteShareGroupOffsets(_ByTopic):
    """Forget what a share group without members has done in some topics."""

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DeleteShareGroupOffsetsRequest)
        topics = await self._resolve(topic.topic_name for topic in entity.topics)
        keys = [
            key
            for topic in entity.topics
            if (found := topics.found.get(topic.topic_name)) is not None
            for index in found.indexes
            if (key := found.key(index)) is not None
        ]
        begun: Collection[int] | ErrorCode = self._refusal(entity.group_id)
        if begun is ErrorCode.none:
            begun = await self._offsets.delete(entity.group_id, keys)
        if isinstance(begun, ErrorCode):
            return reply(request, schema.response(error_code=begun, error_message=None, responses=()))
        numbers = {split_partition_key(key)[0] for key in begun}

        def code(found: TopicImage | None) -> ErrorCode:
            if found is None:
                return topics.missing
            is_begun = found.topic_number in numbers
            return ErrorCode.none if is_begun else ErrorCode.unknown_topic_or_partition

        responses = tuple(
            schema.make(
                DeleteShareGroupOffsetsResponseTopic,
                topic_name=topic.topic_name,
                topic_id=None if (found := topics.found.get(topic.topic_name)) is None else found.topic_id,
                error_code=code(found),
                error_message=None,
            )
            for topic in entity.topics
        )
        return reply(request, schema.response(error_code=ErrorCode.none, error_message=None, responses=responses))
