"""The offsets of a request that commits some: which may be stored, and each partition's code.

Place: under commit_request.py and transactional_request.py. Pure.
Invariant: a partition that is refused for itself does not keep the offsets of others from being stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v10.request import OffsetCommitRequest, OffsetCommitRequestPartition
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition

from headrace.agent.groups.offsets.topics import NameOrId, ResolvedTopics, name_or_id
from headrace.metastore.api.groups import CommittedOffset

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
