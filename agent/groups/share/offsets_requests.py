"""DescribeShareGroupOffsets (key 90, versions 0-1), AlterShareGroupOffsets (91, 0), DeleteShareGroupOffsets (92, 0).

Place: request fields to share_offsets.py and back.
Invariant: a group of another kind, or none at all, has no offsets, and is not changed: GROUP_ID_NOT_FOUND. While
share.version is 0 nothing is asked.
Source: Kafka's message schemas, KIP-932, KIP-1226.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

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
from headrace.agent.groups.coordinators import elect
from headrace.agent.groups.names import is_legal_group_id
from headrace.agent.groups.offsets.topics import ResolvedTopics, resolve
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_offsets import ShareOffset, ShareOffsets
from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import TopicImage
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply

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
        found: dict[int, ShareOffset] | ErrorCode = self._refusal(group.group_id)
        if found is ErrorCode.none:
            found = await self._offsets.describe(group.group_id)
        code = ErrorCode.none
        topics: tuple[DescribeShareGroupOffsetsResponseTopic, ...] = ()
        if isinstance(found, ErrorCode):
            code = found
        elif group.topics is None:
            topics = self._all(schema, found)
        else:
            topics = await self._asked(schema, group.topics, found)
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
