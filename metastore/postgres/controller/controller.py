"""The active controller's lease and what its holder may do: fence silent agents, keep snapshots, truncate.

Place: every process with the controller role, about three times per lease; implements ControllerApi.
Invariant: each action checks the controller epoch under the lease row's lock, in its own statement: a
controller that was paused and resumes after another one took over changes nothing any more.
"""

from __future__ import annotations

import uuid

from headrace.metastore.api.controller import ControllerLease, SnapshotState
from headrace.metastore.api.metadata_log import StoredSnapshot
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import FencedError

_ASK_CONTROLLER_LEASE = Statement("ask_controller_lease", writes=True)
_DESCRIBE_CONTROLLER = Statement("describe_controller", writes=False)
_RESIGN_CONTROLLER = Statement("resign_controller", writes=True)
_FENCE_SILENT_AGENTS = Statement("fence_silent_agents", writes=True)
_SUCCEED_CONTROLLER = Statement("succeed_controller", writes=True)
_HIDE_AGENT = Statement("hide_agent", writes=True)
_SNAPSHOT_STATE = Statement("snapshot_state", writes=False)
_SAVE_SNAPSHOT = Statement("save_snapshot", writes=True)
_TRUNCATE_METADATA = Statement("truncate_metadata", writes=True)


class PostgresController:
    """Implements ControllerApi."""

    pool: Pool

    async def hold_controller_lease(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int
    ) -> ControllerLease:
        """Return who holds the lease after this incarnation tried to."""
        row = await _ASK_CONTROLLER_LEASE.row(
            self.pool, controller_id=controller_id, incarnation_id=incarnation_id, lease_ms=lease_ms
        )
        return ControllerLease(*row)

    async def describe_controller(self) -> ControllerLease | None:
        """The holder of the lease; None while there is none."""
        rows = await _DESCRIBE_CONTROLLER.rows(self.pool)
        return ControllerLease(rows[0][0], rows[0][1], is_own=False) if rows else None

    async def resign_controller(self, controller_epoch: int) -> None:
        """Nothing happens under a stale epoch."""
        await _RESIGN_CONTROLLER.row(self.pool, controller_epoch=controller_epoch)

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        """The node ids that were fenced; FencedError for a stale epoch."""
        (fenced,) = await _FENCE_SILENT_AGENTS.row(
            self.pool, controller_epoch=controller_epoch, session_timeout_ms=session_timeout_ms
        )
        if fenced is None:
            raise _stale(controller_epoch)
        return list(fenced)

    async def succeed_controller(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int, gone_epoch: int
    ) -> ControllerLease:
        """Return who holds the lease after this incarnation tried to take it over from the holder of `gone_epoch`."""
        row = await _SUCCEED_CONTROLLER.row(
            self.pool,
            controller_id=controller_id,
            incarnation_id=incarnation_id,
            lease_ms=lease_ms,
            gone_epoch=gone_epoch,
        )
        return ControllerLease(*row)

    async def hide_agent(
        self, controller_epoch: int, node_id: int, broker_epoch: int, *, session_timeout_ms: int
    ) -> bool:
        """Return whether the agent was hidden by this call; FencedError for a stale epoch."""
        (hidden,) = await _HIDE_AGENT.row(
            self.pool,
            controller_epoch=controller_epoch,
            node_id=node_id,
            broker_epoch=broker_epoch,
            session_timeout_ms=session_timeout_ms,
        )
        if hidden is None:
            raise _stale(controller_epoch)
        return bool(hidden)

    async def snapshot_state(self) -> SnapshotState:
        """Return what the newest snapshot leaves in the log."""
        return SnapshotState(*await _SNAPSHOT_STATE.row(self.pool))

    async def save_snapshot(self, controller_epoch: int, snapshot: StoredSnapshot) -> None:
        """FencedError for a stale epoch; InvalidError for an end that the log has not reached."""
        (saved,) = await _SAVE_SNAPSHOT.row(
            self.pool, controller_epoch=controller_epoch, end_offset=snapshot.end_offset, data=snapshot.data
        )
        if not saved:
            raise _stale(controller_epoch)

    async def truncate_metadata(self, controller_epoch: int, limit: int) -> int:
        """Return how many records were dropped; FencedError for a stale epoch."""
        (dropped,) = await _TRUNCATE_METADATA.row(self.pool, controller_epoch=controller_epoch, limit=limit)
        if dropped is None:
            raise _stale(controller_epoch)
        return int(dropped)


def _stale(controller_epoch: int) -> FencedError:
    return FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
