"""An agent's membership and cluster, not started: on the metastore in memory and its clock, or on a real one."""

from __future__ import annotations

import random
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.heartbeats import HeartbeatHealth
from headrace.agent.cluster.membership import Identity, Membership
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import Clock, SystemClock
from load.contexts import a_context
from tests.nouns import nouns


def a_membership(
    api: Any,
    node_id: int | None = 1,
    rack: str | None = None,
    *,
    follower: MetadataFollower | None = None,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    registry: CollectorRegistry | None = None,
    port: int = 9092,
    session_ms: int = 18_000,
) -> Membership:
    """`clock`: that of `api`, if none is given."""
    own_clock = clock or api.clock
    return Membership(
        a_context(nouns(api), own_clock, rng=rng, registry=registry),
        follower or MetadataFollower(nouns(api).cluster),
        Identity(node_id, "127.0.0.1", port, rack),
        heartbeat_interval_ms=3_000,
        session_timeout_ms=lambda: session_ms,
        health=HeartbeatHealth(own_clock),
    )


def an_agent(api: Any, node_id: int | None = 1, rack: str | None = None, seed: int = 7, **more: Any) -> Cluster:
    """`more`: of the membership."""
    follower = MetadataFollower(nouns(api).cluster)
    membership = a_membership(api, node_id, rack, follower=follower, rng=random.Random(seed), **more)
    return Cluster("cluster-id", 8, follower, membership)


def an_agent_on(metastore: PostgresMetastore, node_id: int | None, seed: int) -> Cluster:
    """An agent on a real metastore."""
    follower = MetadataFollower(metastore.cluster)
    own: dict[str, Any] = {"clock": SystemClock(), "rng": random.Random(seed), "port": 9000 + seed}
    membership = a_membership(metastore, node_id, "a", follower=follower, **own)
    return Cluster(metastore.cluster_id, metastore.commit_shards, follower, membership)
