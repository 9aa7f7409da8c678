"""What handlers are made of, apart from those of groups: one process's, all of it there before the first handler.

Place: agent/serve fills it, once; the rows of each module take from it what their handlers need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headrace.agent.access.admin.delegation_tokens import DelegationTokens
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.quotas.mutations import MutationQuotas
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone_traffic import ZoneTraffic
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.share.handlers import ShareHandlers
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
