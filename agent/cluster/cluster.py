"""The ClusterView for the rest of the agent: image, membership, routing together.

Place: composed once per process from its settings, by agent/serve/broker.py once the listeners have their ports; it
starts and stops the parts, and stops after the last flush is committed.
Invariant: routing follows from one image. An agent with an expired lease no longer acts as
coordinator, even if its image says so: another agent may already be the coordinator. Settings that the cluster may
have a value for are read when they are used, not when this is composed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.agent.cluster.address_check import AddressCheck
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.heartbeats import HeartbeatHealth
from headrace.agent.cluster.membership import Identity, Membership
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.shared_address import SharedAddress
from headrace.config.listeners import listeners
from headrace.config.settings import Settings
from headrace.metastore.api.agents import FeatureRange, Listener
from headrace.metastore.log.effective_configs import SettingsInForce
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.process_context import ProcessContext


class Cluster:
    """Implements agent.cluster.view.ClusterView."""

    def __init__(self, cluster_id: str, commit_shards: int, follower: MetadataFollower, membership: Membership) -> None:
        self.cluster_id = cluster_id
        self._opened_with = commit_shards
        self.follower = follower
        self.membership = membership
        self._routes = Routes(follower.image, self.commit_shards)

    @property
    def commit_shards(self) -> int:
        return self.image.commit_shards(self._opened_with)

    @property
    def node_id(self) -> int:
        return self.membership.node_id

    @property
    def broker_epoch(self) -> int:
        return self.membership.broker_epoch

    @property
    def image(self) -> MetadataImage:
        return self.follower.image

    def topic_name(self, number: int) -> str | None:
        """Return None if the image has no such topic."""
        topic = self.image.topics_by_number.get(number)
        return None if topic is None else topic.name

    @property
    def routes(self) -> Routes:
        if self._routes.image is not self.follower.image:
            self._routes = Routes(self.follower.image, self.commit_shards, self._routes)
        return self._routes

    async def catch_up(self) -> MetadataImage:
        return await self.follower.catch_up()

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return self.routes.leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        """None also if it would be this agent, but its lease has expired."""
        found = self.routes.coordinator(group_id)
        if found is not None and found.node_id == self.node_id and not self.membership.holds_lease():
            return None
        return found

    def may_be_behind(self) -> bool:
        """Return whether other agents may have acted on what this one's image lacks, without waiting for this agent."""
        return not self.membership.holds_lease() or self.follower.image.offset < self.membership.known_head

    async def start(self) -> None:
        """Join the cluster; errors as Membership.start."""
        await self.membership.start()

    async def stop(self) -> None:
        """Leave the cluster, and stop following the log."""
        await self.membership.stop()
        await self.follower.close()


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
