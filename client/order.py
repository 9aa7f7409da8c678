"""What a member knows of one topic's changes, and what follows from it: which partitions may begin, which records may
be delivered, which positions it needs.

Place: between consumer.py and the rules of metastore/partitions/waiting.py, which decide.
Invariant: what is known belongs together: `learn` replaces it as a whole, after all questions were answered. Records of
a leader epoch above `leader_epochs` are not delivered before that (fetching.py), so that no agent with old metadata can
make a member overlook a deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from headrace.client.cluster import ClientCluster
from headrace.client.messages import OrderedTopic
from headrace.client.offsets import LATEST, epoch_ends, log_offsets, partition_epochs
from headrace.metastore.partitions.topic_partitions import CreatedFrom, OrderedPartition
from headrace.metastore.partitions.waiting import may_begin, may_deliver
from headrace.protocol.ordered_requests import PartitionEpochs
from headrace.storage.errors import UnavailableError


class _Known(NamedTuple):
    described: OrderedTopic
    owned: frozenset[int]
    """The member's partitions, as far as they exist."""
    epochs: Mapping[int, PartitionEpochs]
    """The epochs of the member's partitions from the initial count on, and of marked ones."""
    ends: Mapping[tuple[int, int], int]
    """(partition, leader epoch) -> end offset."""
    watermarks: Mapping[int, int]
    """The watermarks of marked partitions: final, because they take no records."""


class TopicOrder:
    """One topic that the member subscribes to. It is the GroupPositions of the rules."""

    def __init__(self, described: OrderedTopic) -> None:
        self._known = _Known(described, frozenset(), {}, {}, {})
        self._positions: Mapping[int, int] = {}

    @property
    def described(self) -> OrderedTopic:
        """The topics that `learn` got."""
        return self._known.described

    @property
    def is_ordered(self) -> bool:
        """enable.ordered.delivery."""
        return self.described.counts.is_ordered

    async def learn(
        self, cluster: ClientCluster, described: OrderedTopic, owned: Collection[int], node_id: int
    ) -> None:
        """Ask this node for what the member's partitions need. UnavailableError, and nothing has changed, if that
        fails."""
        name, counts = described.name, described.counts
        self._refuse_older(described)
        present = frozenset(index for index in owned if index in described.leader_epochs)
        if not counts.is_ordered:
            self._known = _Known(described, present, {}, {}, {})
            return
        asked = {(name, index) for index in present if index >= counts.initial} | {(name, m) for m in counts.marked}
        epochs = {index: each for (_, index), each in (await partition_epochs(cluster, asked, node_id)).items()}
        thresholds = {
            (name, epochs[index].source, epochs[index].after_creation)
            for index in present
            if index in epochs and epochs[index].source >= 0
        }
        for index in counts.marked:
            if not (before := epochs[index].before_deletion):
                raise UnavailableError(f"an agent does not know the mark yet: topic={name} partition={index}")
            thresholds |= {(name, heir, before[heir]) for heir in present if heir in before}
        ends = {(index, epoch): end for (_, index, epoch), end in (await epoch_ends(cluster, thresholds)).items()}
        marked = await log_offsets(cluster, [(name, index) for index in counts.marked], LATEST)
        self._known = _Known(described, present, epochs, ends, {index: end for (_, index), end in marked.items()})

    def knows(self, index: int) -> bool:
        """Return whether everything was learned for this partition."""
        return index in self._known.owned

    def created_from(self, index: int) -> CreatedFrom | None:
        """Return what the partition waits for before it begins."""
        found = self._known.epochs.get(index)
        return None if found is None or found.source < 0 else CreatedFrom(found.source, found.after_creation)

    def may_begin(self, index: int) -> bool:
        """See waiting.may_begin."""
        return may_begin(self.created_from(index) if self.is_ordered else None, self)

    def may_deliver(self, index: int, offset: int) -> bool:
        """See waiting.may_deliver."""
        return not self.is_ordered or may_deliver(index, offset, self._marked(), self)

    def crossed(self, index: int, offset: int) -> frozenset[int]:
        """The marked partitions that records from this offset on may have keys of."""
        return frozenset(
            gone
            for gone, each in self._marked().items()
            if index in each.before_deletion and offset >= self.end_of(index, each.before_deletion[index])
        )

    def needed(self, index: int, *, has_begun: bool) -> set[int]:
        """The other partitions that the member needs the group's positions in, because of this one."""
        if not self.is_ordered:
            return set()
        needed = {gone for gone, each in self._marked().items() if index in each.before_deletion}
        created_from = self.created_from(index)
        return needed if has_begun or created_from is None else needed | {created_from.source}

    def set_positions(self, positions: Mapping[int, int]) -> None:
        """The group's, as the coordinator passed them on."""
        self._positions = positions

    def reported(self, partition: int) -> int | None:
        """See GroupPositions."""
        return self._positions.get(partition)

    def end_of(self, partition: int, leader_epoch: int) -> int:
        """See GroupPositions."""
        return self._known.ends[partition, leader_epoch]

    def high_watermark(self, partition: int) -> int:
        """See GroupPositions."""
        return self._known.watermarks[partition]

    def _refuse_older(self, described: OrderedTopic) -> None:
        """Another agent may know less than the one that was asked before."""
        now = described.leader_epochs
        if any(now.get(index, epoch) < epoch for index, epoch in self.described.leader_epochs.items()):
            raise UnavailableError(f"an agent has older metadata: topic={described.name}")

    def _marked(self) -> dict[int, OrderedPartition]:
        counts = self.described.counts
        if not counts.is_ordered or not counts.marked:
            return {}
        epochs = self._known.epochs
        return {m: OrderedPartition(before_deletion=epochs[m].before_deletion) for m in counts.marked if m in epochs}
