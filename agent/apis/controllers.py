"""The rows of the APIs that a controller answers.

Place: agent/serve/controller/controller_endpoint.py registers all of them; agent/serve/handlers.py those that brokers
answer, too.
Source: KIP-631, networking; which requests a controller answers.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.agent.access import audited_changes
from headrace.agent.apis import cluster
from headrace.agent.apis.api_row import ApiRow
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.requests.broker_lifecycle import BrokerHeartbeat, BrokerRegistration, UnregisterBroker
from headrace.agent.cluster.requests.describe_quorum import DescribeQuorum
from headrace.agent.cluster.requests.fetch_snapshot import FetchSnapshot
from headrace.agent.cluster.requests.partition_reassignments import (
    AlterPartitionReassignments,
    ListPartitionReassignments,
)
from headrace.agent.cluster.requests.update_features import UpdateFeatures
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.api_keys import ApiKey
from headrace.storage.clock import Clock


class ControllerParts:
    """What these handlers are made of."""

    def __init__(
        self,
        metastore: Metastore,
        view: ClusterView,
        settings: Settings,
        clock: Clock,
        is_active: Callable[[], bool],
        *,
        shared: SharedAddress | None,
    ) -> None:
        """`is_active` says whether this controller is the active one. `shared`: None where no client is."""
        self.metastore, self.view, self.is_active, self.shared = metastore, view, is_active, shared
        self.change = LogChange(view, metastore, clock)
        self.in_force = SettingsInForce(settings, lambda: view.image)


CONTROLLER_ROWS: dict[int, ApiRow[ControllerParts]] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiRow(
        lambda of: AlterPartitionReassignments(of.change, of.shared), cluster.ALTER, audited_changes.reassignments
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiRow(lambda of: ListPartitionReassignments(of.view), cluster.DESCRIBE),
    ApiKey.DESCRIBE_QUORUM: ApiRow(lambda of: DescribeQuorum(of.view, of.metastore), cluster.DESCRIBE),
    ApiKey.UPDATE_FEATURES: ApiRow(
        lambda of: UpdateFeatures(of.change, of.metastore), cluster.ALTER, audited_changes.features
    ),
    ApiKey.FETCH_SNAPSHOT: ApiRow(lambda of: FetchSnapshot(of.metastore), cluster.ACTION),
    ApiKey.BROKER_REGISTRATION: ApiRow(lambda of: BrokerRegistration(of.metastore, of.is_active), cluster.ACTION),
    ApiKey.BROKER_HEARTBEAT: ApiRow(
        lambda of: BrokerHeartbeat(of.view, of.metastore, of.in_force, of.is_active), cluster.ACTION
    ),
    ApiKey.UNREGISTER_BROKER: ApiRow(
        lambda of: UnregisterBroker(of.view, of.metastore, of.is_active), cluster.ALTER, audited_changes.broker
    ),
}
