"""One process's faulty way to the metastore.

Fault model: as remote.py; feed pages that are cut short (later rows come with the next poll) or come late; calls that
reach a server that is the metastore no more.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.inline import InlineRange, InlineState
from headrace.metastore.api.life import ServerLife
from headrace.metastore.api.read import ALL_BYTES, ExtentQuery, FeedPage, OffsetAnswer, OffsetQuery, PartitionExtents
from headrace.metastore.life.numbers import NO_LIFE
from headrace.metastore.log.image import MetadataImage
from tests.simulation.faults import Fault
from tests.simulation.metadata import NamesDatabase
from tests.simulation.remote import READS, WRITES, Remote, run_at_once

if TYPE_CHECKING:
    from tests.simulation.agents import Process
    from tests.simulation.database import Database
    from tests.simulation.full_following import FullFollowing
    from tests.simulation.world import World

T = TypeVar("T")

LATENCY = (0.0005, 0.006)
RENEW_MENU = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.CUT, Fault.SLOW)
COMMIT_MENU = (*WRITES, Fault.FENCED_IN_DOUBT, Fault.UNREGISTERED_IN_DOUBT)
POLL_MENU = (Fault.LAGGING_FEED, *READS)


class InlineNow:
    """The part of InlineApi for those that read straight from the metastore of the moment."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def read_inline(self, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        return await self._world.database.model.read_inline(ranges)


class MetastoreLine(NamesDatabase):
    """CommitApi, IndexApi, InlineApi, LifeApi and the little of ClusterApi that a view needs, for one process."""

    def __init__(self, world: World, process: Process, rng: random.Random) -> None:
        self.named_life = NO_LIFE if world.plan.failovers else 0
        self._world = world
        self._remote = Remote(world, process, "metastore", LATENCY, rng)
        self._rng = rng
        self.full: FullFollowing | None = None
        """Gets each poll, if it is set."""
        self._stays_on: Database | None = None
        self._stays_until = 0.0

    def stay_on(self, server: Database, until: float) -> None:
        """Stay connected to a server that is the metastore no more."""
        self._stays_on, self._stays_until = server, until

    def name_life(self, life: int) -> None:
        self.named_life = life

    def leave_connections(self) -> None:
        """The next call goes to where the address leads now."""
        self._stays_on = None

    async def describe_life(self) -> ServerLife:
        return await self._read(lambda server: server.describe_life())

    async def prepare_life(self, incarnation_id: uuid.UUID, spent: uuid.UUID | None = None) -> uuid.UUID:
        return await self._write(lambda server: server.prepare_life(incarnation_id, spent))

    async def begin_life(self, life: int, incarnation_id: uuid.UUID) -> bool:
        return await self._write(lambda server: server.begin_life(life, incarnation_id))

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        sent = [FileCommit(file.file_id, file.size, list(file.batches), file.body) for file in files]
        life = self.named_life
        return await self._write(lambda server: server.commit(life, node_id, broker_epoch, sent), COMMIT_MENU)

    async def allocate_producer_ids(self, count: int) -> range:
        life = self.named_life
        return await self._write(lambda server: server.allocate_producer_ids(life, count))

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        found: list[PartitionExtents] = await self._read(
            lambda server: run_at_once(server.model.find_extents(queries, max_bytes))
        )
        return found

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        found: list[OffsetAnswer] = await self._read(lambda server: run_at_once(server.model.list_offsets(queries)))
        return found

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        asked = dict(positions)
        full = self.full

        def poll(server: Database) -> tuple[FeedPage, FeedPage | None]:
            every = None if full is None else run_at_once(server.model.poll_feed(full.index.heads))
            return run_at_once(server.model.poll_feed(asked)), every

        page, every = await self._read(poll, POLL_MENU)
        if full is not None and every is not None:
            full.polled(every)
        if page.rows and self._world.faults.strikes(Fault.PARTIAL_PAGE):
            page = replace(page, rows=page.rows[: self._rng.randrange(len(page.rows))])
        return page

    async def read_inline(self, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        wanted = list(ranges)
        found: list[bytes | None] = await self._read(lambda server: run_at_once(server.model.read_inline(wanted)))
        return found

    async def inline_state(self) -> InlineState:
        found: InlineState = await self._read(lambda server: run_at_once(server.model.inline_state()))
        return found

    async def rotate_inline_slots(self, slot_bytes: int, slot_ms: int) -> int:
        life = self.named_life
        return await self._write(lambda server: server.rotate(life, slot_bytes, slot_ms))

    async def read_head(self) -> MetadataImage:
        return await self._read(lambda server: server.metadata.head)

    async def renew(self, node_id: int, broker_epoch: int) -> int:
        life = self.named_life
        return await self._write(lambda server: server.renew(life, node_id, broker_epoch), RENEW_MENU)

    async def _read(self, work: Callable[[Database], T], menu: tuple[Fault, ...] = READS) -> T:
        server = self._server()
        return await self._remote.call(lambda: work(server.reached(writes=False)), menu)

    async def _write(self, work: Callable[[Database], T], menu: tuple[Fault, ...] = WRITES) -> T:
        server = self._server()
        return await self._remote.call(lambda: work(server.reached(writes=True)), menu)

    def _server(self) -> Database:
        """Return the server to which this process is connected when it sends."""
        stays_on = self._stays_on
        if stays_on is not None and stays_on.is_up and self._world.loop.time() < self._stays_until:
            return stays_on
        return self._world.database
