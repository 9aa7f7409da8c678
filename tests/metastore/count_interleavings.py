"""Counts that go up and down while batches of the old and the new count are committed.

Place: tests/metastore/interleavings.py with two more operations; plans as a handler and a controller make them.
Invariant: as there; a change is seen whole or not at all: no commit judges by the new count, epochs or marks where the
others of them are still the old ones. A partition goes only when it is empty, and its index continues where it was.
"""

from __future__ import annotations

import uuid

from headrace.metastore.api.retention import TO_HIGH_WATERMARK, LogStartTarget
from headrace.metastore.api.topics import CountChange, RemovalOutcome
from headrace.metastore.keys import partition_key
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.partitions.changes import Expansion, Shrinking, change_count, removals
from tests.metastore.growth_interleavings import GrowthHistory
from tests.metastore.interleavings import PARTITIONS
from tests.metastore.lock_gates import Operation
from tests.model.file_model import ModelWithFiles

MORE_MAX = 3
ROWS = 1_000


class CountHistory(GrowthHistory):
    """Commits, changes of counts, log starts that move, removals."""

    async def begin(self) -> None:
        """And a controller."""
        await super().begin()
        lease = await self.store.controller.hold_controller_lease(1, uuid.UUID(int=self.seed + 1), 3_600_000)
        self.controller_epoch = lease.controller_epoch

    def _draw(self) -> list[Operation]:
        operations = [self._commit() for _ in range(self.rng.choice([1, 2]))]
        marked = [key for key, partition in self.model.partitions.items() if partition.is_marked]
        operations.append(self._remove() if marked and self.rng.random() < 0.6 else self._change())
        if marked and self.rng.random() < 0.5:
            operations.append(self._empty(self.rng.choice(marked)))
        return operations

    def _empty(self, key: int) -> Operation:
        return self._move([LogStartTarget(key, TO_HIGH_WATERMARK)], ROWS)

    def _change(self) -> Operation:
        number = self.rng.choice(sorted(self.topics))
        topic_id, wanted = self.topics[number], PARTITIONS + self.rng.randint(0, MORE_MAX)
        planned: list[tuple[int, Expansion | Shrinking]] = []

        async def real() -> bool:
            image = await load_image(self.store.cluster)
            topic = image.topics_by_id[topic_id].ordered_partitions
            if topic.marked and wanted > topic.undeleted:
                return False
            change = change_count(topic, wanted)
            if change is None:
                return False
            done = await self.store.topics.change_partition_counts(
                image.offset, [CountChange(topic_id, topic.initial, change)]
            )
            if done:
                planned[:] = [(topic.undeleted, change)]
                if isinstance(change, Expansion):
                    new = [partition_key(number, index) for index in change.created]
                    self.keys += [key for key in new if key not in self.keys]
            return done

        async def modelled(model: ModelWithFiles) -> bool | None:
            if not planned:
                return False
            ((before, change),) = planned
            if model.partition_counts.get(number) != before:
                return None
            model.change_count(number, change)
            return True

        return Operation(f"topic {number} to {wanted} partitions", real, modelled)

    def _remove(self) -> Operation:
        number = self.rng.choice(sorted(self.topics))
        topic_id, chance = self.topics[number], self.rng.random()
        tried: list[tuple[int, RemovalOutcome]] = []

        async def real() -> RemovalOutcome | None:
            image = await load_image(self.store.cluster)
            topic = image.topics_by_id[topic_id]
            planned = removals(topic.ordered_partitions, topic.marked)
            if not planned:
                return None
            removal = planned[int(chance * len(planned))]
            outcome = await self.store.topics.remove_partition(
                self.controller_epoch, image.offset, topic_id, removal, limit=ROWS
            )
            tried[:] = [(removal.partition, outcome)]
            return outcome

        async def modelled(model: ModelWithFiles) -> RemovalOutcome | None:
            if not tried:
                return None
            ((index, outcome),) = tried
            if outcome is RemovalOutcome.HEAD_MOVED:
                return outcome
            return model.remove_partition(partition_key(number, index))

        return Operation(f"remove a partition of topic {number}", real, modelled)
