"""The logs as the owner of a share group sees them: implements agent/groups/share/logs.py with this agent's read path.

Place: made by agent/fetch/service.py, passed to the owner by agent/serve/paths.py: groups and fetch do not import each
other.
Invariant: an end is one that this agent's index or the primary has, so every offset below it is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from kio.schema.errors import ErrorCode

from headrace.agent.fetch.awaited import AwaitedLog
from headrace.agent.fetch.index.feed import FeedFollower
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.lookup import LookupStatus
from headrace.agent.fetch.offsets.timestamps import TimestampSearch
from headrace.agent.fetch.waiters import Waiter, Waiters
from headrace.config.group_configs import duration_ms
from headrace.metastore.api.read import ExtentQuery, IndexApi, OffsetKind, OffsetQuery, ReadableEnds
from headrace.storage.errors import UnavailableError


class LogEndsOfIndex:
    """Finds the ends of logs, for one agent."""

    def __init__(
        self,
        locator: Locator,
        metastore: IndexApi,
        search: TimestampSearch,
        waiters: Waiters,
        feed: FeedFollower,
        log: AwaitedLog,
    ) -> None:
        self._locator, self._metastore, self._search, self._waiters = locator, metastore, search, waiters
        self._feed, self._log = feed, log

    @property
    def is_draining(self) -> bool:
        """Whether nothing should wait any more."""
        return self._log.is_draining

    async def ends(self, offsets: Mapping[int, int], *, committed: bool) -> dict[int, ReadableEnds | ErrorCode]:
        """Partition key -> its ends, or why they are not known."""
        self._feed.read(offsets)
        queries = [ExtentQuery(key, offset, 1) for key, offset in offsets.items()]
        found: dict[int, ReadableEnds | ErrorCode] = {}
        for query, lookup in zip(queries, await self._locator.locate(queries) if queries else (), strict=True):
            if lookup.status is LookupStatus.GONE:
                found[query.partition_key] = ErrorCode.unknown_topic_or_partition
            elif lookup.status in (LookupStatus.FOUND, LookupStatus.OUT_OF_RANGE):
                end = lookup.last_stable_offset if committed else lookup.high_watermark
                found[query.partition_key] = ReadableEnds(lookup.log_start_offset, end)
            else:
                found[query.partition_key] = ErrorCode.kafka_storage_error
        return found

    async def beginnings(self, keys: Collection[int], reset: str) -> dict[int, int]:
        """Partition key -> the offset at which a group begins; those that are gone are left out. HeadraceError if it is
        not known.
        """
        duration = duration_ms(reset)
        if duration is not None:
            return await self._since(keys, self._feed.database_now_ms() - duration)
        return await self._special(keys, OffsetKind.EARLIEST if reset == "earliest" else OffsetKind.LATEST)

    async def high_watermarks(self, keys: Collection[int]) -> dict[int, int]:
        """Partition key -> its high watermark; those that are gone are left out. HeadraceError if it is not known."""
        return await self._special(keys, OffsetKind.LATEST)

    @contextmanager
    def watch(self, keys: Collection[int]) -> Iterator[Waiter]:
        """A waiter that hears of new records in these partitions."""
        with self._feed.following(keys), self._waiters.watch(keys) as waiter:
            yield waiter

    async def _special(self, keys: Collection[int], kind: OffsetKind) -> dict[int, int]:
        answers = await self._metastore.list_offsets([OffsetQuery(key, kind) for key in keys])
        return {key: answer.offset for key, answer in zip(keys, answers, strict=True) if answer.known}

    async def _since(self, keys: Collection[int], timestamp: int) -> dict[int, int]:
        """The first record of that time or later; where there is none, the end."""
        starts, ends = await self._special(keys, OffsetKind.EARLIEST), await self._special(keys, OffsetKind.LATEST)
        wanted = [key for key in keys if key in starts and key in ends]
        answers = await self._metastore.list_offsets([OffsetQuery(key, max(timestamp, 0)) for key in wanted])
        found = {}
        for key, answer in zip(wanted, answers, strict=True):
            record = None
            if answer.extent is not None:
                record = await self._search.first_record(answer.extent, starts[key], max(timestamp, 0))
            found[key] = ends[key] if record is None else record.offset
        if len(found) < len(wanted):
            raise UnavailableError("offsets not found")
        return found
