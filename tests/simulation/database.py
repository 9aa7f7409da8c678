"""A server of the metastore that all agents share, and its journal for the checker.

Fault model: files that poison every call that they are in. Feed rows may be forgotten, the database's clock may
jump, its incarnation id may change (nemesis.py); a server may crash and come back without the WAL that it had not
flushed, or be replaced by a copy of what it was (failovers.py).
A server has the bytes of inline files, as its commits have them: a copy has what it knows the order of.
The journal is written by what the metastore answers, in the instant in which it does: it knows when
each batch was committed, which no client can know.
"""

from __future__ import annotations

import copy
import itertools
import math
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from headrace.metastore.api.commit import BatchOutcome, FileAnswer, FileCommit, FileStatus
from headrace.metastore.api.life import Server, ServerLife
from headrace.metastore.api.read import Extent
from headrace.metastore.life.numbers import epoch_floor, log_floor
from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import is_inline
from headrace.storage.records.header import read_header
from tests.model.metastore_model import ModelMetastore
from tests.model.segment_end_model import ModelLifecycle
from tests.simulation.clocks import SimulatedClock
from tests.simulation.faults import Fault
from tests.simulation.marks import Marks
from tests.simulation.metadata import Metadata, Place
from tests.simulation.problems import Kind
from tests.simulation.reading import Entry, identity_of
from tests.simulation.remote import run_at_once
from tests.simulation.stored_log import read_extent

if TYPE_CHECKING:
    from tests.simulation.compactor import Merged
    from tests.simulation.messages import Batch
    from tests.simulation.world import World

T = TypeVar("T")


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
    leader_epoch: int
    serial: int
    """The serial number of all commits on all servers: a copy of a server has the same as its original."""
    node_id: int
    """The agent that committed it."""


class Database:
    """One server. `journal`: every judged batch, in commit order."""

    def __init__(self, world: World, shards: int) -> None:
        self._world = world
        self.clock = SimulatedClock(world.loop)
        self.model: ModelMetastore = (ModelLifecycle if world.plan.has_segments else ModelMetastore)(
            self.clock, shards=shards
        )
        if world.plan.inline is not None:
            self.model.set_inline_terms(**world.plan.inline.terms._asdict())
        self.metadata = Metadata(self.model, world.plan.racks, world.plan.low_latency)
        self.is_up = True
        self.timeline = self.begun_timeline = 1
        """Of the server's WAL, and when its life was begun."""
        self.prepared: tuple[uuid.UUID, int] | None = None
        """The incarnation id of the life that may begin here, and for which timeline."""
        self.before_life: Database | None = None
        """A copy that was made after a promoted server had prepared its life and before it began."""
        self.unflushed = 0
        """Bytes of WAL of statements under way: a crash loses them. No commit is answered before its flush."""
        self.replaced_at = math.inf
        """When another server became the metastore."""
        self.lost_with: Fault | None = None
        """The kind of that failover."""
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
        self._serials = itertools.count()

    # -- what metastore/postgres/life does

    def fork(self) -> Database:
        """A standby, a backup or a copy of the volume, with everything that is here now."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model, {id(self.clock): self.clock})
        other.metadata = self.metadata.fork(other.model)
        other.journal = [replace(committed) for committed in self.journal]
        other.stripped = dict(self.stripped)
        other._known = set(self._known)
        other.high_watermarks = defaultdict(Marks, {key: marks.copy() for key, marks in self.high_watermarks.items()})
        other.log_starts = defaultdict(Marks, {key: marks.copy() for key, marks in self.log_starts.items()})
        other.removed = defaultdict(list, {place: list(entries) for place, entries in self.removed.items()})
        other._registered = dict(self._registered)
        other.unflushed, other.is_up, other.before_life = 0, True, None
        return other

    def activate(self, now: float, *, promoted_from: int | None) -> None:
        """Become the metastore; `promoted_from`: the timeline of the server that it followed, None for a copy."""
        if promoted_from is not None:
            self.timeline = promoted_from + 1
        for key, partition in self.model.partitions.items():
            self.high_watermarks[key].becomes(now, partition.high_watermark)
            self.log_starts[key].becomes(now, partition.log_start_offset)

    def reached(self, *, writes: bool) -> Database:
        """This server, if it is there: one that is gone breaks connections, and does nothing."""
        if not self.is_up:
            error = OutcomeUnknownError if writes else UnavailableError
            raise error("simulated: the server is gone")
        return self

    def assert_life(self, named_life: int) -> None:
        """See assert_life.sql."""
        if named_life != self.model.life or self.timeline != self.begun_timeline:
            raise UnavailableError(f"simulated: another life: named={named_life} stored={self.model.life}")

    def describe_life(self) -> ServerLife:
        heads, blocks = sum(self.model.feed_heads.values()), len(self.model.producer_id_blocks)
        offset, life, incarnation_id = self.model.metadata_offset, self.model.life, self.model.incarnation_id
        begun_on, server = Server(1, self.begun_timeline, 1), Server(1, self.timeline, 1)
        flushed = heads + blocks + offset
        inserted = flushed + self.unflushed
        prepared = self.prepared[0] if self.prepared is not None and self.prepared[1] == self.timeline else None
        return ServerLife(
            "simulated", life, incarnation_id, begun_on, server, inserted, heads, offset, flushed, prepared
        )

    def prepare_life(self, incarnation_id: uuid.UUID, spent: uuid.UUID | None) -> uuid.UUID:
        if self.prepared is None or self.prepared[1] != self.timeline or self.prepared[0] == spent:
            self.prepared = (incarnation_id, self.timeline)
        return self.prepared[0]

    def begin_life(self, life: int, incarnation_id: uuid.UUID) -> bool:
        model = self.model
        if (model.life, model.incarnation_id) == (life, incarnation_id):
            return True
        if model.life >= life or self.prepared != (incarnation_id, self.timeline):
            return False
        if self.timeline != self.begun_timeline:
            self.before_life = self.fork()
        model.life, model.incarnation_id, self.begun_timeline, self.prepared = life, incarnation_id, self.timeline, None
        self.metadata.begin_life(life)
        self._epochs = max(self._epochs, log_floor(life))
        for partition in model.partitions.values():
            partition.leader_epoch = max(partition.leader_epoch, epoch_floor(life))
        self._world.note("life begins", life, self.timeline)
        self._world.lives_begun.append((self._world.loop.time(), self))
        return True

    def allocate_producer_ids(self, named_life: int, count: int) -> range:
        self.assert_life(named_life)
        ids: range = run_at_once(self.model.allocate_producer_ids(count))
        return ids

    # -- what agents ask for

    def commit(self, named_life: int, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        self.assert_life(named_life)
        self._note_bodies(files)
        self._refuse_poisoned(files)
        emptied = [file.file_id for file in files if self._was_emptied(file.file_id)]
        answers: list[FileAnswer] = run_at_once(self.model.commit_files(node_id, broker_epoch, files))
        for file_id in emptied:
            if self.bytes_of(file_id) is not None:
                self._world.report(Kind.UNACCOUNTED, f"stored again after its slot was emptied: file={file_id}")
        for file, answer in zip(files, answers, strict=True):
            if answer.status is FileStatus.COMMITTED and file.file_id not in self._known:
                self._known.add(file.file_id)
                self._write_down(file, answer, node_id)
            elif answer.status in (FileStatus.CONDEMNED, FileStatus.TOO_OLD):
                self.expelled.update(self._batches_of(file))
        return answers

    def has_committed(self, file_id: uuid.UUID) -> bool:
        return file_id in self._known

    def bytes_of(self, file_id: uuid.UUID) -> bytes | None:
        """The file's bytes, wherever its id says that they are; None when they are not there."""
        return self.model.inline_files.get(file_id) if is_inline(file_id) else self._world.bucket.read(file_id)

    def rotate(self, named_life: int, slot_bytes: int, slot_ms: int) -> int:
        """Turn the slots, and look whether everything live still has its bytes."""
        self.assert_life(named_life)
        emptied: int = run_at_once(self.model.rotate_inline_slots(slot_bytes, slot_ms))
        if emptied:
            self._world.faults.count(Fault.SLOT_EMPTIED)
            self._world.note("slot emptied", [int(slot.state) for slot in self.model.inline_slots])
        named = {e.source for p in self.model.partitions.values() for e in p.extents if is_inline(e.source)}
        for file_id in sorted(named - self.model.inline_files.keys()):
            self._world.report(Kind.UNACCOUNTED, f"slot emptied with a live file: file={file_id}")
        return emptied

    def ask_inline_move(self, named_life: int) -> None:
        self.assert_life(named_life)
        run_at_once(self.model.ask_inline_move())

    def _was_emptied(self, file_id: uuid.UUID) -> bool:
        """Return whether an inline file is committed and its bytes are gone."""
        return is_inline(file_id) and file_id in self._known and file_id not in self.model.inline_files

    def _note_bodies(self, files: Sequence[FileCommit]) -> None:
        for file in files:
            if file.body is not None:
                self._world.faults.count(Fault.KEPT_INLINE)
                if self._world.bucket.sent_inline.setdefault(file.file_id, file.body) != file.body:
                    self._world.report(Kind.INCONSISTENT, f"an id with other bytes: file={file.file_id}")

    def _refuse_poisoned(self, files: Sequence[FileCommit]) -> None:
        """Some files are refused finally, with all other files of the same call."""
        for file in files:
            if file.file_id not in self._poison:
                self._poison[file.file_id] = self._world.faults.strikes(Fault.POISONED)
        if any(self._poison[file.file_id] for file in files):
            for file in files:
                self.expelled.update(self._batches_of(file) if self._poison[file.file_id] else ())
            raise InvalidError(f"simulated: poisoned file: files={len(files)}")

    def renew(self, named_life: int, node_id: int, broker_epoch: int) -> int:
        """Unfence the agent under its epoch if that is still registered, else under a new, higher one."""
        self.assert_life(named_life)
        if self._registered.get(node_id) != broker_epoch:
            self._epochs += 1
            self._registered[node_id] = self._epochs
        self.model.register_agent(node_id, self._registered[node_id])
        self.metadata.show_agent(node_id, self._registered[node_id], fenced=False)
        return self._registered[node_id]

    def fence(self, node_id: int, *, unregister: bool) -> None:
        """Its lease ran out, and perhaps its registration is gone as well."""
        self.model.fence_agent(node_id)
        if node_id in self._registered:
            self.metadata.show_agent(node_id, self._registered[node_id], fenced=True)
        if unregister:
            self._registered.pop(node_id, None)

    def move_log_start(self, place: Place, offset: int) -> None:
        """Do what DeleteRecords does."""
        for extent in self.model.partitions[place.key].extents:
            if extent.last_offset < offset and not place.topic.is_compacted:
                self.removed[place] += read_extent(self._world, place, extent, self._world.problems)
        self.model.move_log_start(place.key, offset)
        self.log_starts[place.key].becomes(self._world.loop.time(), offset)
        self._world.keyed.changed([place.key])

    def swap(self, merged: Merged) -> None:
        """Let the merged file replace what still exists; the journal and the batches below the log start follow."""
        outcomes, extents = self.model.decide_swaps(merged.file_id, merged.swaps)
        self.model.announce_swaps(extents)
        self._world.note("swapped", str(merged.file_id), outcomes)
        self.follow(extents, merged.places)

    def follow(self, extents: Sequence[Extent], places: Mapping[tuple[int, int], tuple[int, int]]) -> None:
        """Extents took over; `places`: (partition key, offset) of each record -> position and size of its batch."""
        self._world.keyed.changed([extent.partition_key for extent in extents])
        for extent in extents:
            place = self.metadata.place(extent.partition_key)
            self.removed[place] = [e for e in self.removed[place] if e.base_offset < extent.base_offset]
            for committed in self.journal:
                is_covered = extent.base_offset <= committed.base_offset <= extent.last_offset
                if (committed.key, committed.outcome) == (place.key, BatchOutcome.APPENDED) and is_covered:
                    committed.file_id = extent.source
                    committed.position, committed.length = places[place.key, committed.base_offset]
                    self.stripped[place.key, committed.base_offset] = committed.identity

    def _batches_of(self, file: FileCommit) -> Iterator[Batch]:
        body = file.body or self._world.bucket.ever_put.get(file.file_id, b"")
        for staged in file.batches:
            for member in self._world.messages.open(body[staged.position : staged.position + staged.length]):
                yield member.batch

    def _write_down(self, file: FileCommit, answer: FileAnswer, node_id: int) -> None:
        now = self._world.loop.time()
        body = self.bytes_of(file.file_id)
        if body is None or len(body) != file.size:
            held = "nothing" if body is None else f"{len(body)} bytes"
            self._world.report(Kind.UNSTORED, f"file={file.file_id} size={file.size} its place holds {held}")
            return
        for staged, (outcome, base_offset, *_) in zip(file.batches, answer.batches, strict=True):
            data = body[staged.position : staged.position + staged.length]
            if self._world.keyed.holds(staged.partition_key):
                self._world.keyed.committed(staged.partition_key, outcome, base_offset, data)
                self._see_high_watermark(staged.partition_key, now)
                continue
            members = self._world.messages.open(data)
            if not members:
                self._world.report(
                    Kind.CORRUPT, f"file={file.file_id} position={staged.position}: no producer sent this"
                )
            where = (file.file_id, staged.partition_key, staged.position, staged.length)
            identity = identity_of(read_header(body, staged.position))
            partition = self.model.partitions.get(staged.partition_key)
            epoch = -1 if partition is None else partition.leader_epoch
            self.journal += [
                Committed(
                    now, *where, batch, outcome, base_offset + before if base_offset >= 0 else -1, identity, epoch,
                    next(self._serials), node_id,
                )
                for batch, before in members
            ]  # fmt: skip
            self._see_high_watermark(staged.partition_key, now)

    def _see_high_watermark(self, key: int, now: float) -> None:
        partition = self.model.partitions.get(key)
        if partition is not None:
            self.high_watermarks[key].becomes(now, partition.high_watermark)
