"""A topic doubles for clients that know only the count: checked, announced, carried out; and how far it is.

Place: behind the request of `headrace topics alter --double` (scale_topic.py). What becomes of batches and readers
then is in metastore/partitions/splitting.py and groups/consumer/gates.py.
Invariant: the announcement (DoubleTopicRecord) is in the log first, and the count changes when all agents that are not
fenced have applied it: so none of them shows the old count afterwards (cluster/newest_counts.py). From the announcement
on no bulk write is decided for the topic, and the count changes when those that are decided are complete. Each step is
planned from the log's head alone: after a crash in between, the request continues when it is repeated. An announcement
without a doubling costs a look at the log's head per answer about the topic, and ends with the next change of its
count; bulk writes are decided again after two minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict, Waits, change_log
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.topics import Doubling, ReadingGroup
from headrace.metastore.log.features import PARTITION_CHANGES_FORMAT
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.own_records import DoubleTopicRecord
from headrace.metastore.partitions.changes import Expansion, change_count
from headrace.metastore.partitions.splitting import BOUNDARY_QUIET_MS, PRODUCER_QUIET_MS
from headrace.protocol.own_requests import some_groups
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError

LOOK_SECONDS = 0.1
"""Pause between looks whether the agents have applied the announcement."""


class WantedDoubling(NamedTuple):
    """`quiet_ms`: a boundary is set when no key that moved came for so long. `force`: with any readers.

    `partition_count`: the one to reach, 0 for twice what the topic has; one that has it is not doubled again.
    """

    topic: str
    force: bool = False
    quiet_ms: int = BOUNDARY_QUIET_MS
    partition_count: int = 0


class DoublingState(NamedTuple):
    """How far a topic is, and who reads it."""

    topic: TopicImage
    readers: list[ReadingGroup]

    @property
    def boundaries(self) -> int:
        """Number of boundaries that are set."""
        return sum(split.boundary is not None for split in self.topic.splits.values())


class TopicDoubling:
    """Doubles topics, one request at a time."""

    def __init__(self, cluster: ClusterView, api: Metastore, clock: Clock) -> None:
        self._cluster, self._api, self._clock = cluster, api, clock

    async def look(self, name: str) -> DoublingState | Verdict:
        """The topic's state at the log's head."""
        try:
            topic = (await self._cluster.catch_up()).topics_by_name.get(name)
            if topic is None:
                return Verdict(ErrorCode.unknown_topic_or_partition, "topic does not exist")
            return DoublingState(topic, list(await self._api.topics.topic_readers(topic.topic_id)))
        except HeadraceError as error:
            return Verdict.failed(error)

    async def double(self, wanted: WantedDoubling, deadline: float, *, validate_only: bool) -> Verdict:
        """`deadline` in seconds of the clock's monotonic()."""
        followed_to: int | None = None

        async def judge(image: MetadataImage, in_doubt: Doubling | None) -> Doubling | Verdict:
            """Return the doubling to do, or why there is none. `in_doubt`: the attempt before, with an unknown outcome;
            if the topic has the count that it would have set, it took place.
            """
            topic = image.topics_by_name.get(wanted.topic)
            attempted = None if in_doubt is None else in_doubt.change.undeleted
            if topic is not None and topic.ordered_partitions.undeleted == attempted:
                return Verdict()
            planned = plan_doubling(image, topic, wanted)
            if isinstance(planned, Verdict):
                return planned
            if not wanted.force and (refusal := why_not(await self._api.topics.topic_readers(planned.topic_id))):
                return refusal
            return Verdict() if validate_only else planned

        async def take_step(image: MetadataImage, planned: Doubling) -> bool | Waits:
            nonlocal followed_to
            count, left = planned.change.undeleted, await self._api.topics.announce_counts([planned.topic_id])
            if image.topics_by_id[planned.topic_id].doubling != count:
                announced = DoubleTopicRecord(topic_id=planned.topic_id, partition_count=count)
                followed_to = None
                appended = await self._api.cluster.append_records(image.offset, [announced])
                return Waits("agents have not heard of it yet; repeat the request", seconds=0) if appended else False
            followed_to = image.offset if followed_to is None else followed_to
            if behind := await self._api.topics.agents_behind(followed_to):
                reason = f"agents have not heard of it yet: node_ids={list(behind)}; repeat the request"
                return Waits(reason, LOOK_SECONDS)
            return unfinished_writes(left) if left else await self._api.topics.double_topic(image.offset, planned)

        try:
            return await change_log(self._cluster, self._clock, judge, take_step, deadline)
        except HeadraceError as error:
            return Verdict.failed(error)


def unfinished_writes(chunks: int) -> Waits:
    """Return why a topic does not grow yet."""
    return Waits(f"decided bulk writes are being completed first: chunks={chunks}; repeat the request", LOOK_SECONDS)


def plan_doubling(image: MetadataImage, topic: TopicImage | None, wanted: WantedDoubling) -> Doubling | Verdict:
    """The transaction, or why there is none: the topic cannot double now, or has the wanted count."""
    if topic is None:
        return Verdict(ErrorCode.unknown_topic_or_partition, "topic does not exist")
    if topic.ordered_partitions.undeleted == wanted.partition_count and topic.halving < 0:
        return Verdict()
    if image.metadata_format < PARTITION_CHANGES_FORMAT:
        message = f"topics double from metadata.format {PARTITION_CHANGES_FORMAT} on: raise the level first"
        return Verdict(ErrorCode.unsupported_version, message)
    partitions = topic.ordered_partitions
    times, rest = divmod(partitions.undeleted, partitions.initial)
    if rest or times & (times - 1):
        message = (
            f"the topic doubles only from its initial count times a power of two: count={partitions.undeleted}"
            f" initial={partitions.initial}"
        )
        return Verdict(ErrorCode.invalid_partitions, message)
    if refusal := why_unfinished(topic):
        return refusal
    try:
        change = change_count(partitions, 2 * partitions.undeleted)
    except InvalidError as error:
        return Verdict(ErrorCode.invalid_partitions, str(error))
    assert isinstance(change, Expansion)
    if wanted.partition_count not in (0, change.undeleted):
        message = f"the topic doubles to {change.undeleted} partitions, not to {wanted.partition_count}"
        return Verdict(ErrorCode.invalid_partitions, message)
    return Doubling(
        topic.topic_id, partitions.initial, partitions.undeleted, change, PRODUCER_QUIET_MS, wanted.quiet_ms
    )


def why_unfinished(topic: TopicImage) -> Verdict | None:
    """The refusal of any change of the count while a doubling is under way."""
    waiting = sum(split.boundary is None for split in topic.splits.values())
    if not waiting:
        return None
    message = f"the last doubling is not over: partitions without a boundary={waiting} of {len(topic.splits)}"
    return Verdict(ErrorCode.reassignment_in_progress, message)


def why_not(readers: Sequence[ReadingGroup]) -> Verdict | None:
    """The refusal for readers that would not keep the order. Share groups never do."""
    others = [each.group_id for each in readers if each.kind not in (GroupKind.CONSUMER, GroupKind.SHARE)]
    if others:
        reason = "not in groups of the consumer protocol (KIP-848), so they read children at once"
        message = f"{reason}: {some_groups(others)}"
        return Verdict(ErrorCode.invalid_request, message)
    late = [reader.group_id for reader in readers if reader.late]
    if late:
        message = f"have not committed all that is before the boundaries of the last doubling: {some_groups(late)}"
        return Verdict(ErrorCode.invalid_request, message)
    return None
