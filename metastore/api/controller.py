"""The active controller: one lease, and what only its holder may do (C15).

Place: every process with the role controller (agent/cluster/controller.py).
Invariant: each action takes the holder's epoch; after another process took the lease over it does nothing.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, Protocol

from headrace.metastore.api.metadata_log import StoredSnapshot


class ControllerLease(NamedTuple):
    """Who the active controller is. `is_own`: whoever asked."""

    controller_id: int
    controller_epoch: int
    is_own: bool


class SnapshotState(NamedTuple):
    """How far the newest snapshot lags: `end_offset` 0 and `age_ms` since the first record when there is none."""

    end_offset: int
    age_ms: int
    log_records: int
    log_bytes: int


class ControllerApi(Protocol):
    """The active controller: one lease, and what only its holder may do (C15).

    Every action takes the holder's epoch and answers FencedError once somebody else took the lease over.
    """

    async def hold_controller_lease(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int
    ) -> ControllerLease:
        """Renew the lease if `incarnation_id` holds it, take it over if it ran out; who holds it now.

        Idempotent: who holds it already gets the same epoch again. A new holder's epoch is higher than any before.
        """

    async def describe_controller(self) -> ControllerLease | None:
        """Who holds the lease (`is_own` False); None while nobody does."""

    async def resign_controller(self, controller_epoch: int) -> None:
        """Let a standby take over at once. A stale epoch is ignored."""

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        """Fence every agent whose lease ran out; their node ids. After an outage nobody for one session timeout."""

    async def snapshot_state(self) -> SnapshotState:
        """How much log the newest snapshot leaves; scans that part of the log."""

    async def save_snapshot(self, controller_epoch: int, snapshot: StoredSnapshot) -> None:
        """Keep it and the one before it; older ones go. Idempotent by end offset."""

    async def truncate_metadata(self, controller_epoch: int, limit: int) -> int:
        """Drop up to `limit` records below the oldest kept snapshot; how many. Nothing while there is one snapshot."""
