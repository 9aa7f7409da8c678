"""The partitions of one share group that this agent holds: loaded, begun, stored under the group's claim.

Place: under owner.py; between a ShareGroup and the metastore's GroupApi. ShareLogs is what the owner has to know of
the logs; agent/fetch/service.py implements it.
Invariant: no partition is used before its beginning is stored, and none before what the last owner stored was read.
One write is under way at a time; the next one has everything that changed meanwhile (group commit). A write with an
unknown outcome is repeated until it is stored or fenced: no answer says that a record is done before that is stored.
If this process is killed, the next owner reads what was stored; requests that waited end with their connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from kio.schema.errors import ErrorCode

from headrace.agent.groups.claims import Held
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.share.group import SHARE_PARTITION_BYTES, ShareGroup
from headrace.agent.groups.share.metrics import ShareMetrics
from headrace.agent.groups.share.share_partition import SharePartition
from headrace.agent.limits.client_rows import COMMITTED_OFFSETS
from headrace.metastore.api.groups import ShareState, StoredSharePartition
from headrace.metastore.api.read import ReadableEnds
from headrace.metastore.keys import split_partition_key
from headrace.metastore.share_states import KeptRange, decode_kept, encode_kept, was_set_by_hand
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError


class ShareWaiter(Protocol):
    """One turn that waits for records."""

    def reset(self) -> None:
        """Forget the news so far: the caller looks next."""

    def hear(self, new_bytes: int) -> None:
        """Something arrived, or became available."""

    async def wait(self, needed_bytes: int, clock: Clock, seconds: float) -> None:
        """Return after news since `reset`, or after `seconds`."""


class ShareLogs(Protocol):
    """The logs as this agent knows them: an end may be behind the primary's, never ahead."""

    @property
    def is_draining(self) -> bool:
        """Whether nothing should wait any more."""

    async def ends(self, offsets: Mapping[int, int], *, committed: bool) -> dict[int, ReadableEnds | ErrorCode]:
        """Partition key -> its ends, or why they are not known. `offsets`: where the group's records end."""

    async def beginnings(self, keys: Collection[int], reset: str) -> dict[int, int]:
        """Partition key -> the offset at which a group begins, by share.auto.offset.reset; those that are gone are left
        out. HeadraceError if it is not known.
        """

    async def high_watermarks(self, keys: Collection[int]) -> dict[int, int]:
        """Partition key -> its high watermark as the primary has it; those that are gone are left out. HeadraceError if
        it is not known.
        """

    def watch(self, keys: Collection[int]) -> AbstractContextManager[ShareWaiter]:
        """A waiter that hears of new records in these partitions."""


logger = logging.getLogger(__name__)

AGAIN_SECONDS = 0.2
"""After a write that failed or has an unknown outcome."""
EARLIEST = "earliest"
NO_ROOM = ErrorCode.kafka_storage_error
"""The answer of a partition that cannot begin: clients ask again. Java's share consumer does not expect
POLICY_VIOLATION there."""


class GroupPartitions:
    """The partitions of one Held, as long as that is current."""

    def __init__(
        self,
        held: Held,
        group: ShareGroup,
        groups: HeldGroups,
        clock: Clock,
        metrics: ShareMetrics,
    ) -> None:
        self._metrics = metrics
        self.held, self.group = held, group
        self._api, self._rows = groups.api, groups.rows
        self._groups, self._cluster, self._clock = groups, groups.cluster, clock
        self.states: dict[int, ShareState] = {}
        """Partition key -> what is stored for certain: members may have heard of it."""
        self._loading = asyncio.Lock()
        self._is_loaded = False
        self._writing: asyncio.Task[None] | None = None
        self._revision = 0
        """Of the last write. One with an unknown outcome may arrive after a later one."""
        self._is_stopped = False

    @property
    def is_over(self) -> bool:
        """Whether another agent, or another group, continues, or the next claim."""
        is_current = self._groups.is_current(self.held) and self.held.group is self.group
        return self._is_stopped or self.group.is_dead or not is_current

    def stop(self) -> bool:
        """Write nothing any more. Return whether nothing was ever written under this claim, so that none is under way:
        what earlier claims wrote is fenced.
        """
        self._is_stopped = True
        return not self._revision

    async def ready(self, keys: Collection[int], logs: ShareLogs) -> dict[int, ErrorCode]:
        """Load or begin what no member has read yet. Return why some cannot be used. What no member subscribes does not
        begin, so that a client that has left does not bring back what was deleted.

        HeadraceError if it is not known.
        """
        if self._is_loaded and all(map(self._is_begun, keys)):
            return {}
        await self.load()
        async with self._loading:
            missing = [key for key in keys if not self._is_begun(key)]
            codes = self._gone(missing)
            wanted = [key for key in missing if key not in codes and self._is_subscribed(key)]
            return codes | (await self._begin(wanted, logs) if wanted and not self.is_over else {})

    async def set_starts(self, starts: Mapping[int, int]) -> ErrorCode:
        """Begin at these offsets, if the group has no member. Return once that is stored, or why it is not."""
        async with self._loading:
            if self.is_over:
                return ErrorCode.not_coordinator
            if self.group.members:
                return ErrorCode.non_empty_group
            topics = {key: self._keys_of_topic(split_partition_key(key)[0]) for key in starts}
            read = {key for key, every in topics.items() if any(map(self._is_begun, every))}
            for key, start in starts.items():
                partition = self.group.partitions[key] = self.new_partition(start)
                partition.is_set_by_hand, partition.changes = key not in read, 1
            return ErrorCode.none if await self.store(starts) else ErrorCode.not_coordinator

    async def load(self) -> None:
        """Read what the last owner stored, once. HeadraceError if it is not known."""
        async with self._loading:
            if not self._is_loaded:
                await self._load()

    def new_partition(self, start: int, kept: Iterable[KeptRange] = ()) -> SharePartition:
        """Return a partition that counts for this agent."""
        return SharePartition(start, kept, self._metrics.tally)

    def unstored(self, keys: Iterable[int]) -> list[int]:
        """Return those with changes that are not stored."""
        partitions = self.group.partitions
        return [key for key in keys if key in partitions and partitions[key].changes > partitions[key].stored_changes]

    async def store(self, keys: Iterable[int]) -> bool:
        """Return once what changed in these partitions before the call is stored; False if it never will be."""
        partitions = self.group.partitions
        wanted = {key: partitions[key].changes for key in self.unstored(keys)}

        def is_waiting(key: int, changes: int) -> bool:
            now = partitions.get(key)  # maybe another one: altered, or begun again after it was gone
            return now is not None and now.stored_changes < min(changes, now.changes)

        while any(is_waiting(key, changes) for key, changes in wanted.items()):
            if self.is_over:
                return False
            if self._writing is None:
                self._writing = asyncio.create_task(self._write())
            await asyncio.wait([self._writing])
        return not self.is_over

    async def not_stored(self, keys: Iterable[int]) -> list[int]:
        """Return, once what changed in these partitions before the call is stored, those of which it never will be."""
        before = {key: self.group.partitions.get(key) for key in keys}
        if not await self.store(before):
            return list(before)
        return [key for key, each in before.items() if each is None or self.group.partitions.get(key) is not each]

    async def _load(self) -> None:
        began = self._clock.monotonic()
        await self._read_rows()
        if not self.is_over:
            self._metrics.load_seconds.observe(self._clock.monotonic() - began)
            self._is_loaded = True

    async def _read_rows(self) -> None:
        """Read what is stored of partitions that are not here."""
        rows = await self._api.load_share_partitions(self.group.group_id)
        if self.is_over:
            return
        for key, start, kept, high_watermark, begun in rows:
            if key in self.group.partitions:
                continue
            ranges = decode_kept(kept, high_watermark)
            partition = self.group.partitions[key] = self.new_partition(min(start, high_watermark), ranges)
            partition.is_set_by_hand = was_set_by_hand(kept)
            self.states[key] = ShareState(self.group.group_id, key, self.held.epoch, 0, begun, start, kept)

    async def _begin(self, keys: list[int], logs: ShareLogs) -> dict[int, ErrorCode]:
        """Begin in all partitions of each topic that no member has read yet, by share.auto.offset.reset, except where
        an offset was set; in a partition that a topic got later, begin with its first record, or where a doubling of
        the topic says that the group begins.
        """
        codes: dict[int, ErrorCode] = {}
        for number in sorted({split_partition_key(key)[0] for key in keys}):
            if self.is_over:
                break
            every = self._keys_of_topic(number)
            new = [key for key in every if key not in self.group.partitions]
            if 0 < len(new) < len(every):
                await self._read_rows()
                new = [key for key in new if key not in self.group.partitions]
            if new and not self.is_over:
                codes |= await self._begin_topic(every, new, logs)
            if not codes and not self.is_over:
                self._note_read(every)
        gone = [key for key in keys if key not in self.group.partitions and key not in codes]
        return codes | dict.fromkeys(gone, ErrorCode.unknown_topic_or_partition)

    async def _begin_topic(self, every: Collection[int], new: list[int], logs: ShareLogs) -> dict[int, ErrorCode]:
        """Begin in the `new` ones of a topic's partitions. Return why some cannot be used."""
        if self._rows is not None and not await self._rows.has_room(COMMITTED_OFFSETS, len(new)):
            self._rows.refused(COMMITTED_OFFSETS)
            return dict.fromkeys(new, NO_ROOM)
        if not self._has_memory(len(new)):
            return dict.fromkeys(new, NO_ROOM)
        reset = EARLIEST if any(map(self._is_begun, every)) else self.group.configs().offset_reset
        begins = await logs.beginnings(new, reset)
        if self.is_over:
            return {}
        rows = [StoredSharePartition(key, at, encode_kept(())) for key, at in sorted(begins.items())]
        stored = await self._send(rows) if rows else []
        if not self.is_over:
            for row, is_there in zip(rows, stored, strict=True):
                if is_there:
                    self.group.partitions[row.partition_key] = self.new_partition(row.start_offset)
        return {}

    def _is_begun(self, key: int) -> bool:
        """Return whether a member has read the partition's topic since it is there, so that it has its start."""
        partition = self.group.partitions.get(key)
        return partition is not None and not partition.is_set_by_hand

    def _is_subscribed(self, key: int) -> bool:
        """Return whether a member of the group subscribes the partition's topic."""
        topic = self._cluster.image.topics_by_number.get(split_partition_key(key)[0])
        return topic is not None and topic.name in self.group.subscribed_topics()

    def _gone(self, keys: Iterable[int]) -> dict[int, ErrorCode]:
        """Return a code for those that the group has not begun, if their topic is gone."""
        topics, partitions = self._cluster.image.topics_by_number, self.group.partitions
        gone = [key for key in keys if key not in partitions and split_partition_key(key)[0] not in topics]
        return dict.fromkeys(gone, ErrorCode.unknown_topic_or_partition)

    def _note_read(self, keys: Iterable[int]) -> None:
        """A member reads the topic of these partitions: one that it gets from now on was added later."""
        for key in keys:
            partition = self.group.partitions.get(key)
            if partition is not None and partition.is_set_by_hand:
                partition.is_set_by_hand = False
                partition.changes += 1

    def _keys_of_topic(self, number: int) -> list[int]:
        """Return the keys of all partitions of a topic; none if it is gone."""
        topic = self._cluster.image.topics_by_number.get(number)
        return [] if topic is None else [key for index in topic.unmerged if (key := topic.key(index)) is not None]

    def _has_memory(self, count: int) -> bool:
        """Return whether the group may have so many partitions more. One without members may: it can be released."""
        group = self.group
        if not group.members:
            return True
        growth = SHARE_PARTITION_BYTES * count
        return self._groups.memory.add(group.group_id, group.address, growth) is ErrorCode.none

    async def _send(self, rows: list[StoredSharePartition]) -> list[bool]:
        self._revision = revision = self._revision + 1
        stored = await self._api.store_share_partitions(self.group.group_id, self.held.epoch, revision, rows)
        for (key, start, kept), is_there in zip(rows, stored, strict=True):
            before = self.states.pop(key, None)
            if is_there:
                begun = start if before is None else min(before.begun_offset, start)
                self.states[key] = ShareState(self.group.group_id, key, self.held.epoch, revision, begun, start, kept)
        return stored

    async def _write(self) -> None:
        try:
            while not self.is_over and not await self._write_once():
                await self._clock.sleep(AGAIN_SECONDS)
        except Exception:
            logger.exception("share group dropped: group=%s", self.group.group_id)
            self._groups.drop(self.held)
        finally:
            self._writing = None

    async def _write_once(self) -> bool:
        """Write all that changed. False if it has to be repeated."""
        partitions = self.group.partitions
        changed = [(key, partitions[key], partitions[key].changes) for key in sorted(self.unstored(partitions))]
        rows = [
            StoredSharePartition(key, each.start, encode_kept(each.kept(), is_set_by_hand=each.is_set_by_hand))
            for key, each, _ in changed
        ]
        began = self._clock.monotonic()
        try:
            stored = await self._send(rows)
            self._metrics.store_seconds.observe(self._clock.monotonic() - began)
        except FencedError:
            self._groups.drop(self.held)
            return True
        except HeadraceError as error:
            group_id = self.group.group_id
            logger.warning("share group not stored: group=%s partitions=%d error=%s", group_id, len(rows), error)
            return False
        for (key, each, changes), is_there in zip(changed, stored, strict=True):
            each.stored_changes = changes
            if not is_there and partitions.get(key) is each:  # it was deleted; one that has its key now is another
                del partitions[key]
        return True
