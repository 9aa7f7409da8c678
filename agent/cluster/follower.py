"""Follows the metadata log: the image that this agent answers from.

Place: poked by the feed (the head moved), asked by requests that meet an unknown name or id, and by
every heartbeat.
Invariant: `image` moves forward along the log, record by record, and is replaced whole; what it
shows was durable before (C1). Each read begins with the record that was applied last: when that one
is gone or another, the metastore was restored, and the image is built anew.
If the process dies, the next one reads the log again.
"""

from __future__ import annotations

import asyncio
import logging

from metastore.api import ClusterApi
from metastore.log.image import MetadataImage
from metastore.log.replay import apply

logger = logging.getLogger(__name__)

PAGE_RECORDS = 10_000


class MetadataFollower:
    """Holds the newest image; many may ask it to catch up, one reads at a time."""

    def __init__(self, api: ClusterApi) -> None:
        self.image = MetadataImage()
        self._api = api
        self._last_record: bytes | None = None
        self._running: asyncio.Task[MetadataImage] | None = None
        self._waiting: asyncio.Task[MetadataImage] | None = None

    async def catch_up(self) -> MetadataImage:
        """Follow the log at least to the head that it has now; the image there. One query when nothing changed.

        Callers that come while a read is under way share the next one: theirs must not be answered
        with a log that was read before they asked. Errors as in metastore/api.py.
        """
        return await asyncio.shield(self._next_read())

    def poke(self, metadata_offset: int) -> None:
        """The feed saw this head: catch up in the background if that is news."""
        if metadata_offset != self.image.offset and self._waiting is None:
            self._next_read().add_done_callback(_log_failure)

    async def close(self) -> None:
        """End a read that is under way."""
        tasks = [task for task in (self._running, self._waiting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _next_read(self) -> asyncio.Task[MetadataImage]:
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._read_after(self._running))
        return self._waiting

    async def _read_after(self, previous: asyncio.Task[MetadataImage] | None) -> MetadataImage:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._waiting = self._waiting, None
        return await self._read_to_head()

    async def _read_to_head(self) -> MetadataImage:
        image, last = self.image, self._last_record
        page_is_full = True
        while page_is_full:
            records = await self._api.read_metadata(max(image.offset - 1, 0), PAGE_RECORDS)
            page_is_full = len(records) == PAGE_RECORDS
            if last is not None:
                if not records or records[0] != last:
                    logger.warning("metadata log is not the one followed so far: image_offset=%d", image.offset)
                    image, last, page_is_full = MetadataImage(), None, True
                    continue
                records = records[1:]
            if records:
                image, last = apply(image, records), records[-1]
        self.image, self._last_record = image, last
        return image


def _log_failure(task: asyncio.Task[MetadataImage]) -> None:
    """Nobody awaits a poked read; the next poke or heartbeat tries again."""
    if not task.cancelled() and (error := task.exception()):
        logger.warning("metadata catch-up failed: error=%s", error)
