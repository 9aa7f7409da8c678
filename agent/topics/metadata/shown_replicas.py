"""The replicas of a partition that clients see.

Place: under metadata_response.py.
Definitions: the object store has the copies, so a replica is no copy of data. A partition that was reassigned, or
created with an assignment, shows the agents that it prefers. Any other shows as many replicas as its topic's
replication factor: its leader, the agents that follow by node id, and, if there are too few agents, replicas of the
object store.
Invariant: for the same factor the number of replicas is the same with any number of agents, because tools compare it
with what they asked for (Terraform, Strimzi's topic operator). Replicas of the object store are in sync, so nothing
that watches for partitions with too few replicas is alarmed; no broker has their ids, as with a broker of Kafka that is
stopped.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from headrace.config.bounds import STORE_REPLICAS
from headrace.metastore.log.shown_counts import SHOWN_REPLICAS_MAX


def shown_replicas(factor: int, leader: int | None, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return the node ids, the leader first. `nodes`: those of the agents that clients see, ascending."""
    count = min(factor, SHOWN_REPLICAS_MAX)
    if leader is None:
        return tuple(STORE_REPLICAS[:count]) if count > 1 else ()
    if count == 1:
        return (leader,)
    after = bisect.bisect_right(nodes, leader)
    agents = [leader, *(node for node in (*nodes[after:], *nodes[:after]) if node != leader)][:count]
    return (*agents, *STORE_REPLICAS[: count - len(agents)])
