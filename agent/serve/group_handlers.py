"""The group requests of an agent, composed around the groups that it holds.

Place: made by agent/serve/paths.py. A new kind of group adds its Restore here, and its requests a handler.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry

from headrace.agent.access import audited_changes
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.apis import groups, offsets, own_requests, transactions
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.cluster.view import ClusterView
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
from headrace.agent.groups.group_values import GroupEffect
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.groups.offsets.commit_request import OffsetCommit
from headrace.agent.groups.offsets.fetch_request import OffsetFetch
from headrace.agent.groups.offsets.group_offsets import GroupOffsetApi, GroupOffsets
from headrace.agent.groups.offsets.transactional_request import TxnOffsetCommit
from headrace.agent.groups.positions import ConsumerGroupPosition
from headrace.agent.groups.share.answered import AnsweredShares
from headrace.agent.groups.share.coordinator import ShareGroups
from headrace.agent.groups.share.describe_request import ShareGroupDescribe
from headrace.agent.groups.share.heartbeat_request import ShareGroupHeartbeat
from headrace.agent.groups.share.metrics import ShareMetrics
from headrace.agent.groups.share.offsets_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
)
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_memory import ShareMemory
from headrace.agent.groups.share.share_offsets import ShareOffsets
from headrace.agent.limits.client_rows import RowLimits
from headrace.agent.limits.limit_metrics import limits_reached
from headrace.agent.peers.forwarding.routes import Elements, Whole
from headrace.config.settings import Settings
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.ordered_requests import GROUP_POSITION_KEY
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore
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
        store: ObjectStore | None = None,
    ) -> None:
        """`authorizer`: None if ACLs are not enforced. `supervisor`: the process's; None: a separate one. `rows`:
        limits on stored offsets and groups; None: there are none. `store`: the bucket, for what members of share groups
        were answered; None: it is not recorded."""
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
        self.share_rules = ShareGroupRules(settings, lambda: cluster.image)
        share_metrics = ShareMetrics(registry)
        self.share_groups = ShareGroups(api, cluster, clock, self.share_rules, share_metrics.rebalances.inc)
        restore = {
            None: restore_classic,
            GroupKind.CLASSIC: restore_classic,
            GroupKind.CONSUMER: consumer_groups.restore,
            GroupKind.SHARE: self.share_groups.restore,
        }
        metrics = GroupMetrics(registry)
        self.memory = memory = GroupMemory(
            settings.group_memory_bytes, settings.group_member_max_bytes, limits_reached(registry)
        )
        self.groups = HeldGroups(api, cluster, clock, restore, metrics, memory, supervisor, rows)
        metrics.watch_late(lambda: late_groups(self.groups, clock.monotonic(), in_force.current().group_late_parent_ms))
        coordinator = ClassicCoordinator(self.groups, clock, restore_classic)
        administration = GroupAdministration(api, self.groups)
        self.position = ConsumerGroupPosition(
            self.groups, cluster, clock, lambda: consumer_groups.topics.topics().by_name
        )
        self.memory_in_use: dict[str, Callable[[], float]] = {
            "groups": lambda: memory.in_use_bytes,
            "idle_groups": lambda: memory.idle_bytes,
            "group_positions": lambda: self.position.in_use_bytes,
            "topic_patterns": lambda: consumer_groups.topics.in_use_bytes,
            "share_records": lambda: self.share_owner.memory.in_use_bytes,
            "share_states": lambda: self.share_owner.answered.in_use_bytes,
        }
        """Bytes by part of the memory budget."""
        self.coordinator, self.administration, self.consumer_groups = coordinator, administration, consumer_groups
        answered = AnsweredShares(store, lambda: cluster.node_id, clock)
        share_memory = ShareMemory(on_limit=lambda limit: limits_reached(registry).labels(limit).inc())
        self.share_owner = ShareOwner(
            *(api, self.groups, cluster, clock, self.share_rules, rows, answered, share_metrics, share_memory)
        )
        create = partial(self.share_groups.create, self.groups)
        self.share_offsets = ShareOffsets(api, administration, self.share_owner, create)
        self.offsets = GroupOffsets(api, self.groups, clock, metrics, rows)
        self.cluster, self.in_force, self.rng, self.keeps_principals = cluster, in_force, rng, authorizer is not None
        self.handlers: dict[int, RequestHandler] = {api_key: row.handler(self) for api_key, row in GROUP_ROWS.items()}

    async def close(self) -> None:
        """Let all groups go; see HeldGroups.close. What members of share groups were answered is in the bucket then."""
        self.share_owner.record_answered()
        await self.groups.close()
        await self.share_owner.answered.close()


_FIRST_OFFSET_FETCH_OF_SEVERAL_GROUPS = 8
_BY_FIRST_FIELD = Whole.GROUP_IN_FIRST_FIELD
GROUP_ROWS: dict[int, ApiRow[GroupHandlers]] = {
    ApiKey.OFFSET_COMMIT: ApiRow(
        lambda of: OffsetCommit(of.offsets, of.cluster, of.in_force), offsets.OFFSET_COMMIT, route=_BY_FIRST_FIELD
    ),
    ApiKey.TXN_OFFSET_COMMIT: ApiRow(
        lambda of: TxnOffsetCommit(of.offsets, of.cluster, of.in_force),
        transactions.TXN_OFFSET_COMMIT,
        route=Whole.GROUP_ID,
    ),
    ApiKey.OFFSET_FETCH: ApiRow(
        lambda of: OffsetFetch(of.offsets, of.cluster),
        offsets.OFFSET_FETCH,
        route=Elements(
            "groups",
            "groups",
            lambda group: str(group.group_id),
            first_version=_FIRST_OFFSET_FETCH_OF_SEVERAL_GROUPS,
        ),
    ),
    ApiKey.JOIN_GROUP: ApiRow(lambda of: JoinGroup(of.coordinator, of.in_force), groups.MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.HEARTBEAT: ApiRow(lambda of: Heartbeat(of.coordinator), groups.MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.LEAVE_GROUP: ApiRow(lambda of: LeaveGroup(of.coordinator), groups.MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.SYNC_GROUP: ApiRow(lambda of: SyncGroup(of.coordinator), groups.MEMBER, route=_BY_FIRST_FIELD),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiRow(
        lambda of: ConsumerGroupHeartbeat(of.groups, of.consumer_groups, of.rng, keeps_principals=of.keeps_principals),
        groups.CONSUMER_GROUP_HEARTBEAT,
        route=_BY_FIRST_FIELD,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiRow(
        lambda of: ConsumerGroupDescribe(of.groups, of.consumer_groups, of.administration),
        groups.CONSUMER_GROUP_DESCRIBE,
        route=Elements("group_ids", "groups"),
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: ApiRow(
        lambda of: ShareGroupHeartbeat(of.groups, of.share_groups, lambda: of.cluster.image),
        groups.SHARE_GROUP_HEARTBEAT,
        route=_BY_FIRST_FIELD,
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: ApiRow(
        lambda of: ShareGroupDescribe(of.administration, of.share_rules, lambda: of.cluster.image),
        groups.SHARE_GROUP_DESCRIBE,
        route=Elements("group_ids", "groups"),
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ApiRow(
        lambda of: DescribeShareGroupOffsets(of.share_offsets, of.cluster, of.share_rules),
        offsets.DESCRIBE_SHARE_GROUP_OFFSETS,
        route=Elements("groups", "groups", lambda group: str(group.group_id)),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ApiRow(
        lambda of: AlterShareGroupOffsets(of.share_offsets, of.cluster, of.share_rules),
        offsets.ALTER_SHARE_GROUP_OFFSETS,
        audited_changes.altered_share_offsets,
        _BY_FIRST_FIELD,
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ApiRow(
        lambda of: DeleteShareGroupOffsets(of.share_offsets, of.cluster, of.share_rules),
        offsets.DELETE_SHARE_GROUP_OFFSETS,
        audited_changes.deleted_share_offsets,
        _BY_FIRST_FIELD,
    ),
    ApiKey.DESCRIBE_GROUPS: ApiRow(
        lambda of: DescribeGroups(of.administration), groups.DESCRIBE_GROUPS, route=Elements("groups", "groups")
    ),
    ApiKey.LIST_GROUPS: ApiRow(lambda of: ListGroups(of.administration), groups.LIST_GROUPS, route=Whole.EVERY_AGENT),
    ApiKey.DELETE_GROUPS: ApiRow(
        lambda of: DeleteGroups(of.administration),
        groups.DELETE_GROUPS,
        audited_changes.deleted_groups,
        Elements("groups_names", "results"),
    ),
    ApiKey.OFFSET_DELETE: ApiRow(
        lambda of: OffsetDelete(of.administration, of.cluster),
        offsets.OFFSET_DELETE,
        audited_changes.deleted_offsets,
        _BY_FIRST_FIELD,
    ),
    GROUP_POSITION_KEY: ApiRow(
        lambda of: of.position,
        own_requests.GROUP_POSITION,
        route=_BY_FIRST_FIELD,
        is_advertised=False,
    ),
}
"""Every API about groups."""
