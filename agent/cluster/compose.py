"""Puts together what an agent knows of its cluster, from its settings.

Place: called by agent/serve/broker.py once the listeners have their ports; it starts and stops the parts.
Invariant: settings that the cluster may have a value for are read when they are used, not when this is composed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.agent.cluster.address_check import AddressCheck
from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.heartbeats import HeartbeatHealth
from headrace.agent.cluster.membership import Identity, Membership
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.config.listeners import listeners
from headrace.config.settings import Settings
from headrace.metastore.api.agents import FeatureRange, Listener
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.process_context import ProcessContext


def compose_cluster(
    context: ProcessContext,
    advertised: Sequence[Listener],
    features: Mapping[str, FeatureRange],
    health: HeartbeatHealth,
) -> Cluster:
    """An agent's image, membership and routes. `advertised`: where clients are sent, the first one first."""
    settings, metastore = context.settings, context.metastore
    follower = MetadataFollower(metastore.cluster)
    in_force = SettingsInForce(settings, lambda: follower.image)
    first = advertised[0]
    membership = Membership(
        context,
        follower,
        Identity(settings.node_id, first.host, first.port, settings.broker_rack, tuple(advertised), features),
        heartbeat_interval_ms=settings.broker_heartbeat_interval_ms,
        session_timeout_ms=lambda: in_force.current().broker_session_timeout_ms,
        registration_timeout_seconds=settings.initial_broker_registration_timeout_ms / 1000,
        health=health,
    )
    follower.on_image.append(
        AddressCheck(
            lambda: membership.node_id,
            listeners(settings).inter_broker,
            lambda: in_force.current().advertised_shared,
        )
    )
    return Cluster(metastore.cluster_id, metastore.commit_shards, follower, membership)


def shared_address(settings: Settings, cluster: Cluster, advertised: Sequence[Listener]) -> SharedAddress:
    """Return whether clients are sent to one address of all agents, and which one."""
    in_force = SettingsInForce(settings, lambda: cluster.image)
    between = listeners(settings).inter_broker
    return SharedAddress(cluster, lambda: in_force.current().advertised_shared, between, tuple(advertised))
