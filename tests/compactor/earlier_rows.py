"""A metastore that is restored to an earlier moment in which inline files were not moved yet, and what is put back.

A restore here puts every row of that moment back, and begins a new life. The bucket keeps all. Nothing else misbehaves.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kio.schema.errors import ErrorCode
from psycopg.errors import DeadlockDetected

from headrace.cli import lost as cli_lost
from headrace.cli.client.offsets import TopicPartition
from headrace.metastore.life.keeper import LifeKeeper
from headrace.protocol.client.cluster import KafkaCluster
from headrace.storage.clock import SystemClock
from headrace.storage.records.codec import decode_records
from headrace.storage.segment.verified import SoundBatch
from tests.compactor.inline_world import InlineWorld
from tests.metastore.sessions import Session, rows, session
from tests.patch import Patch

RESTORES_MAX = 5


class EarlierRows:
    """Every row of a moment."""

    def __init__(self, raw: Session, tables: Sequence[str]) -> None:
        self._raw, self._tables = raw, tables

    @classmethod
    @asynccontextmanager
    async def taken(cls, world: InlineWorld) -> AsyncIterator[EarlierRows]:
        """Copy the rows; they are gone after the block."""
        async with session(world.url) as raw:
            kinds = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            tables = [name for (name,) in await rows(raw, kinds)]
            for table in tables:
                await raw.execute(f"CREATE TEMP TABLE old_{table} AS TABLE public.{table}".encode())
            yield cls(raw, tables)

    async def restore(self, world: InlineWorld) -> int:
        """Put them back and begin a new life; its number."""
        for left in reversed(range(RESTORES_MAX)):
            try:
                await self._put_back()
                break
            except DeadlockDetected:  # with a query of the world that takes these tables in another order
                if not left:
                    raise
        return await new_life(world)

    async def _put_back(self) -> None:
        async with self._raw.transaction():
            await self._raw.execute(b"SET LOCAL session_replication_role = replica")
            await self._raw.execute(b"TRUNCATE " + ", ".join(self._tables).encode())
            for table in self._tables:
                await self._raw.execute(f"INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE old_{table}".encode())


async def new_life(world: InlineWorld) -> int:
    keeper = LifeKeeper(world.postgres.life, world.bucket, SystemClock(), random.Random(world.rng.random()))
    return await keeper.begin_anew("restored")


class PutBackHere:
    """A cluster to which records are put back: they are committed to the world."""

    def __init__(self, world: InlineWorld, patch: Patch) -> None:
        self.world, self.fails_after = world, 1 << 30
        self.sent: list[tuple[TopicPartition, int, list[bytes]]] = []
        """Partition, sequence and values of each batch."""
        patch.replace(cli_lost, "KafkaCluster", type("Cluster", (), {"of": lambda config: self}))
        patch.replace(cli_lost, "init_producer_id", lambda cluster: (9_000, 0))
        patch.replace(cli_lost, "_send_one", self._send_one)

    def __enter__(self) -> PutBackHere:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def _send_one(
        self, cluster: KafkaCluster, place: TopicPartition, batch: SoundBatch, producer: tuple[int, int, int]
    ) -> ErrorCode:
        if len(self.sent) >= self.fails_after:
            raise KeyboardInterrupt
        values = [record.value or b"" for record in decode_records(batch.data)]
        if (place, producer[2]) in [sent[:2] for sent in self.sent]:
            return ErrorCode.duplicate_sequence_number
        self.sent.append((place, producer[2], values))
        return ErrorCode.none

    def values(self, partition: int) -> list[bytes]:
        return [value for place, _, values in self.sent if place[1] == partition for value in values]
