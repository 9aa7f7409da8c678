"""The group requests of an agent, composed around the groups that it holds.

Place: made by agent/paths.py. A new kind of group adds its Restore here, and its requests a handler.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from prometheus_client import CollectorRegistry

from headrace.agent.client_rows import RowLimits
from headrace.agent.cluster.view import ClusterView
from headrace.agent.dispatch import Dispatcher
from headrace.agent.groups.admin_requests import DeleteGroups, DescribeGroups, ListGroups, OffsetDelete
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.classic.coordinator import ClassicCoordinator
from headrace.agent.groups.classic.group import ClassicGroup
from headrace.agent.groups.classic.membership_requests import Heartbeat, JoinGroup, LeaveGroup, SyncGroup
from headrace.agent.groups.classic.saved import decode
from headrace.agent.groups.consumer.coordinator import ConsumerGroups, late_groups
from headrace.agent.groups.consumer.describe_request import ConsumerGroupDescribe
from headrace.agent.groups.consumer.heartbeat_request import ConsumerGroupHeartbeat
from headrace.agent.groups.consumer.rules import ConsumerGroupRules
from headrace.agent.groups.coordinated import CoordinatedGroup
from headrace.agent.groups.group_memory import GroupMemory
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.groups.offsets.commit_request import OffsetCommit
from headrace.agent.groups.offsets.fetch_request import OffsetFetch
from headrace.agent.groups.offsets.group_offsets import GroupOffsetApi, GroupOffsets
from headrace.agent.groups.offsets.transactional_request import TxnOffsetCommit
from headrace.agent.groups.positions import ConsumerGroupPosition
from headrace.agent.groups.values import GroupEffect
from headrace.agent.limit_metrics import limits_reached
from headrace.agent.security.authorization.authorizer import Authorizer
from headrace.config.settings import Settings
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock
from headrace.storage.supervision import Supervisor


class GroupHandlers:
    """Every request about consumer groups."""

    def __init__(
        self,
        api: GroupOffsetApi,
        cluster: ClusterView,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry,
        authorizer: Authorizer | None = None,
        supervisor: Supervisor | None = None,
        rows: RowLimits | None = None,
    ) -> None:
        """`authorizer`: None if ACLs are not enforced. `supervisor`: the process's; None: a separate one. `rows`:
        limits on stored offsets and groups; None: there are none."""
        in_force = SettingsInForce(settings, lambda: cluster.image)

        def restore_classic(
            group_id: str, now: float, record: GroupRecord | None
        ) -> tuple[CoordinatedGroup, list[GroupEffect]]:
            now_set = in_force.current()
            delay = now_set.group_initial_rebalance_delay_ms / 1000
            group = ClassicGroup(group_id, rng, initial_rebalance_delay=delay, max_size=now_set.group_max_size)
            return group, [] if record is None else group.restore(now, decode(record.data))

        rules = ConsumerGroupRules(settings, lambda: cluster.image)
        consumer_groups = ConsumerGroups(api, cluster, clock, rules, rng, authorizer)
        restore = {
            None: restore_classic,
            GroupKind.CLASSIC: restore_classic,
            GroupKind.CONSUMER: consumer_groups.restore,
        }
        metrics = GroupMetrics(registry)
        self.memory = memory = GroupMemory(
            settings.group_memory_bytes, settings.group_member_max_bytes, limits_reached(registry)
        )
        self.groups = HeldGroups(api, cluster, clock, restore, metrics, memory, supervisor, rows)
        metrics.watch_late(lambda: late_groups(self.groups, clock.monotonic(), in_force.current().group_late_parent_ms))
        coordinator = ClassicCoordinator(self.groups, clock, restore_classic)
        administration = GroupAdministration(api, self.groups)
        offsets = GroupOffsets(api, self.groups, clock, metrics, rows)
        position = ConsumerGroupPosition(self.groups, cluster, clock, lambda: consumer_groups.topics.topics().by_name)
        self.memory_in_use: dict[str, Callable[[], float]] = {
            "groups": lambda: memory.in_use_bytes,
            "idle_groups": lambda: memory.idle_bytes,
            "group_positions": lambda: position.in_use_bytes,
            "topic_patterns": lambda: consumer_groups.topics.in_use_bytes,
        }
        """Bytes by part of the memory budget."""
        self.position: RequestHandler = position
        """Not advertised."""
        self.handlers: dict[int, RequestHandler] = {
            ApiKey.OFFSET_COMMIT: OffsetCommit(offsets, cluster, in_force),
            ApiKey.TXN_OFFSET_COMMIT: TxnOffsetCommit(offsets, cluster, in_force),
            ApiKey.OFFSET_FETCH: OffsetFetch(offsets, cluster),
            ApiKey.JOIN_GROUP: JoinGroup(coordinator, in_force),
            ApiKey.HEARTBEAT: Heartbeat(coordinator),
            ApiKey.LEAVE_GROUP: LeaveGroup(coordinator),
            ApiKey.SYNC_GROUP: SyncGroup(coordinator),
            ApiKey.CONSUMER_GROUP_HEARTBEAT: ConsumerGroupHeartbeat(
                self.groups, consumer_groups, rng, keeps_principals=authorizer is not None
            ),
            ApiKey.CONSUMER_GROUP_DESCRIBE: ConsumerGroupDescribe(self.groups, consumer_groups, administration),
            ApiKey.DESCRIBE_GROUPS: DescribeGroups(administration),
            ApiKey.LIST_GROUPS: ListGroups(administration),
            ApiKey.DELETE_GROUPS: DeleteGroups(administration),
            ApiKey.OFFSET_DELETE: OffsetDelete(administration, cluster),
        }

    def register(self, dispatcher: Dispatcher) -> None:
        """Serve them."""
        for api_key, handler in self.handlers.items():
            dispatcher.register(api_key, handler)

    async def close(self) -> None:
        """Let all groups go; see HeldGroups.close."""
        await self.groups.close()
