"""GroupApi in memory.

Fault model: `fail_before[operation]` are raised before the operation does anything, one per call;
`fail_after[operation]` after it was done, so its answer is lost. `gates[operation]` holds a call back
until the test opens it: another call may overtake it. Epochs fence as in metastore/api.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from metastore.values import CommittedOffset
from storage.errors import FencedError, HeadraceError


@dataclass
class FakeGroupApi:
    """One metastore's groups; share it between the agents of a test."""

    groups: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    offsets: dict[str, dict[int, CommittedOffset]] = field(default_factory=lambda: defaultdict(dict))
    deleted_keys: set[int] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    fail_before: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    fail_after: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    gates: dict[str, list[asyncio.Event]] = field(default_factory=lambda: defaultdict(list))

    async def claim_group(self, group_id: str, node_id: int, broker_epoch: int) -> tuple[int, bytes]:
        await self._begin("claim_group")
        epoch, state = self.groups.get(group_id, (0, b""))
        self.groups[group_id] = (epoch + 1, state)
        self._end("claim_group")
        return epoch + 1, state

    async def save_group(self, group_id: str, coordinator_epoch: int, state: bytes) -> None:
        await self._begin("save_group")
        self._check(group_id, coordinator_epoch)
        self.groups[group_id] = (coordinator_epoch, state)
        self._end("save_group")

    async def commit_offsets(
        self, group_id: str, coordinator_epoch: int | None, offsets: Sequence[CommittedOffset]
    ) -> list[bool]:
        await self._begin("commit_offsets")
        if coordinator_epoch is not None:
            self._check(group_id, coordinator_epoch)
        for offset in offsets:
            if offset.partition_key not in self.deleted_keys:
                self.offsets[group_id][offset.partition_key] = offset
        self._end("commit_offsets")
        return [offset.partition_key not in self.deleted_keys for offset in offsets]

    async def fetch_offsets(self, group_id: str, partition_keys: Sequence[int] | None) -> list[CommittedOffset]:
        await self._begin("fetch_offsets")
        stored = self.offsets[group_id]
        keys = sorted(stored) if partition_keys is None else [key for key in partition_keys if key in stored]
        return [stored[key] for key in keys]

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

    def _check(self, group_id: str, coordinator_epoch: int) -> None:
        if self.groups[group_id][0] != coordinator_epoch:
            raise FencedError(f"group has another coordinator: group={group_id} epoch={coordinator_epoch}")
