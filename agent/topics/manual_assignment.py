"""Validates a client's assignment of partitions to agents on one image.

Place: under CreateTopics and CreatePartitions; an accepted assignment sets the partitions' preferred agents, as a
reassignment does (metastore/log/reassignment.py).
Invariant: pure.
Source: Kafka's ReplicationControlManager.validateManualPartitionAssignment.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.log.image import MetadataImage


def why_unassignable(image: MetadataImage, assignments: Sequence[Sequence[int]]) -> str | None:
    """The reason for INVALID_REPLICA_ASSIGNMENT, or None. `assignments`: node ids per partition, preferred first."""
    live = {agent.node_id for agent in image.live_agents()}
    for brokers in assignments:
        if not brokers or len(set(brokers)) != len(brokers):
            return "each partition needs at least one broker, without duplicates"
        if len(brokers) != len(assignments[0]):
            return f"partitions differ in their number of replicas: {len(assignments[0])} and {len(brokers)}"
        unknown = [node_id for node_id in brokers if node_id not in image.agents]
        if unknown:
            return f"brokers are not registered: {unknown}"
        if live.isdisjoint(brokers):
            return f"all brokers of a partition are fenced or shutting down: {list(brokers)}"
    return None
