"""What an application does when partitions, or keys of partitions, come and go.

Place: given to OrderedConsumer.subscribe; called inside `getmany`, never at the same time as the application.
Source: Kafka's ConsumerRebalanceListener; KIP-253, consumer API.
"""

from __future__ import annotations

from collections.abc import Set

from headrace.client.offsets import TopicPartition

Partitions = Set[TopicPartition]


class RebalanceListener:
    """Override what is needed."""

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """The member gives them back; with auto commit, their positions are committed."""

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """The member has got them."""


class PartitionKeyListener:
    """Override what is needed. The first is called before the second, for keys that move from one partition to
    another, also if two members of the group have them."""

    async def on_partition_key_maybe_revoked(self, partitions: Partitions) -> None:
        """Flush the state of keys of these partitions: another member may load it after this."""

    async def on_partition_key_assigned(self, partitions: Partitions) -> None:
        """Keys that were in other partitions may come from these now: load their state."""
