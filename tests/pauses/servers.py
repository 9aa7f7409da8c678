"""The metastore and the bucket, and a process's connection to them: they also answer paused processes.

Fault model: a call takes REQUEST_SECONDS there and REPLY_SECONDS back; in between the world does the work,
so that a process that is stopped meanwhile finds its answer when it continues. The first call of each of
FAILS_ONCE finds the server away, so that the paths that try again are there to be stopped, too.
Agents' registrations are tests/agent/cluster/fake_cluster_api.py's, commits the reference model's, groups those
of tests/agent/groups/fake_group_api.py: all three judge an agent by the same registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectInfo, StoreDecorator
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.model.metastore_model import ModelMetastore
from tests.nouns import NOUNS
from tests.simulation.clocks import SimulatedClock

if TYPE_CHECKING:
    from tests.pauses.world import World

REQUEST_SECONDS = 0.004
REPLY_SECONDS = 0.003
PUT_SECONDS = 0.06
FAILS_ONCE = ("register_agent", "commit_files", "release_groups", "expire_group_offsets")
SESSION_MS = 1_200


class Servers:
    """What all agents share."""

    def __init__(self, clock: SimulatedClock, shards: int) -> None:
        self.cluster = FakeClusterApi(clock, session_seconds=SESSION_MS / 1000)  # type: ignore[arg-type]
        self.groups = FakeGroupApi(self.is_live)
        self.model = ModelMetastore(clock, shards=shards)
        self.bucket = MemoryStore(clock)
        self._failed: set[str] = set()

    def is_live(self, node_id: int, broker_epoch: int) -> bool:
        agent = self.cluster.agents.get(node_id)
        return agent is not None and agent.epoch == broker_epoch and not agent.fenced

    async def commit_files(self, node_id: int, broker_epoch: int, files: list[FileCommit]) -> list[FileAnswer]:
        live = {n: agent.epoch for n, agent in self.cluster.agents.items() if not agent.fenced}
        self.model.agents = live
        return await self.model.commit_files(node_id, broker_epoch, files)

    async def rotate_log_slots(self) -> str | None:
        """Housekeeping asks, and finds nothing to remove."""
        return None

    async def overdue_slots(self) -> dict[str, int]:
        """They are emptied in time."""
        return {}

    async def held_snapshot(self) -> int:
        """No session holds one."""
        return 0

    async def oldest_bulk_write(self) -> float:
        """None waits."""
        return 0.0

    async def oldest_audit_block(self) -> float:
        """None waits."""
        return 0.0

    async def _removes_nothing(self, limit: int) -> int:
        return 0

    expire_producer_state = purge_deleted_partitions = expire_group_offsets = prune_jobs = _removes_nothing
    merge_producer_id_blocks = prune_bulk_writes = _removes_nothing

    async def finish_bulk_writes(self) -> int:
        """No driver was killed."""
        return 0

    def operation(self, name: str) -> Callable[..., Awaitable[Any]]:
        """The agent that serves it."""
        if name in FAILS_ONCE and name not in self._failed:
            self._failed.add(name)
            return _unavailable
        owner = next(server for server in (self, self.cluster, self.groups, self.model) if hasattr(server, name))
        found: Callable[..., Awaitable[Any]] = getattr(owner, name)
        return found


async def _unavailable(*arguments: Any, **named: Any) -> Any:
    raise UnavailableError("away")


class Line:
    """One process's connection to the metastore: any operation, by its name."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        async def call(*arguments: Any, **named: Any) -> Any:
            operation = self._world.servers.operation(name)
            return await remote(self._world, lambda: operation(*arguments, **named))

        return call


class BucketLine(StoreDecorator):
    """One process's connection to the bucket."""

    def __init__(self, world: World) -> None:
        super().__init__(world.servers.bucket)
        self._world = world

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        body: bytes = await remote(self._world, lambda: self._inner.get(key, byte_range))
        return body

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        content = bytes(body)
        info: ObjectInfo = await remote(
            self._world, lambda: self._inner.put(key, content, if_absent=if_absent), seconds=PUT_SECONDS
        )
        return info


async def remote(world: World, work: Callable[[], Awaitable[Any]], seconds: float = REQUEST_SECONDS) -> Any:
    """Return what `work` returns or raises, done by the world."""
    answer: asyncio.Future[Any] = world.loop.create_future()

    async def serve() -> None:
        await asyncio.sleep(seconds)
        try:
            result, error = await work(), None
        except Exception as raised:
            result, error = None, raised
        await asyncio.sleep(REPLY_SECONDS)
        if answer.done():  # its caller gave up
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    world.spawn(serve())
    return await answer
