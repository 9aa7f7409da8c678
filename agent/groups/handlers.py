"""The group requests of an agent, composed around one coordinator.

Place: made by agent/process.py. If the process dies here nothing is lost: no state of its own.
"""

from __future__ import annotations

import random

from agent.cluster.view import ClusterView
from agent.dispatch import Dispatcher
from agent.groups.coordinator import GroupCoordinator
from agent.groups.membership_requests import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from agent.groups.offset_commit import OffsetCommit
from agent.groups.offset_fetch import OffsetFetch
from agent.listener.request import Handler
from agent.protocol.api_keys import ApiKey
from config.settings import Settings
from metastore.api import GroupApi
from storage.clock import Clock


class GroupHandlers:
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit and OffsetFetch."""

    def __init__(
        self, api: GroupApi, cluster: ClusterView, settings: Settings, clock: Clock, rng: random.Random
    ) -> None:
        self._coordinator = GroupCoordinator(
            api, cluster, clock, rng, initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms
        )
        self.handlers: dict[int, Handler] = {
            ApiKey.OFFSET_COMMIT: OffsetCommit(
                self._coordinator, cluster, metadata_bytes_max=settings.offset_metadata_max_bytes
            ),
            ApiKey.OFFSET_FETCH: OffsetFetch(self._coordinator, cluster),
            ApiKey.JOIN_GROUP: JoinGroup(
                self._coordinator,
                session_timeout_ms_min=settings.group_min_session_timeout_ms,
                session_timeout_ms_max=settings.group_max_session_timeout_ms,
            ),
            ApiKey.HEARTBEAT: Heartbeat(self._coordinator),
            ApiKey.LEAVE_GROUP: LeaveGroup(self._coordinator),
            ApiKey.SYNC_GROUP: SyncGroup(self._coordinator),
        }

    def register(self, dispatcher: Dispatcher) -> None:
        """Serve them."""
        for api_key, handler in self.handlers.items():
            dispatcher.register(api_key, handler)

    async def close(self) -> None:
        """Let all groups go; see GroupCoordinator.close."""
        await self._coordinator.close()
