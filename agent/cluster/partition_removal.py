"""Removes marked partitions that are empty: a step of the active controller.

Place: a round of controller.py. Retention and DeleteRecords empty the partitions; nothing is announced to it.
Invariant: each removal is planned from the newest image and carried out at its offset, so a controller that takes over
continues by looking again. The store checks once more that the partition is empty.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.retention import OldestExtents, OldestQuery
from headrace.metastore.api.topics import RemovalOutcome
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.partitions.changes import Removal, removals
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Pause between looks, while any partition is marked."""
PARTITIONS_PER_LOOK = 500
ROWS_PER_CALL = 5_000
"""Rows of each kind that a partition has left, removed in one transaction."""


class RemovalApi(Protocol):
    """What it asks of the metastore."""

    async def oldest_extents(self, queries: Sequence[OldestQuery]) -> tuple[int, list[OldestExtents]]:
        """See metastore.api.retention.RetentionApi."""

    async def remove_partition(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, removal: Removal, *, limit: int
    ) -> RemovalOutcome:
        """See metastore.api.topics.PartitionApi."""


class PartitionRemover:
    """One per candidate; `step` is called in each round of the active controller."""

    def __init__(self, api: RemovalApi, follower: MetadataFollower, clock: Clock) -> None:
        self._api, self._follower, self._clock = api, follower, clock
        self._next_look = 0.0
        self._seen: Mapping[uuid.UUID, TopicImage] | None = None
        self._marked: list[uuid.UUID] = []

    async def step(self, controller_epoch: int) -> None:
        """Remove what is empty now. FencedError for a stale epoch."""
        image = self._follower.image
        now = self._clock.monotonic()
        if now < self._next_look or not self._topics(image):
            return
        self._next_look = now + LOOK_SECONDS
        for topic_id in self._topics(image):
            await self._remove_empty(controller_epoch, topic_id)

    def _topics(self, image: MetadataImage) -> list[uuid.UUID]:
        """Those with marked partitions; found again only when topics changed."""
        if image.topics_by_id is not self._seen:
            self._seen = image.topics_by_id
            self._marked = [topic_id for topic_id, topic in image.topics_by_id.items() if topic.before_deletion]
        return self._marked

    async def _remove_empty(self, controller_epoch: int, topic_id: uuid.UUID) -> None:
        """All of a topic, one after the other, until one cannot go."""
        image = self._follower.image
        topic = image.topics_by_id.get(topic_id)
        empty = frozenset[int]() if topic is None else await self._empty(topic)
        for removal in () if topic is None else removals(topic.ordered_partitions, empty):
            outcome = RemovalOutcome.UNFINISHED
            while outcome is RemovalOutcome.UNFINISHED:
                outcome = await self._api.remove_partition(
                    controller_epoch, image.offset, topic_id, removal, limit=ROWS_PER_CALL
                )
            if outcome is not RemovalOutcome.REMOVED:
                return  # the next look plans again
            logger.info("partition removed: topic_id=%s partition=%d", topic_id, removal.partition)
            image = await self._follower.catch_up()

    async def _empty(self, topic: TopicImage) -> frozenset[int]:
        """The marked partitions without records."""
        by_key = {key: index for index in topic.marked if (key := topic.key(index)) is not None}
        keys, found = list(by_key), set[int]()
        for first in range(0, len(keys), PARTITIONS_PER_LOOK):
            queries = [OldestQuery(key, 1) for key in keys[first : first + PARTITIONS_PER_LOOK]]
            _, logs = await self._api.oldest_extents(queries)
            found |= {
                by_key[log.partition_key]
                for log in logs
                if log.known and log.log_start_offset == log.high_watermark and not log.has_leftovers
            }
        return frozenset(found)
