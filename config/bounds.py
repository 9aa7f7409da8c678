"""Types of settings with their bounds.

Place: used by the declarations (settings.py, security_settings.py); agents use the bounds of node ids for the
virtual node and the replicas of the object store.
Invariant of node ids: the ids of the virtual node and of these replicas are never those of an agent, and neither is
the id that Java clients use for their connection to a coordinator: Integer.MAX_VALUE minus its node id, which must
not be negative.
Invariant: every number fits a bigint of Postgres, because the metastore's functions read cluster settings.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

VIRTUAL_NODE_ID = 1_000_000_000
"""The node that clients see while all agents have one address (advertised.shared)."""
NODE_ID_MAX = VIRTUAL_NODE_ID - 1
STORE_REPLICAS = range(VIRTUAL_NODE_ID + 1, VIRTUAL_NODE_ID + 33)
"""Replicas that are no agents: a topic with a larger replication factor than there are agents shows these."""


SHORT_MAX = 2**15 - 1
LONG_MAX = 2**63 - 1

PositiveInt = Annotated[int, Meta(ge=1, le=LONG_MAX)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=LONG_MAX)]
AtLeastMinusOne = Annotated[int, Meta(ge=-1, le=LONG_MAX)]
Port = Annotated[int, Meta(ge=0, le=65535)]
NodeId = Annotated[int, Meta(ge=0, le=NODE_ID_MAX)]
