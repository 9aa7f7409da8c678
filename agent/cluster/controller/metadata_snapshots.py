"""Snapshots of the metadata log, and its truncation: a step of the active controller.

Place: a row of controller.py's table, in a separate task: a large snapshot takes longer than a round.
Invariant: a snapshot is saved only if it reads back as the image, because the log before it will be deleted. After
metadata.format 4 is in force, two snapshots follow, so that no salted password is left in the log or in a snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.cluster.controller.controller_times import ControllerTimes
from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.features import SCRAM_KEYS_FORMAT
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.storage.errors import CorruptError

logger = logging.getLogger(__name__)

CHECK_SECONDS = 30.0
TRUNCATED_ROWS = 10_000


class MetadataSnapshots:
    """One per candidate."""

    def __init__(
        self,
        api: Metastore,
        follower: MetadataFollower,
        times: Callable[[], ControllerTimes],
        registry: CollectorRegistry,
    ) -> None:
        self._api, self._follower, self._times = api, follower, times
        self._passwords_seen = 0
        self._lag = Gauge(
            "headrace_metadata_snapshot_lag_records",
            "Records of the metadata log after its newest snapshot, on the active controller; 0 on standbys",
            registry=registry,
        )

    def pause_seconds(self) -> float:
        """Return none if the log has secrets that are not needed any more since the last check."""
        return 0.0 if self._follower.image.passwords_until > self._passwords_seen else CHECK_SECONDS

    async def keep(self, epoch: int, image: MetadataImage, _: bool) -> bool:
        """Write a snapshot if one is due, and drop the log that no kept snapshot needs. True: another one is to
        follow."""
        self._passwords_seen = max(self._passwords_seen, image.passwords_until)
        state = await self._api.controller.snapshot_state()
        is_wanted = image.offset > state.end_offset and await self._log_has_passwords(image)
        if self._times().snapshot_is_due(state) or is_wanted:
            data = await asyncio.to_thread(_verified_snapshot, image)
            await self._api.controller.save_snapshot(epoch, StoredSnapshot(image.offset, data))
            logger.info("metadata snapshot written: end_offset=%d size=%d", image.offset, len(data))
            state = await self._api.controller.snapshot_state()
        self._lag.set(state.log_records)
        while await self._api.controller.truncate_metadata(epoch, TRUNCATED_ROWS) == TRUNCATED_ROWS:
            pass
        return (
            state.end_offset == image.offset
            and await self._log_has_passwords(image)
            and await self._repeat(epoch, image)
        )

    def stand_by(self) -> None:
        """Show that nothing is missing: the active controller says what is."""
        self._lag.set(0)

    async def _repeat(self, epoch: int, image: MetadataImage) -> bool:
        """Append a record that changes nothing, so that a second snapshot can follow the first."""
        levels = image.features[METADATA_FORMAT]
        record = FeatureLevelRecord(
            name=METADATA_FORMAT, min_feature_level=levels.min_level, max_feature_level=levels.max_level
        )
        return await self._api.cluster.append_records(image.offset, [record], controller_epoch=epoch)

    async def _log_has_passwords(self, image: MetadataImage) -> bool:
        """Return whether the log still has salted passwords or unencrypted keys of users that are no longer needed.

        They are gone after two snapshots without them: then the log before the older snapshot is deleted.
        """
        if image.metadata_format < SCRAM_KEYS_FORMAT or not image.passwords_until:
            return False
        return await self._api.cluster.metadata_log_start() < image.passwords_until - 1


def _verified_snapshot(image: MetadataImage) -> bytes:
    """CorruptError unless it reads back as the image: the log before it will be deleted."""
    data = encode_snapshot(image)
    if load_snapshot(data) != image:
        raise CorruptError(f"metadata snapshot does not read back: end_offset={image.offset}")
    return data
