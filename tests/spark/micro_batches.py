"""Spark's micro-batch engine as far as a source sees it, without a JVM: offsets to the checkpoint, plan, read, commit.

Fault model: the driver is killed at any step; what it had not written to the checkpoint is lost, and the next driver
runs the planned batch again. The sink is idempotent by batch number, as files and foreachBatch are.
"""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import dataclass, field

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from headrace.spark.source import HeadraceDataSource
from headrace.spark.stream import TopicStreamReader

SCHEMA = StructType().add("topic", StringType()).add("partition", IntegerType()).add("offset", LongType())
STEPS = ("before the checkpoint", "after the checkpoint", "planned", "read")


class DriverKilled(Exception):
    """Raised at the chosen step."""


@dataclass
class Checkpoint:
    """What survives a driver: the end of each batch (None: the start), which batches are done, and their rows."""

    offsets: list[str] = field(default_factory=list)
    done: int = 0
    rows: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)


class MicroBatches:
    """One driver of a query."""

    def __init__(self, options: dict[str, str], checkpoint: Checkpoint, rng: random.Random) -> None:
        source = HeadraceDataSource(options | {"columns": "topic,partition,offset"})
        reader = source.streamReader(SCHEMA)
        assert isinstance(reader, TopicStreamReader)
        self.reader, self.checkpoint, self.rng = reader, checkpoint, rng
        self.kill_at = ""

    def run(self, limit: ReadLimit | None = None) -> bool:
        """One batch; whether there was something to read. DriverKilled at the step `kill_at`."""
        state = self.checkpoint
        if not state.offsets:
            state.offsets.append(json.dumps(self.reader.initialOffset()))
        if len(state.offsets) == state.done + 1:
            start = json.loads(state.offsets[-1])
            end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
            if end == start:
                return False
            self._step("before the checkpoint")
            state.offsets.append(json.dumps(end))
            self._step("after the checkpoint")
            if state.done:
                self.reader.commit(start)
        start, end = (json.loads(text) for text in state.offsets[-2:])
        tasks = self.reader.partitions(start, end)
        self._step("planned")
        executor = pickle.loads(pickle.dumps(self.reader))
        rows = []
        for task in self.rng.sample(tasks, len(tasks)):
            for batch in executor.read(pickle.loads(pickle.dumps(task))):
                rows += [(row["topic"], row["partition"], row["offset"]) for row in batch.to_pylist()]
        state.rows[state.done] = rows
        self._step("read")
        state.done += 1
        return True

    def rows(self) -> list[tuple[str, int, int]]:
        """Return the rows of all batches."""
        return sorted(row for batch in self.checkpoint.rows.values() for row in batch)

    def _step(self, name: str) -> None:
        if self.kill_at == name:
            raise DriverKilled
