"""Topics that grow while batches that were partitioned by the old or the new count are committed.

Place: tests/metastore/interleavings.py with one more operation, and batches that name a partition count.
Invariant: as there; a growth that found the log moved on did nothing, and one that succeeded is seen whole: no commit
judges by the new count where the new partitions are not there, or the other way round.
"""

from __future__ import annotations

from headrace.metastore.api.commit import StagedBatch
from headrace.metastore.api.topics import PartitionGrowth
from headrace.metastore.keys import partition_key, split_partition_key
from headrace.metastore.log.snapshot import load_image
from tests.metastore.interleavings import PARTITIONS, History
from tests.metastore.lock_gates import Operation
from tests.model.file_model import ModelWithFiles
from tests.model.partition_model import ModelPartition

GROWN_MAX = 3 * PARTITIONS


class GrowthHistory(History):
    """Commits, deletions and growth only."""

    def _draw(self) -> list[Operation]:
        operations = [self._commit() for _ in range(self.rng.choice([1, 2]))]
        operations += [self._grow() for _ in range(self.rng.choice([1, 1, 2]))]
        if self.rng.random() < 0.2:
            operations.append(self._delete_topic())
        return operations[:4]

    def _grow(self) -> Operation:
        number = self.rng.choice(sorted(self.topics))
        topic_id, more = self.topics[number], self.rng.choice([1, 2])
        grown: list[int] = []

        async def real() -> bool:
            """The same as an admin request: decided on an image, appended if the log still ends there."""
            image = await load_image(self.store.cluster)
            topic = image.topics_by_id.get(topic_id)
            if topic is None or len(topic.leader_epochs) >= GROWN_MAX:
                return False
            first = len(topic.leader_epochs)
            done = await self.store.topics.create_partitions(
                image.offset, [PartitionGrowth(topic_id, first, first + more)]
            )
            if done:
                grown[:] = [first, first + more]
                self.keys += [partition_key(number, index) for index in range(first, first + more)]
            return done

        async def modelled(model: ModelWithFiles) -> bool | None:
            if not grown:
                return False
            first, count = grown
            if model.partition_counts.get(number) != first:
                return None
            for index in range(first, count):
                model.partitions[partition_key(number, index)] = ModelPartition(created_ms=model.clock.wall_ms())
            model.set_partition_count(number, count)
            return True

        return Operation(f"grow topic {number}", real, modelled)

    def _batch(self) -> StagedBatch:
        batch = super()._batch()
        number, index = split_partition_key(batch.partition_key)
        count = self.model.partition_counts.get(number, PARTITIONS)
        if self.rng.random() < 0.3:  # a client that knows of partitions which are just made
            batch = batch._replace(partition_key=partition_key(number, min(index + 2, count + 1)), producer_id=-1)
            batch = batch._replace(producer_epoch=-1, base_sequence=-1)
        return batch._replace(partition_count=self.rng.choice([-1, count, count, count + 1, count + 2]))
