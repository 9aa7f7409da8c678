"""Sets the boundaries of topics that double: a step of the active controller.

Place: a round of controller.py. From its boundary on, a parent gets no key that moved (partitions/splitting.py).
Invariant: a boundary is set at the log's head by what the store says of the split at that time; the store checks that
no moved key has come meanwhile. A controller that takes over looks again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.splits import QuietSplit
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import TopicImage
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between looks, while any split has no boundary."""
SPLITS_PER_LOOK = 500


class BoundaryApi(Protocol):
    """What it asks of the metastore: see metastore.api.splits.SplitApi."""

    async def quiet_splits(self, limit: int) -> Sequence[QuietSplit]:
        """Those that are due."""

    async def set_split_boundary(self, controller_epoch: int, expected_head: int, split: QuietSplit) -> bool:
        """Return whether it is set."""


class SplitBoundaries:
    """One per candidate; `step` is called in each round of the active controller."""

    def __init__(self, api: BoundaryApi, follower: MetadataFollower, clock: Clock) -> None:
        self._api, self._follower, self._clock = api, follower, clock
        self._next_look = 0.0
        self._seen: Mapping[uuid.UUID, TopicImage] | None = None
        self._is_waiting = False

    async def step(self, controller_epoch: int) -> None:
        """Set those that are due. FencedError for a stale epoch."""
        now = self._clock.monotonic()
        if now < self._next_look or not self._waits():
            return
        self._next_look = now + LOOK_SECONDS
        image = self._follower.image
        for split in await self._api.quiet_splits(SPLITS_PER_LOOK):
            if not await self._api.set_split_boundary(controller_epoch, image.offset, split):
                return  # the next look finds what is due then
            parent = split_partition_key(split.parent_key)[1]
            logger.info(
                "boundary set: topic_id=%s partition=%d offset=%d", split.topic_id, parent, split.high_watermark
            )
            image = await self._follower.catch_up()

    def _waits(self) -> bool:
        """Return whether some split has no boundary; found again only when topics changed."""
        topics = self._follower.image.topics_by_id
        if topics is not self._seen:
            self._seen = topics
            self._is_waiting = any(
                split.boundary is None for topic in topics.values() for split in topic.splits.values()
            )
        return self._is_waiting
