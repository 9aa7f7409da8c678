"""Follows the metadata log to keep the image from which this process answers.

Place: triggered by the feed (the log has a new end), by requests with an unknown name or id, and by heartbeats,
unless their answer shows that there is nothing to read. MetadataMetrics shows the position of an agent or
controller, and the growth of the log (C14), after it has caught up for the first time.
Invariant: `image` advances along the log, record by record, and is replaced as a whole; everything that it
shows was durable before (C1). It starts from the newest snapshot. Each read begins with the record
that was applied last: if that record differs, the metastore was restored, and if it was truncated,
this agent was away for long; in both cases the image is rebuilt from a snapshot.
The metrics count records by the difference of successive images; a log that was restored to an earlier state counts
as no new records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.replay import ImageBuilder
from headrace.metastore.log.snapshot import load_snapshot
from headrace.storage.errors import CorruptError, TruncatedError

logger = logging.getLogger(__name__)

PAGE_RECORDS = 10_000


class MetadataFollower:
    """Holds the newest image; many callers may ask it to catch up, one reads at a time.

    `on_image` callbacks get every new image.
    """

    def __init__(self, api: ClusterApi) -> None:
        self.image = MetadataImage()
        self.on_image: list[Callable[[MetadataImage], None]] = []
        self._api = api
        self._last_record: bytes | None = None
        self._running: asyncio.Task[MetadataImage] | None = None
        self._waiting: asyncio.Task[MetadataImage] | None = None

    @property
    def last_record(self) -> bytes | None:
        """The record before the end of the image, framed; None before the first read."""
        return self._last_record

    async def catch_up(self) -> MetadataImage:
        """Follow the log at least to its current end; returns the image there. One query if nothing changed.

        Callers that arrive during a read share the next one, because they must not be answered
        from a log that was read before they asked. Errors as in metastore/api/ and replay.apply.
        """
        return await asyncio.shield(self._next_read())

    def poke(self, metadata_offset: int) -> None:
        """The feed saw this end of the log: catch up in the background if it is new."""
        if metadata_offset != self.image.offset and self._waiting is None:
            self._next_read().add_done_callback(_log_failure)

    async def close(self) -> None:
        """Cancel a read in progress."""
        tasks = [task for task in (self._running, self._waiting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _next_read(self) -> asyncio.Task[MetadataImage]:
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._read_after(self._running))
            self._waiting.add_done_callback(_retrieve)
        return self._waiting

    async def _read_after(self, previous: asyncio.Task[MetadataImage] | None) -> MetadataImage:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._waiting = self._waiting, None
        return await self._read_to_head()

    async def _read_to_head(self) -> MetadataImage:
        try:
            image, last = await self._follow(self.image, self._last_record)
        except (_AnotherLogError, TruncatedError) as error:
            logger.warning("rebuilding metadata image: image_offset=%d reason=%s", self.image.offset, error)
            image, last = await self._follow(MetadataImage(), None)
        changed = image.offset != self.image.offset or last != self._last_record
        self.image, self._last_record = image, last
        if changed:
            for listener in self.on_image:
                listener(image)
        return image

    async def _follow(self, image: MetadataImage, last: bytes | None) -> tuple[MetadataImage, bytes | None]:
        """The image at the end of the log, and the last applied record."""
        if last is None:
            image = await self._newest_snapshot()
        builder = ImageBuilder(image)
        page_is_full = True
        while page_is_full:
            records = await self._api.read_metadata(max(builder.offset - 1, 0), PAGE_RECORDS)
            page_is_full = len(records) == PAGE_RECORDS
            if builder.offset:
                if not records or last not in (None, records[0]):
                    raise _AnotherLogError("this is another metadata log than before")
                last, records = records[0], records[1:]
            if records:
                builder.add(records)
                last = records[-1]
        return (builder.finish() if builder.offset != image.offset else image), last

    async def _newest_snapshot(self) -> MetadataImage:
        snapshot = await self._api.newest_snapshot()
        if snapshot is None:
            return MetadataImage()
        return await asyncio.to_thread(load_snapshot, snapshot.data)


class _AnotherLogError(CorruptError):
    """The last applied record is not in this log."""


def _retrieve(task: asyncio.Task[MetadataImage]) -> None:
    """Each caller gets the error. A caller that was cancelled said why, and leaves a read that no caller waits for."""
    if not task.cancelled():
        task.exception()


def _log_failure(task: asyncio.Task[MetadataImage]) -> None:
    """A triggered read has no caller; the next trigger or heartbeat tries again."""
    if not task.cancelled() and (error := task.exception()):
        logger.warning("metadata catch-up failed: error=%s", error)


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
