"""What handlers are made of: one process's parts, all of them there before the first handler.

Place: agent/serve fills ControllerParts, AccessParts, BrokerParts and GroupParts, once; the rows of each module take
from them what their handlers need. GroupParts are the groups that an agent holds, and what is composed around them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headrace.agent.access.admin.delegation_tokens import DelegationTokens
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.quotas.enforcement import MutationQuotas
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.groups.administration import GroupAdministration
from headrace.agent.groups.classic.coordinator import ClassicCoordinator
from headrace.agent.groups.consumer.coordinator import ConsumerGroups
from headrace.agent.groups.group_memory import GroupMemory
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.offsets.group_offsets import GroupOffsets
from headrace.agent.groups.positions import ConsumerGroupPosition
from headrace.agent.groups.share.coordinator import ShareGroups
from headrace.agent.groups.share.offsets import ShareOffsets
from headrace.agent.groups.share.owner import ShareOwner
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.streams.coordinator import StreamsGroups
from headrace.agent.groups.streams.internal_topics import InternalTopics
from headrace.agent.limits.client_rows import RowLimits
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.agent.topics.counts.count_changes import PartitionCounts
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.effective_configs import EffectiveConfigs, SettingsInForce
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.sealing import Sealing
from headrace.protocol.request import Request
from headrace.storage.clock import Clock


@dataclass(frozen=True, kw_only=True)
class ControllerParts:
    """What the handlers of CONTROLLER_ROWS are made of, alone or in the process of a broker."""

    cluster: ClusterView
    metastore: Metastore
    in_force: SettingsInForce
    change: LogChange
    is_active_controller: Callable[[], bool]
    """Whether this process is the active controller."""
    shared: SharedAddress | None
    """None where no client is."""


@dataclass(frozen=True, kw_only=True)
class AccessParts:
    """What the handlers of ACCESS_ROWS are made of."""

    change: LogChange
    sealed_keys: SealedKeys
    tokens: DelegationTokens


@dataclass(frozen=True, kw_only=True)
class BrokerParts(ControllerParts, AccessParts):
    """What the handlers of BROKER_ROWS are made of."""

    shared: SharedAddress
    settings: Settings
    sealing: Sealing
    """Seals secrets of links."""
    clock: Clock
    registry: CollectorRegistry
    produce: ProducePipeline
    fetch: FetchService
    share: ShareHandlers
    metadata: Metadata
    configs: EffectiveConfigs
    creation: TopicCreation
    counts: PartitionCounts
    producer_ids: ProducerIds
    traffic: ZoneTraffic
    mutations: MutationQuotas
    rows: RowLimits
    enforced: Authorizer | None
    """The authorizer; None if ACLs are not enforced."""
    refused: Callable[[Request, str], None]
    """Logs a request that is refused."""


@dataclass(frozen=True, kw_only=True)
class GroupParts:
    """One agent's groups."""

    cluster: ClusterView
    in_force: SettingsInForce
    rng: random.Random
    keeps_principals: bool
    """Members are shown topics by what their principal may do: ACLs are enforced."""
    groups: HeldGroups
    memory: GroupMemory
    coordinator: ClassicCoordinator
    administration: GroupAdministration
    offsets: GroupOffsets
    position: ConsumerGroupPosition
    consumer_groups: ConsumerGroups
    share_groups: ShareGroups
    share_rules: ShareGroupRules
    share_owner: ShareOwner
    share_offsets: ShareOffsets
    streams_groups: StreamsGroups
    internal_topics: InternalTopics

    @property
    def memory_in_use(self) -> Mapping[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        return {
            "groups": lambda: self.memory.in_use_bytes,
            "idle_groups": lambda: self.memory.idle_bytes,
            "group_positions": lambda: self.position.in_use_bytes,
            "topic_patterns": lambda: self.consumer_groups.topics.in_use_bytes,
            "share_records": lambda: self.share_owner.memory.in_use_bytes,
            "share_states": lambda: self.share_owner.answered.in_use_bytes,
        }

    async def close(self) -> None:
        """Let all groups go; see HeldGroups.close. What members of share groups were answered is in the bucket then."""
        self.share_owner.record_answered()
        await self.internal_topics.close()
        await self.groups.close()
        await self.share_owner.answered.close()
