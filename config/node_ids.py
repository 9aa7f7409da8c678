"""Decide which node ids agents may have.

Place: bounds of node.id; agent/cluster/shared_address.py shows the virtual node, and
agent/topics/metadata/shown_replicas.py the replicas of the object store.
Invariant: the ids of the virtual node and of these replicas are never those of an agent, and neither is the id that
Java clients use for their connection to a coordinator: Integer.MAX_VALUE minus its node id, which must not be negative.
"""

from __future__ import annotations

VIRTUAL_NODE_ID = 1_000_000_000
"""The node that clients see while all agents have one address (advertised.shared)."""
NODE_ID_MAX = VIRTUAL_NODE_ID - 1
STORE_REPLICAS = range(VIRTUAL_NODE_ID + 1, VIRTUAL_NODE_ID + 33)
"""Replicas that are no agents: a topic with a larger replication factor than there are agents shows these."""
