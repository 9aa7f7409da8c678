"""Metrics of a process that follows the metadata log: its position, and the growth of the log (C14).

Place: agents and controllers, after they have caught up for the first time: earlier records are not counted.
Invariant: counts records by the difference of successive images; a log that was restored to an earlier
state counts as no new records.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.log.image import MetadataImage


class MetadataMetrics:
    """One set per process with a follower."""

    def __init__(self, follower: MetadataFollower, registry: CollectorRegistry) -> None:
        self._applied = follower.image.offset
        self._offset = Gauge(
            "headrace_metadata_offset",
            "The next offset of the metadata log that this process has not applied",
            registry=registry,
        )
        self._committed = Counter(
            "headrace_metadata_committed_records",
            "Records committed to the metadata log by all processes, as this process followed them",
            registry=registry,
        )
        self._offset.set(self._applied)
        follower.on_image.append(self._followed)

    def _followed(self, image: MetadataImage) -> None:
        self._committed.inc(max(image.offset - self._applied, 0))
        self._offset.set(image.offset)
        self._applied = image.offset
