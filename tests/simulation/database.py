"""The metastore that all agents share, its journal for the checker, and one process's faulty way to it.

Fault model: as remote.py; feed pages that are cut short (later rows come with the next poll) or come
late; files that poison every call that they are in. Feed rows may be forgotten, the database's clock may
jump, its incarnation id may change (nemesis.py).
The journal is written by what the metastore answers, in the instant in which it does: it knows when
each batch was committed, which no client can know.
"""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.metastore.api.commit import BatchOutcome, FileAnswer, FileCommit, FileStatus
from headrace.metastore.api.read import ALL_BYTES, ExtentQuery, FeedPage, OffsetAnswer, OffsetQuery, PartitionExtents
from headrace.metastore.log.image import MetadataImage
from headrace.storage.errors import InvalidError
from headrace.storage.records.header import read_header
from tests.model.metastore_model import ModelMetastore
from tests.simulation.clocks import SimulatedClock
from tests.simulation.faults import Fault
from tests.simulation.marks import Marks
from tests.simulation.metadata import Place
from tests.simulation.problems import Kind
from tests.simulation.reading import Entry, identity_of
from tests.simulation.remote import READS, WRITES, Remote, run_at_once
from tests.simulation.stored_log import read_extent

if TYPE_CHECKING:
    from tests.simulation.agents import Process
    from tests.simulation.compactor import Merged
    from tests.simulation.messages import Batch
    from tests.simulation.world import World

LATENCY = (0.0005, 0.006)
RENEW_MENU = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.CUT, Fault.SLOW)
COMMIT_MENU = (*WRITES, Fault.FENCED_IN_DOUBT, Fault.UNREGISTERED_IN_DOUBT)
POLL_MENU = (Fault.LAGGING_FEED, *READS)


@dataclass(slots=True)
class Committed:
    """One batch that the metastore judged, as of the first time."""

    at: float
    file_id: uuid.UUID
    key: int
    position: int
    length: int
    batch: Batch
    outcome: BatchOutcome
    base_offset: int
    identity: tuple[int, int, int]
    """Producer id, epoch and sequence that it was committed with."""


class Database:
    """`journal`: every judged batch, in commit order."""

    def __init__(self, world: World, shards: int) -> None:
        self._world = world
        self.clock = SimulatedClock(world.loop)
        self.model = ModelMetastore(self.clock, shards=shards)
        self.journal: list[Committed] = []
        self.expelled: set[Batch] = set()
        """Batches of files with a refused commit: condemned, too old, or poisoned."""
        self.stripped: dict[tuple[int, int], tuple[int, int, int]] = {}
        """By partition key and base offset: the identities of batches that a merge may have taken them from."""
        self._known: set[uuid.UUID] = set()
        self._poison: dict[uuid.UUID, bool] = {}
        self.high_watermarks: defaultdict[int, Marks] = defaultdict(Marks)
        self.log_starts: defaultdict[int, Marks] = defaultdict(Marks)
        """Both by partition key."""
        self.removed: defaultdict[Place, list[Entry]] = defaultdict(list)
        """The batches below the log start, in order."""
        self._epochs = 100
        self._registered: dict[int, int] = {}

    def commit(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        self._refuse_poisoned(files)
        answers: list[FileAnswer] = run_at_once(self.model.commit_files(node_id, broker_epoch, files))
        for file, answer in zip(files, answers, strict=True):
            if answer.status is FileStatus.COMMITTED and file.file_id not in self._known:
                self._known.add(file.file_id)
                self._write_down(file, answer)
            elif answer.status in (FileStatus.CONDEMNED, FileStatus.TOO_OLD):
                self.expelled.update(self._batches_of(file))
        return answers

    def _refuse_poisoned(self, files: Sequence[FileCommit]) -> None:
        """Some files are refused finally, with all other files of the same call."""
        for file in files:
            if file.file_id not in self._poison:
                self._poison[file.file_id] = self._world.faults.strikes(Fault.POISONED)
        if any(self._poison[file.file_id] for file in files):
            for file in files:
                self.expelled.update(self._batches_of(file) if self._poison[file.file_id] else ())
            raise InvalidError(f"simulated: poisoned file: files={len(files)}")

    def renew(self, node_id: int, broker_epoch: int) -> int:
        """Unfence the agent under its epoch if that is still registered, else under a new, higher one."""
        if self._registered.get(node_id) != broker_epoch:
            self._epochs += 1
            self._registered[node_id] = self._epochs
        self.model.register_agent(node_id, self._registered[node_id])
        self._world.metadata.show_agent(node_id, self._registered[node_id], fenced=False)
        return self._registered[node_id]

    def fence(self, node_id: int, *, unregister: bool) -> None:
        """Its lease ran out, and perhaps its registration is gone as well."""
        self.model.fence_agent(node_id)
        if node_id in self._registered:
            self._world.metadata.show_agent(node_id, self._registered[node_id], fenced=True)
        if unregister:
            self._registered.pop(node_id, None)

    def move_log_start(self, place: Place, offset: int) -> None:
        """What DeleteRecords does."""
        for extent in self.model.partitions[place.key].extents:
            if extent.last_offset < offset:
                self.removed[place] += read_extent(self._world, place, extent, self._world.problems)
        self.model.move_log_start(place.key, offset)
        self.log_starts[place.key].becomes(self._world.loop.time(), offset)

    def swap(self, merged: Merged) -> None:
        """Let the merged file replace what still exists; the journal and the batches below the log start follow."""
        outcomes, extents = self.model.decide_swaps(merged.file_id, merged.swaps)
        self.model.announce_swaps(extents)
        self._world.note("swapped", str(merged.file_id), outcomes)
        for extent in extents:
            place = self._world.metadata.place(extent.partition_key)
            self.removed[place] = [e for e in self.removed[place] if e.base_offset < extent.base_offset]
            for committed in self.journal:
                is_covered = extent.base_offset <= committed.base_offset <= extent.last_offset
                if (committed.key, committed.outcome) == (place.key, BatchOutcome.APPENDED) and is_covered:
                    committed.file_id = extent.file_id
                    committed.position, committed.length = merged.places[place.key, committed.base_offset]
                    self.stripped[place.key, committed.base_offset] = committed.identity

    def _batches_of(self, file: FileCommit) -> Iterator[Batch]:
        body = self._world.bucket.ever_put.get(file.file_id, b"")
        for staged in file.batches:
            for member in self._world.messages.open(body[staged.position : staged.position + staged.length]):
                yield member.batch

    def _write_down(self, file: FileCommit, answer: FileAnswer) -> None:
        now = self._world.loop.time()
        body = self._world.bucket.read(file.file_id)
        if body is None or len(body) != file.size:
            held = "nothing" if body is None else f"{len(body)} bytes"
            self._world.report(Kind.UNSTORED, f"file={file.file_id} size={file.size} bucket holds {held}")
            return
        for staged, (outcome, base_offset, _) in zip(file.batches, answer.batches, strict=True):
            members = self._world.messages.open(body[staged.position : staged.position + staged.length])
            if not members:
                self._world.report(
                    Kind.CORRUPT, f"file={file.file_id} position={staged.position}: no producer sent this"
                )
            where = (file.file_id, staged.partition_key, staged.position, staged.length)
            identity = identity_of(read_header(body, staged.position))
            self.journal += [
                Committed(now, *where, batch, outcome, base_offset + before if base_offset >= 0 else -1, identity)
                for batch, before in members
            ]
            partition = self.model.partitions.get(staged.partition_key)
            if partition is not None:
                self.high_watermarks[staged.partition_key].becomes(now, partition.high_watermark)


class MetastoreLine:
    """CommitApi, ReadApi and the little of ClusterApi that a view needs, for one process."""

    def __init__(self, world: World, process: Process, rng: random.Random) -> None:
        self._world = world
        self._database = world.database
        self._model = world.database.model
        self._remote = Remote(world, process, "metastore", LATENCY, rng)
        self._rng = rng

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        sent = [FileCommit(file.file_id, file.size, list(file.batches)) for file in files]
        return await self._remote.call(lambda: self._database.commit(node_id, broker_epoch, sent), COMMIT_MENU)

    async def allocate_producer_ids(self, count: int) -> range:
        ids: range = await self._remote.call(lambda: run_at_once(self._model.allocate_producer_ids(count)), WRITES)
        return ids

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        found: list[PartitionExtents] = await self._remote.call(
            lambda: run_at_once(self._model.find_extents(queries, max_bytes)), READS
        )
        return found

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        found: list[OffsetAnswer] = await self._remote.call(
            lambda: run_at_once(self._model.list_offsets(queries)), READS
        )
        return found

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        asked = dict(positions)
        page: FeedPage = await self._remote.call(lambda: run_at_once(self._model.poll_feed(asked)), POLL_MENU)
        if page.rows and self._world.faults.strikes(Fault.PARTIAL_PAGE):
            page = replace(page, rows=page.rows[: self._rng.randrange(len(page.rows))])
        return page

    async def read_head(self) -> MetadataImage:
        return await self._remote.call(lambda: self._world.metadata.head, READS)

    async def renew(self, node_id: int, broker_epoch: int) -> int:
        return await self._remote.call(lambda: self._database.renew(node_id, broker_epoch), RENEW_MENU)
