"""The active controller's lease and what its holder may do: fence silent agents, keep snapshots, truncate.

Place: every process with the controller role, about three times per lease; implements ControllerApi.
Invariant: each action checks the controller epoch under the lease row's lock, in its own statement: a
controller that was paused and resumes after another one took over changes nothing any more.
"""

from __future__ import annotations

from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.api.controller import ControllerApi, ControllerLease
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import FencedError

_DESCRIBE_CONTROLLER = Statement("describe_controller", writes=False)
_FENCE_SILENT_AGENTS = Statement("fence_silent_agents", writes=True)
_HIDE_AGENT = Statement("hide_agent", writes=True)
_SAVE_SNAPSHOT = Statement("save_snapshot", writes=True)
_TRUNCATE_METADATA = Statement("truncate_metadata", writes=True)


class PostgresController(PostgresNoun):
    """Implements ControllerApi."""

    hold_controller_lease = calls(ControllerApi.hold_controller_lease, "ask_controller_lease", writes=True)
    resign_controller = calls(ControllerApi.resign_controller, writes=True)
    succeed_controller = calls(ControllerApi.succeed_controller, writes=True)
    snapshot_state = calls(ControllerApi.snapshot_state, writes=False)

    async def describe_controller(self) -> ControllerLease | None:
        """The holder of the lease; None while there is none."""
        rows = await _DESCRIBE_CONTROLLER.rows(self.pool)
        return ControllerLease(rows[0][0], rows[0][1], is_own=False) if rows else None

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        """The node ids that were fenced; FencedError for a stale epoch."""
        (fenced,) = await _FENCE_SILENT_AGENTS.row(
            self.pool, controller_epoch=controller_epoch, session_timeout_ms=session_timeout_ms
        )
        if fenced is None:
            raise _stale(controller_epoch)
        return list(fenced)

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
