"""The active controller: one lease, and what only its holder may do (C15).

Place: every process with the role controller (agent/cluster/controller/controller.py).
Invariant: each action takes the holder's epoch; after another process took the lease over it does nothing.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, Protocol

from headrace.metastore.api.cluster import StoredSnapshot


class ControllerLease(NamedTuple):
    """The active controller. `is_own`: it is the caller."""

    controller_id: int
    controller_epoch: int
    is_own: bool
    lease_ms: int = 0
    """The length that is granted, from when the call was sent; 0 where nothing was asked for."""
    remaining_ms: int = 0
    """How long another holder keeps it at least, from when the call was sent."""
    metadata_head: int = -1
    """The next offset of the metadata log; -1 if hold_controller_lease was not asked."""
    has_silent: bool = True
    """Whether the lease of an unfenced agent has ended."""


class SnapshotState(NamedTuple):
    """How far the newest snapshot lags: `end_offset` 0 and `age_ms` since the first record when there is none."""

    end_offset: int
    age_ms: int
    log_records: int
    log_bytes: int


class ControllerApi(Protocol):
    """The active controller: one lease, and what only its holder may do (C15).

    Every action takes the holder's epoch and raises FencedError after another controller took the lease over.
    """

    async def hold_controller_lease(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int
    ) -> ControllerLease:
        """Renew the lease if `incarnation_id` holds it, take it over if it expired; the holder afterwards.

        `lease_ms`: granted while the cluster has no value of controller.lease.ms, else two thirds of that value: a
        standby asks at most a third of it after the end. The lease has the length that the answer says.

        Idempotent: the holder gets the same epoch again. A new holder's epoch is higher than any before.
        """

    async def describe_controller(self) -> ControllerLease | None:
        """The holder of the lease (`is_own` False); None while there is none."""

    async def resign_controller(self, controller_epoch: int) -> None:
        """Let a standby take over at once. A stale epoch is ignored."""

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        """Fence every agent with an ended lease; their node ids. After an outage none for one session timeout.

        `session_timeout_ms`: that timeout while the cluster has no value of broker.session.timeout.ms.
        """

    async def succeed_controller(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int, gone_epoch: int
    ) -> ControllerLease:
        """Hold the lease as hold_controller_lease does, but take the lease of `gone_epoch` over although it has not
        ended.

        For a standby that knows that the holder's process is gone. A holder that is not gone after all is fenced by
        the new epoch. Only one caller takes over from one epoch.
        """

    async def hide_agent(
        self, controller_epoch: int, node_id: int, broker_epoch: int, *, session_timeout_ms: int
    ) -> bool:
        """Send no client to the agent until its next heartbeat: its process is gone. Whether this call hid it.

        Never the last visible agent, nor more than half of all members; again in one registration only if its last
        heartbeat is a third of its lease ago; not below metadata.format 3.
        `session_timeout_ms`: as in fence_silent_agents.
        """

    async def snapshot_state(self) -> SnapshotState:
        """Return how much log the newest snapshot leaves; scans that part of the log."""

    async def save_snapshot(self, controller_epoch: int, snapshot: StoredSnapshot) -> None:
        """Keep it and the one before it; older ones go. Idempotent by end offset."""

    async def truncate_metadata(self, controller_epoch: int, limit: int) -> int:
        """Drop up to `limit` records below the oldest kept snapshot; how many. Nothing while there is one snapshot."""
