"""What the offset requests name, judged: topics resolved on one image, offsets that may be stored.

Place: under requests.py and group_offsets.py.
Invariant: what the image lacks is unknown only after catching up with the log; when that fails, it
is unresolved, which clients take as a reason to ask again. A partition that is refused for itself does not keep the
offsets of others from being stored.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10.request import OffsetCommitRequest, OffsetCommitRequestPartition
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.segment_logs.topics import RENDERED_TOPICS, rendered_topic
from headrace.storage.errors import UnavailableError

logger = logging.getLogger(__name__)

NameOrId = str | uuid.UUID
_NO_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class ResolvedTopics:
    """The topics that exist, by what they were asked for by; `missing` is the code of all others."""

    found: dict[NameOrId, TopicImage]
    missing: ErrorCode


def name_or_id(topic: Any, *, by_id: bool) -> NameOrId:
    """Return what a topic of a request is asked for by."""
    return (topic.topic_id or _NO_ID) if by_id else topic.name


async def resolve(cluster: ClusterView, asked: Iterable[NameOrId], *, by_id: bool) -> ResolvedTopics:
    """Resolve the topics of a request, all by name or all by id."""
    wanted = set(asked)
    found = _lookup(cluster.image, wanted)
    missing = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    if len(found) < len(wanted):
        try:
            found = _lookup(await cluster.catch_up(), wanted)
        except UnavailableError as error:
            logger.warning("topics of an offset request not resolved: error=%s", error)
            missing = ErrorCode.coordinator_load_in_progress
    return ResolvedTopics(found, missing)


_RENDERED = {topic.topic_number: topic for topic in RENDERED_TOPICS}


def topic_by_number(image: MetadataImage, number: int) -> TopicImage | None:
    """The topic of that number, as stored keys name it; those of rendered topics are in no image."""
    return _RENDERED.get(number) or image.topics_by_number.get(number)


def _lookup(image: MetadataImage, wanted: set[NameOrId]) -> dict[NameOrId, TopicImage]:
    by_id, by_name = image.topics_by_id, image.topics_by_name
    found = {each: by_id.get(each) if isinstance(each, uuid.UUID) else by_name.get(each) for each in wanted}
    found |= {each: rendered_topic(each) for each in wanted if rendered_topic(each)}
    return {each: topic for each, topic in found.items() if topic is not None}


_CommitRequest = OffsetCommitRequest | TxnOffsetCommitRequest
_CommittedPartition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition
StoredOffsets = Sequence[bool | ErrorCode]
"""The outcome of each offset: whether it was stored (False: its partition is gone), or why it was refused."""


@dataclass(slots=True)
class JudgedOffsets:
    """What is to be stored, and each partition's code in request order."""

    codes: list[ErrorCode] = field(default_factory=list)
    offsets: list[CommittedOffset] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Indexes into `codes` of each of `offsets`."""

    @classmethod
    def of(
        cls,
        topics: ResolvedTopics,
        entity: OffsetCommitRequest | TxnOffsetCommitRequest,
        metadata_max_bytes: int,
        *,
        by_id: bool = False,
    ) -> Self:
        """Read the offsets of a request with an array `topics`."""
        judged = cls()
        for topic in entity.topics:
            for partition in topic.partitions:
                judged._add(_judge(topics, name_or_id(topic, by_id=by_id), partition, metadata_max_bytes))
        return judged

    def _add(self, judged: CommittedOffset | ErrorCode) -> None:
        if isinstance(judged, ErrorCode):
            self.codes.append(judged)
            return
        self.places.append(len(self.codes))
        self.offsets.append(judged)
        self.codes.append(ErrorCode.none)

    def settle(self, stored: StoredOffsets | ErrorCode, gone: ErrorCode) -> None:
        """Put the coordinator's answer in the right places."""
        for number, place in enumerate(self.places):
            answer = stored if isinstance(stored, ErrorCode) else stored[number]
            if isinstance(answer, ErrorCode):
                self.codes[place] = answer
            elif not answer:
                self.codes[place] = gone


def _judge(
    topics: ResolvedTopics,
    wanted: NameOrId,
    partition: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    metadata_max_bytes: int,
) -> CommittedOffset | ErrorCode:
    topic = topics.found.get(wanted)
    if topic is None:
        return topics.missing
    key = topic.key(partition.partition_index)
    if key is None:
        return ErrorCode.unknown_topic_or_partition
    metadata = partition.committed_metadata or ""
    if len(metadata.encode()) > metadata_max_bytes:
        return ErrorCode.offset_metadata_too_large
    return CommittedOffset(key, partition.committed_offset, getattr(partition, "committed_leader_epoch", -1), metadata)
