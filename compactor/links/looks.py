"""Look at the source and at the linked partitions every few seconds, and say what was found.

Place: between the rounds of a job `link-copy` (copying.py), which changes nothing meanwhile.
Invariant: a partition is copied only from the topic that it is a copy of: same cluster, same topic id. It is ready for
its promotion only after the source said, in this order, its producers and its ends, and the copy has all of that.
Our log start follows the source's, and never passes it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.compactor.links.copying import Copying
from headrace.compactor.links.partition_copy import OWN_PRODUCER, PartitionCopy
from headrace.compactor.links.producers import ProducerState, copied
from headrace.compactor.links.source import NO_LEADER, SourceBounds, SourceProducer, SourceTopic, TopicIndex
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.links import LinkApi, LinkedPartition, Promotion
from headrace.metastore.api.retention import LogStartTarget, RetentionApi
from headrace.storage.errors import CorruptError, HeadraceError, InvalidError

logger = logging.getLogger(__name__)

TOPICS_PER_REQUEST = 500
PARTITIONS_PER_CALL = 500
PRODUCERS_PER_CALL = 1_000
EXTENTS_PER_MOVE = 1_000


class LookTerms(NamedTuple):
    """What a job's looks have to know."""

    wants: Callable[[LinkedPartition], bool]
    """Tells the job's partitions from those of other shares."""
    cluster_id: str
    """The source's, as the link knows it; empty before the first report."""
    fences: bool
    """Whether writes are denied at the source before a promotion."""
    watch_seconds: float
    """How long the source of a promoted topic is watched for records that come too late, by the job that copied it."""


class Looks:
    """The looks of one job."""

    def __init__(
        self, copying: Copying, links: LinkApi, retention: RetentionApi, token: JobToken, terms: LookTerms
    ) -> None:
        self._copying, self._links, self._retention = copying, links, retention
        self._source, self._clock = copying.source, copying.clock
        self._token, (self._wants, self._cluster_id, self._fences, self._watch_seconds) = token, terms
        self._fenced: set[str] = set()
        self._watched: dict[TopicIndex, tuple[PartitionCopy, float]] = {}
        """Partitions of promoted topics, and until when they are watched."""

    async def at_rows(self) -> None:
        """Take new partitions, drop those that are linked no more, hear of promotions."""
        copies, now = self._copying.copies, self._clock.monotonic()
        rows = {row.partition_key: row for row in filter(self._wants, await self._links.linked_partitions(self._link))}
        for key in copies.keys() - rows.keys():
            gone = copies.pop(key)
            gone.end = gone.stored_end  # what was in memory came too late
            if gone.row.promotion is not Promotion.NONE and not self._fences:
                self._watched[gone.place] = gone, now + self._watch_seconds
        for key, row in rows.items():
            if key in copies:
                copies[key].row = row
                continue
            copies[key] = PartitionCopy.of(row, now)
            self._copying.needs_look = True

    async def at_source(self) -> None:
        """Look up who leads which partition, and whether the topics are still the same ones."""
        copies = self._all()
        names = sorted({copy.row.name for copy in copies})
        topics: dict[str, SourceTopic] = {}
        try:
            for first in range(0, len(names), TOPICS_PER_REQUEST):
                found = await self._source.metadata(names[first : first + TOPICS_PER_REQUEST])
                if self._cluster_id and found.cluster_id != self._cluster_id:
                    raise InvalidError(f"another cluster answers: expected={self._cluster_id} found={found.cluster_id}")
                topics |= found.topics
        except HeadraceError as error:
            for copy in copies:
                copy.leader = NO_LEADER
            self._copying.fail_source(error, tuple(copies))
            return
        self._copying.needs_look = False
        for copy in copies:
            self._take_topic(copy, topics.get(copy.row.name))

    async def at_bounds(self) -> None:
        """Ask for the ends of partitions if the source does not have the offset."""
        wanted = [copy for copy in self._all() if copy.needs_bounds and copy.leader != NO_LEADER]
        for leader, copies in _by_leader(wanted):
            await self._guarded(copies, self._ask_bounds(leader, copies))
        now = self._clock.monotonic()
        for copy in wanted:
            if copy.needs_bounds:
                continue
            if copy.bounds.end < copy.end:
                copy.fail(f"the source was truncated: it ends at {copy.bounds.end}, the copy at {copy.end}", now)

    async def at_reasons(self) -> None:
        """Find out why partitions do not grow."""
        now = self._clock.monotonic()
        stalled = [copy for copy in self._all() if copy.is_stalled(now)]
        for leader, copies in _by_leader(stalled):
            producers: Mapping[TopicIndex, Sequence[SourceProducer]] = {}
            with contextlib.suppress(HeadraceError):
                producers = await self._source.producers(leader, [copy.place for copy in copies])
            for copy in copies:
                copy.hangs(_why_stalled(copy, producers.get(copy.place, ())))

    async def at_promotions(self) -> None:
        """Make those ready that are to be promoted and have all that the source has."""
        asked = [copy for copy in self._all() if copy.row.promotion is not Promotion.NONE]
        if self._fences:
            await self._fence(asked)
        now = self._clock.monotonic()
        due = [
            copy
            for copy in asked
            if copy.may_fetch(now)
            and not copy.problem
            and copy.stored_end == copy.end >= copy.bounds.end >= 0
            and copy.ready_end != copy.stored_end
        ]
        for leader, copies in _by_leader(due):
            await self._guarded(copies, self._make_ready(leader, copies))

    async def at_lost(self) -> None:
        """Find out why chunks were refused. If a partition is still linked, another worker copied it: the job is over.
        Those that were promoted meanwhile are watched.
        """
        await self.at_rows()
        self._copying.is_over = self._copying.is_over or not self._copying.lost.isdisjoint(self._copying.copies)
        self._copying.lost.clear()

    async def at_late_records(self) -> int:
        """Look for records that came to sources of promoted topics: they are in no copy. How many are new."""
        now, late = self._clock.monotonic(), 0
        self._watched = {place: watched for place, watched in self._watched.items() if now < watched[1]}
        for leader, copies in _by_leader(copy for copy, _ in self._watched.values() if copy.leader != NO_LEADER):
            bounds: dict[TopicIndex, SourceBounds] = {}
            with contextlib.suppress(HeadraceError):
                bounds = await self._source.bounds(leader, dict.fromkeys((copy.place for copy in copies), -1))
            for copy in copies:
                end = bounds.get(copy.place, SourceBounds()).end
                if end > max(copy.end, copy.stored_end):
                    logger.warning(
                        "records came to the source after the promotion: link=%s topic=%s partition=%d offsets=%d-%d",
                        self._link,
                        *copy.place,
                        copy.end,
                        end - 1,
                    )
                    late += end - copy.end
                    copy.end = end
        return late

    @property
    def watches(self) -> bool:
        """Whether sources of promoted topics are watched."""
        return bool(self._watched)

    async def move_log_starts(self) -> None:
        """Let our log starts follow the source's, as far as the copy has come."""
        targets = [
            LogStartTarget(copy.row.partition_key, wanted)
            for copy in self._all()
            if (wanted := min(copy.bounds.start, copy.stored_end)) > copy.row.log_start_offset
        ]
        for first in range(0, len(targets), PARTITIONS_PER_CALL):
            some = targets[first : first + PARTITIONS_PER_CALL]
            await self._retention.move_log_starts(some, max_extents=EXTENTS_PER_MOVE)
            for target in some:
                copy = self._copying.copies[target.partition_key]
                copy.row = copy.row._replace(log_start_offset=target.offset)

    async def report(self) -> None:
        """Say where the source is, and what is wrong."""
        copies = self._all()
        for first in range(0, len(copies), PARTITIONS_PER_CALL):
            some = copies[first : first + PARTITIONS_PER_CALL]
            reports = [copy.report() for copy in some]
            await self._links.report_partitions(self._token, reports)
            for copy, report in zip(some, reports, strict=True):
                copy.lost -= report.lost

    # -- parts

    @property
    def _link(self) -> str:
        return self._copying.link

    def _all(self) -> list[PartitionCopy]:
        return list(self._copying.copies.values())

    def _take_topic(self, copy: PartitionCopy, topic: SourceTopic | None) -> None:
        """Take what the source says of the partition's topic."""
        now = self._clock.monotonic()
        copy.leader, copy.is_recreated = NO_LEADER, False
        if topic is None:
            copy.is_recreated = True
            copy.fail("the source has no topic of this name any more", now)
        elif topic.topic_id != copy.row.source_id:
            copy.is_recreated = True
            copy.fail("the topic was deleted at the source and created again", now)
        elif topic.problem:
            copy.fail(topic.problem, now)
        elif copy.row.partition_index >= len(topic.partitions):
            copy.fail("the source has no such partition", now)
        else:
            leader = topic.partitions[copy.row.partition_index]
            copy.leader, copy.leader_epoch = leader
            self._copying.needs_look = self._copying.needs_look or copy.leader == NO_LEADER

    async def _guarded(self, copies: list[PartitionCopy], work: Coroutine[Any, Any, None]) -> None:
        """Let errors of the source be problems of the partitions."""
        try:
            await work
        except _OfTheMetastore as error:
            raise error.error from error
        except HeadraceError as error:
            self._copying.fail_source(error, tuple(copies))

    async def _ask_bounds(self, leader: int, copies: list[PartitionCopy]) -> None:
        bounds = await self._source.bounds(leader, {copy.place: copy.leader_epoch for copy in copies})
        for copy in copies:
            if bounds[copy.place].error is ErrorCode.none:
                copy.bounds, copy.needs_bounds = bounds[copy.place], False
            else:
                self._copying.needs_look = True

    async def _fence(self, copies: Iterable[PartitionCopy]) -> None:
        """Deny writes to topics that are about to be promoted, once each."""
        for name in {copy.row.name for copy in copies} - self._fenced:
            try:
                await self._source.deny_writes(name)
                self._fenced.add(name)
            except HeadraceError as error:
                own = [copy for copy in copies if copy.row.name == name]
                self._copying.fail_source(CorruptError(f"cannot deny writes: {error}"), tuple(own))

    async def _make_ready(self, leader: int, copies: list[PartitionCopy]) -> None:
        """Add the states of producers that no copied batch showed, if the copy has all that the source has."""
        producers = await self._source.producers(leader, [copy.place for copy in copies])
        await self._ask_bounds(leader, copies)  # after the producers: what they did since would be above the end
        now = self._clock.monotonic()
        for copy in copies:
            if not copy.stored_end == copy.bounds.end == copy.bounds.stable:
                continue
            if copy.place not in producers:
                copy.fail("the source does not say which producers it knows (DescribeProducers)", now)
            elif await self._add(copy, producers[copy.place]):
                copy.ready_end = copy.stored_end
            else:
                copy.fail(OWN_PRODUCER, now)

    async def _add(self, copy: PartitionCopy, producers: Sequence[SourceProducer]) -> bool:
        """Add states; False if one has an id of this cluster."""
        states = [
            copied(copy.row.partition_key, each.producer_id, ProducerState(each.epoch, (), each.last_sequence))
            for each in producers
            if each.producer_id >= 0
            and each.epoch >= 0
            and not copy.producers.has(each.producer_id, each.epoch, each.last_sequence)
        ]
        for first in range(0, len(states), PRODUCERS_PER_CALL):
            try:
                added = await self._links.add_copied_producers(self._token, states[first : first + PRODUCERS_PER_CALL])
            except HeadraceError as error:
                raise _OfTheMetastore(error) from error
            if not all(added):
                return False
        return True


class _OfTheMetastore(Exception):
    """An error that is not the source's."""

    def __init__(self, error: HeadraceError) -> None:
        super().__init__(str(error))
        self.error = error


def _by_leader(copies: Iterable[PartitionCopy]) -> list[tuple[int, list[PartitionCopy]]]:
    found: defaultdict[int, list[PartitionCopy]] = defaultdict(list)
    for copy in copies:
        found[copy.leader].append(copy)
    return list(found.items())


def _why_stalled(copy: PartitionCopy, producers: Sequence[SourceProducer]) -> str:
    """Say what people can do something about."""
    bounds = copy.bounds
    if copy.end < bounds.stable:
        return f"the source sends nothing from offset {copy.end} on, although it has offsets up to {bounds.stable}"
    open_ones = [each for each in producers if each.open_since >= 0]
    if not open_ones:
        return (
            f"a transaction at the source is open since offset {bounds.stable}: the source does not name its producer"
        )
    first = min(open_ones, key=lambda each: each.open_since)
    return (
        f"a transaction at the source is open since offset {first.open_since}: producer id {first.producer_id}, epoch"
        f" {first.epoch}. Nothing behind it is copied before it ends (kafka-transactions.sh abort)"
    )
