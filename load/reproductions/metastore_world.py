"""What the reproductions share: a new metastore, one agent, one topic, files to commit.

Place: under the programs of this folder. Modules are looked up by name, because older versions have other names: first
those of this version, then the flat packages of before docs/decisions/0030.
"""

from __future__ import annotations

import importlib
import inspect
import random
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg


def named(name: str, *modules: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no module of this version has it: name={name} tried={','.join(modules)}")


_API = ("headrace.metastore.api", "metastore.values")
Settings = named("Settings", "headrace.config.settings", "config.settings")
AgentRegistration = named("AgentRegistration", f"{_API[0]}.agents", _API[1])
FileCommit = named("FileCommit", f"{_API[0]}.commit", _API[1])
StagedBatch = named("StagedBatch", f"{_API[0]}.commit", _API[1])
NewTopic = named("NewTopic", f"{_API[0]}.topics", _API[1])
ExtentQuery = named("ExtentQuery", f"{_API[0]}.read", _API[1])
HeadraceError = named("HeadraceError", "headrace.storage.errors", "storage.errors")
EmbeddedPostgres = named("EmbeddedPostgres", "headrace.metastore.postgres.embedded", "metastore.postgres.embedded")
migrate = named("migrate", "headrace.metastore.postgres.migrate", "metastore.postgres.migrate")
PostgresMetastore = named("PostgresMetastore", "headrace.metastore.postgres.store", "metastore.postgres.store")
new_file_id = named("new_file_id", "headrace.storage.file_id", "storage.file_id")
BATCH_BYTES = 1_000


@dataclass
class World:
    """A metastore with one unfenced agent and one topic; `keys[i]` is its partition i."""

    url: str
    store: Any
    agent: Any
    keys: list[int]
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def file_of(self, batches: Sequence[Any]) -> Any:
        """A file that holds these, one behind the other."""
        placed = [batch._replace(position=place * BATCH_BYTES) for place, batch in enumerate(batches)]
        return FileCommit(new_file_id(time.time_ns() // 1_000_000, self.rng), len(placed) * BATCH_BYTES, placed)

    async def commit(self, *batches: Any) -> Any:
        """Commit them in one file."""
        (answer,) = await self.store.commit_files(*self.agent, [self.file_of(batches)])
        return answer

    async def beat(self) -> None:
        """Heartbeat of the agent; parameters that this version does not have are left out."""
        await _with_known(
            self.store.heartbeat,
            *self.agent,
            metadata_offset=await self.store.metadata_head(),
            want_fence=False,
            session_timeout_ms=18_000,
        )

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run it in a separate session."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []


def batch(key: int, producer: tuple[int, int, int] = (-1, -1, -1), records: int = 1) -> Any:
    """`producer`: id, epoch, base sequence."""
    return StagedBatch(key, 0, BATCH_BYTES, records, time.time_ns() // 1_000_000, *producer)


@asynccontextmanager
async def opened(partitions: int, **settings: Any) -> AsyncIterator[World]:
    """A world on a new, durable Postgres."""
    with _running_postgres() as url:
        migrate(url)
        store = await PostgresMetastore.open(url, Settings(**settings))
        topic = NewTopic("reproduction", uuid.uuid4(), partitions, {})
        head = await store.metadata_head()
        assert await store.create_topics(head, [topic])
        agent = await store.register_agent(AgentRegistration(1, uuid.uuid4(), "127.0.0.1", 1, None))
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT partition_key FROM partitions ORDER BY 1").fetchall()
        world = World(url, store, agent, [key for (key,) in rows])
        await world.beat()
        yield world
        await store.close()


@contextmanager
def _running_postgres() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-reproduction-") as directory:
        Path(directory).chmod(0o711)
        with EmbeddedPostgres(Path(directory)) as url:
            yield url


async def _with_known(function: Any, *positional: Any, **named: Any) -> Any:
    known = inspect.signature(function).parameters
    return await function(*positional, **{name: value for name, value in named.items() if name in known})
