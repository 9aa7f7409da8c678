"""The primitives of Kafka's wire format that the hand-written codecs share.

Place: below produce_codec, fetch_codec and the listener's header parser.
Invariant: a read never passes the end of its buffer and never trusts a length before comparing it
with what is left. If the process dies here nothing is lost: no state.
Source: Kafka protocol guide; KIP-482 (compact types, tagged fields).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Tags = Mapping[int, memoryview]
"""Tagged fields by tag, each as its raw bytes."""

NO_TAGS: Tags = MappingProxyType({})


@dataclass(slots=True)
class LeaderHint:
    """Who leads a partition now; -1 where unknown (KIP-951)."""

    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(slots=True)
class NodeEndpoint:
    """Where the leader that a LeaderHint names listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
