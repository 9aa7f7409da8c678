"""A source cluster in memory, of SourceLogs.

Fault model: `away` refuses every request; `spoil` changes what a fetch answers; topics can be deleted, created again,
truncated and given other leaders by the test, at any time.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kio.schema.errors import ErrorCode

from headrace.compactor.links.source import (
    CommittedAt,
    FetchAnswer,
    Fetched,
    GroupOffsets,
    SourceBounds,
    SourceGroup,
    SourceMetadata,
    SourcePartition,
    SourcePosition,
    SourceProducer,
    SourceTopic,
    TopicIndex,
)
from headrace.storage.errors import UnavailableError
from tests.compactor.links.source_log import SourceLog

LEADERS = 2


@dataclass
class FakeTopic:
    """A topic with its partitions; partition i is led by node i % LEADERS."""

    topic_id: uuid.UUID
    logs: list[SourceLog]
    configs: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeSource:
    """Implements compactor.links.source.Source."""

    topics: dict[str, FakeTopic] = field(default_factory=dict)
    cluster_id: str = "source"
    away: str = ""
    spoil: Callable[[Fetched], Fetched] = lambda part: part
    answer_bytes: int = 1 << 20
    denied: set[str] = field(default_factory=set)
    fetches: int = 0
    silent: bool = False
    """Whether DescribeProducers answers nothing."""
    listed: dict[str, SourceGroup] = field(default_factory=dict)
    committed: dict[str, dict[TopicIndex, CommittedAt]] = field(default_factory=dict)
    """Group -> what it committed."""

    async def metadata(self, names: Sequence[str] | None = None) -> SourceMetadata:
        """See Source."""
        self._answer()
        found = {
            name: SourceTopic(
                name,
                topic.topic_id,
                tuple(SourcePartition(i % LEADERS, log.leader_epoch) for i, log in enumerate(topic.logs)),
            )
            for name, topic in self.topics.items()
            if names is None or name in names
        }
        return SourceMetadata(self.cluster_id, found)

    async def configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """See Source."""
        self._answer()
        return {name: self.topics[name].configs for name in names}

    async def bounds(self, leader: int, partitions: Mapping[TopicIndex, int]) -> dict[TopicIndex, SourceBounds]:
        """See Source."""
        self._answer()
        return {place: self._bounds(self._log(place)) for place in partitions}

    async def fetch(self, leader: int, positions: Sequence[SourcePosition], bytes_max: int) -> FetchAnswer:
        """See Source."""
        self._answer()
        self.fetches += 1
        parts = [self.spoil(self._fetched(each)) for each in positions]
        if not any(part.records for part in parts):
            await asyncio.sleep(0.01)
        self._answer()
        return FetchAnswer(parts)

    async def epoch_ends(self, leader: int, epochs: Mapping[TopicIndex, int]) -> dict[TopicIndex, int]:
        """See Source."""
        return dict.fromkeys(epochs, -1)

    async def producers(self, leader: int, partitions: Iterable[TopicIndex]) -> dict[TopicIndex, list[SourceProducer]]:
        """See Source."""
        self._answer()
        if self.silent:
            return {}
        return {place: _producers(self._log(place)) for place in partitions}

    async def groups(self) -> list[SourceGroup]:
        """See Source."""
        self._answer()
        return list(self.listed.values())

    async def group_offsets(self, coordinator: int, group_ids: Sequence[str]) -> dict[str, GroupOffsets]:
        """See Source."""
        self._answer()
        return {group_id: dict(self.committed.get(group_id, {})) for group_id in group_ids if group_id in self.listed}

    async def deny_writes(self, topic: str) -> None:
        """See Source."""
        self._answer()
        self.denied.add(topic)

    async def close(self) -> None:
        """See Source."""

    def _answer(self) -> None:
        if self.away:
            raise UnavailableError(self.away)

    def _log(self, place: TopicIndex) -> SourceLog:
        return self.topics[place[0]].logs[place[1]]

    def _bounds(self, log: SourceLog) -> SourceBounds:
        return SourceBounds(log.start, log.end, log.stable)

    def _fetched(self, position: SourcePosition) -> Fetched:
        topic = self.topics.get(position.topic)
        none = Fetched(position.topic, position.partition, ErrorCode.none, SourceBounds(), [], memoryview(bytearray()))
        if topic is None or topic.topic_id != position.topic_id:
            return none._replace(error=ErrorCode.unknown_topic_id)
        log = topic.logs[position.partition]
        if position.leader_epoch < log.leader_epoch:
            return none._replace(error=ErrorCode.fenced_leader_epoch)
        if position.last_epoch >= 0 and (diverging := _diverging(log, position)):
            return none._replace(bounds=self._bounds(log), diverging=diverging)
        if not log.start <= position.offset <= log.end:
            return none._replace(error=ErrorCode.offset_out_of_range)
        answer = log.fetch(position.offset, min(self.answer_bytes, position.bytes_max))
        return none._replace(bounds=self._bounds(log), aborted=answer.aborted, records=memoryview(answer.data))


def _producers(log: SourceLog) -> list[SourceProducer]:
    return [
        SourceProducer(producer_id, epoch, (sequence - 1) % (1 << 31), 1, log.open.get(producer_id, -1))
        for producer_id, (epoch, sequence) in log.sequences.items()
    ]


def _diverging(log: SourceLog, position: SourcePosition) -> tuple[int, int] | None:
    """Return the log's end of this epoch if it is below the position (KIP-595)."""
    same = [batch for batch in log.batches if batch.leader_epoch <= position.last_epoch]
    later = [batch for batch in log.batches if batch.leader_epoch > position.last_epoch]
    end = later[0].base if later else log.end
    if same and end < position.offset:
        return same[-1].leader_epoch, end
    return None


def truncate(log: SourceLog, offset: int) -> None:
    """Let another leader have the log only up to this offset."""
    log.batches = [batch for batch in log.batches if batch.last < offset]
    log.end, log.leader_epoch = offset, log.leader_epoch + 1


def renamed(topic: FakeTopic) -> FakeTopic:
    """The topic, created again under its name."""
    return replace(topic, topic_id=uuid.uuid4(), logs=[SourceLog() for _ in topic.logs])
