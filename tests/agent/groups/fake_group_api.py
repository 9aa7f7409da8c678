"""GroupApi in memory.

Fault model: `fail_before[operation]` are raised before the operation does anything, one per call;
`fail_after[operation]` after it was done, so its answer is lost. `gates[operation]` holds a call back
until the test opens it: another call may overtake it. Epochs fence, and `is_live` says which agents'
claims bar others, as in metastore/api/groups.py.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.agent.groups.classic.saved import SavedGroup, decode
from headrace.metastore.api.groups import (
    CommittedOffset,
    GroupClaim,
    GroupKind,
    GroupListing,
    GroupRecord,
    LoadedSharePartition,
    ParentPosition,
    ShareState,
    StoredSharePartition,
    StoredShareState,
)
from headrace.metastore.api.transactions import PendingOffsetsAnswer, ProducerEpoch, TransactionVerdict
from headrace.metastore.life.numbers import NUMBER_BITS, life_of_number
from headrace.metastore.share_states import GroupProgress
from headrace.storage.errors import FencedError, HeadraceError
from tests.live_arguments import takes_copies

NOBODY = (-1, -1)


@dataclass
class FakeGroup:
    """A row; `holder` is (node id, broker epoch)."""

    epoch: int
    holder: tuple[int, int] = NOBODY
    record: GroupRecord | None = None


@takes_copies
@dataclass
class FakeGroupApi:
    """One metastore's groups; share it between the agents of a test."""

    is_live: Callable[[int, int], bool]
    groups: dict[str, FakeGroup] = field(default_factory=dict)
    offsets: dict[str, dict[int, CommittedOffset]] = field(default_factory=lambda: defaultdict(dict))
    shares: dict[str, dict[int, StoredSharePartition]] = field(default_factory=lambda: defaultdict(dict))
    share_revisions: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    high_watermarks: dict[int, int] = field(default_factory=dict)
    """By partition key, where it is not so high that it clips nothing."""
    verdict: TransactionVerdict = TransactionVerdict.DONE
    """Verdict on pending offsets."""
    pending_calls: list[tuple[str, ProducerEpoch, bool]] = field(default_factory=list)
    """(transactional id, producer, whether the group is added) of each."""
    deleted_keys: set[int] = field(default_factory=set)
    log_starts: dict[int, int] = field(default_factory=dict)
    """Partition key -> log start, where it is not 0."""
    child_begins: dict[int, int] = field(default_factory=dict)
    """Where children begin, by parent key."""
    life: int = 0
    begun: dict[tuple[str, int], int] = field(default_factory=dict)
    """(group id, partition key) -> the lowest offset at which a share group began."""
    found: dict[tuple[str, int], tuple[int, GroupProgress]] = field(default_factory=dict)
    """(group id, partition key) -> the life that found this of a share group."""
    epochs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    calls: Counter[str] = field(default_factory=Counter)
    fail_before: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    fail_after: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    gates: dict[str, list[asyncio.Event]] = field(default_factory=lambda: defaultdict(list))

    def take_over(self, group_id: str) -> None:
        """Another agent's claim, as after this agent was fenced."""
        self.groups[group_id].epoch = next(self.epochs)

    def begin_life(self, life: int) -> None:
        """Hand out the numbers of this life from now on."""
        self.life, self.epochs = life, itertools.count(life << NUMBER_BITS)

    def delete_partitions(self, keys: Sequence[int]) -> None:
        """Do the same as after their topic was deleted."""
        self.deleted_keys.update(keys)
        for offsets in self.offsets.values():
            for key in keys:
                offsets.pop(key, None)
        for group_id, shares in self.shares.items():
            for key in keys:
                shares.pop(key, None)
                self.share_revisions.pop((group_id, key), None)

    def saved(self, group_id: str) -> SavedGroup:
        """Return what a classic group's coordinator saved last."""
        record = self.groups[group_id].record
        assert record is not None
        return decode(record.data)

    async def claim_group(self, group_id: str, node_id: int, broker_epoch: int) -> GroupClaim | None:
        await self._begin("claim_group")
        if not self.is_live(node_id, broker_epoch):
            raise FencedError(f"agent may not coordinate: group={group_id} node_id={node_id}")
        group = self.groups.setdefault(group_id, FakeGroup(0))
        if group.holder != (node_id, broker_epoch) and self.is_live(*group.holder):
            return None
        group.epoch, group.holder = next(self.epochs), (node_id, broker_epoch)
        self._end("claim_group")
        return GroupClaim(group.epoch, group.record)

    async def release_groups(self, claims: Mapping[str, int]) -> None:
        await self._begin("release_groups")
        for group_id, epoch in claims.items():
            group = self.groups.get(group_id)
            if group is not None and group.epoch == epoch:
                group.holder = NOBODY
                record = group.record
                is_empty = record is None or (record.state == "Empty" and record.kind is not GroupKind.SHARE)
                if not self.offsets[group_id] and not self.shares[group_id] and is_empty:
                    del self.groups[group_id]
        self._end("release_groups")

    async def save_group(self, group_id: str, coordinator_epoch: int, record: GroupRecord) -> None:
        await self._begin("save_group")
        self._held(group_id, coordinator_epoch).record = record
        self._end("save_group")

    async def delete_group(self, group_id: str, coordinator_epoch: int) -> bool:
        await self._begin("delete_group")
        group = self._held(group_id, coordinator_epoch)
        del self.groups[group_id]
        offsets, shares = self.offsets.pop(group_id, {}), self.shares.pop(group_id, {})
        existed = group.record is not None or bool(offsets) or bool(shares)
        self._end("delete_group")
        return existed

    async def list_groups(self, group_ids: Sequence[str] | None = None) -> list[GroupListing]:
        await self._begin("list_groups")
        found = []
        for group_id, group in sorted(self.groups.items()):
            wanted = group_ids is None or group_id in group_ids
            if wanted and group.record is not None:
                record = group.record
                found.append(GroupListing(group_id, record.kind, record.state, record.protocol_type))
            elif wanted and self.offsets[group_id]:
                found.append(GroupListing(group_id, GroupKind.CLASSIC, "Empty", ""))
        return found

    async def commit_offsets(
        self, group_id: str, coordinator_epoch: int, offsets: Sequence[CommittedOffset]
    ) -> list[bool]:
        await self._begin("commit_offsets")
        self._held(group_id, coordinator_epoch)
        for offset in offsets:
            if offset.partition_key not in self.deleted_keys:
                self.offsets[group_id][offset.partition_key] = offset
        self._end("commit_offsets")
        return [offset.partition_key not in self.deleted_keys for offset in offsets]

    async def add_pending_offsets(
        self,
        transactional_id: str,
        asked: ProducerEpoch,
        group_id: str,
        coordinator_epoch: int,
        offsets: Sequence[CommittedOffset],
        *,
        adds_group: bool,
    ) -> PendingOffsetsAnswer:
        """`verdict` says what becomes of it; the offsets that were committed before stay."""
        await self._begin("add_pending_offsets")
        self._held(group_id, coordinator_epoch)
        self.pending_calls.append((transactional_id, asked, adds_group))
        if self.verdict is not TransactionVerdict.DONE:
            return PendingOffsetsAnswer(self.verdict, [])
        stored = self.offsets[group_id]
        for offset in offsets:
            before = stored.get(offset.partition_key, offset._replace(offset=-1))
            stored[offset.partition_key] = before._replace(is_pending=True)
        self._end("add_pending_offsets")
        return PendingOffsetsAnswer(self.verdict, [True for _ in offsets])

    async def fetch_offsets(self, group_id: str, partition_keys: Sequence[int] | None) -> list[CommittedOffset]:
        await self._begin("fetch_offsets")
        stored = self.offsets[group_id]
        keys = sorted(stored) if partition_keys is None else [key for key in partition_keys if key in stored]
        return [stored[key] for key in keys]

    async def parent_positions(self, group_id: str, parent_keys: Sequence[int]) -> list[ParentPosition]:
        await self._begin("parent_positions")
        stored = {key: offset.offset for key, offset in self.offsets[group_id].items()}
        return [
            ParentPosition(key, self.log_starts.get(key, 0), stored.get(key), self.child_begins.get(key))
            for key in parent_keys
        ]

    async def delete_offsets(self, group_id: str, coordinator_epoch: int, partition_keys: Sequence[int]) -> None:
        await self._begin("delete_offsets")
        self._held(group_id, coordinator_epoch)
        for key in partition_keys:
            self.offsets[group_id].pop(key, None)
            self.shares[group_id].pop(key, None)
            self.share_revisions.pop((group_id, key), None)
        self._end("delete_offsets")

    async def store_share_partitions(
        self, group_id: str, coordinator_epoch: int, revision: int, partitions: Sequence[StoredSharePartition]
    ) -> list[bool]:
        await self._begin("store_share_partitions")
        self._held(group_id, coordinator_epoch)
        if life_of_number(coordinator_epoch) < self.life:
            raise FencedError(f"claim of an earlier life: group={group_id} epoch={coordinator_epoch}")
        for each in partitions:
            at = (group_id, each.partition_key)
            is_newer = self.share_revisions.get(at, (0, 0)) < (coordinator_epoch, revision)
            if each.partition_key not in self.deleted_keys and is_newer:
                before = self.shares[group_id].get(each.partition_key)
                if before is not None and life_of_number(self.share_revisions[at][0]) < self.life:
                    self.found[at] = self.life, GroupProgress(*before[1:])
                if before is None:
                    self.begun.pop(at, None)
                    self.found.pop(at, None)
                self.begun[at] = min(self.begun.get(at, each.start_offset), each.start_offset)
                self.shares[group_id][each.partition_key] = each
                self.share_revisions[at] = coordinator_epoch, revision
        self._end("store_share_partitions")
        return [each.partition_key not in self.deleted_keys for each in partitions]

    async def load_share_partitions(self, group_id: str) -> list[LoadedSharePartition]:
        await self._begin("load_share_partitions")
        rows = self.shares[group_id]
        return [
            LoadedSharePartition(*rows[key], self.high_watermarks.get(key, 1 << 62), self.begun.get((group_id, key), 0))
            for key in sorted(rows)
        ]

    async def share_states(self, after: tuple[str, int], most: int) -> list[StoredShareState]:
        await self._begin("share_states")
        places = sorted((group_id, key) for group_id, rows in self.shares.items() for key in rows)
        return [self._share_state(place) for place in places if place > after][:most]

    def _share_state(self, place: tuple[str, int]) -> StoredShareState:
        group_id, key = place
        row, order = self.shares[group_id][key], self.share_revisions[place]
        state = ShareState(group_id, key, *order, self.begun[place], row.start_offset, row.kept)
        return StoredShareState(state, *self.found.get(place, (None, None)))

    async def _begin(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.gates[operation]:
            await self.gates[operation].pop(0).wait()
        await asyncio.sleep(0)
        if self.fail_before[operation]:
            raise self.fail_before[operation].pop(0)

    def _end(self, operation: str) -> None:
        if self.fail_after[operation]:
            raise self.fail_after[operation].pop(0)

    def _held(self, group_id: str, coordinator_epoch: int) -> FakeGroup:
        group = self.groups.get(group_id)
        if group is None or group.epoch != coordinator_epoch:
            raise FencedError(f"group has another coordinator: group={group_id} epoch={coordinator_epoch}")
        return group
