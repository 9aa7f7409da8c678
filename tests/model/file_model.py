"""The reference model's files: which are live, condemned or deleting, and who may end them.

Place: what tests/metastore/interleavings.py compares the janitor's and the sweeper's SQL with.
Invariant: a file's live bytes are those of its extents, those of deleted partitions among them; it is dead
since the last of them went. Leases of jobs are judged elsewhere (tests/model/job_model.py).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.metastore.api.commit import FileAnswer, FileCommit, FileStatus
from headrace.metastore.api.compaction import Swap, SwapOutcome
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent, LogStartMove
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.file_id import born_ms
from tests.model.metastore_model import ANSWERS_KEPT_MS, BORN_AHEAD_MS, ModelMetastore

SETTLED_MS = 75 * 60_000
ENDING = (FileState.CONDEMNED, FileState.DELETING)


class ShiftedClock(SystemClock):
    """The machine's clock, and `shift_ms` more."""

    shift_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.shift_ms


@dataclass
class ModelFile:
    """One row. `dead_ms` is None while an extent is in it; `segments` counts the references of keys."""

    state: FileState
    named_ms: int
    dead_ms: int | None
    segments: int = 0


class FileView(NamedTuple):
    """What an audit says of a file, but for times and sizes."""

    file_id: uuid.UUID
    state: FileState
    live_bytes: int
    is_dead: bool


class ModelWithFiles(ModelMetastore):
    """The model, and the ends of its files."""

    def __init__(self, clock: Clock, *, shards: int) -> None:
        super().__init__(clock, shards=shards)
        self.files: dict[uuid.UUID, ModelFile] = {}
        self.purges: set[int] = set()
        """Deleted partitions with rows that are still there."""

    def view(self) -> list[FileView]:
        """All files, in order of their ids."""
        live = Counter[uuid.UUID]()
        for extent in self._all_extents():
            live[extent.source] += extent.length
        return [
            FileView(file_id, file.state, live[file_id], file.dead_ms is not None)
            for file_id, file in sorted(self.files.items())
        ]

    # -- what others do to files

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        """See metastore.api.commit.CommitApi."""
        known = set(self.answers)
        answers = await super().commit_files(node_id, broker_epoch, files)
        for answer in answers:
            if answer.status is FileStatus.COMMITTED and answer.file_id not in known:
                self.files[answer.file_id] = self._new(FileState.LIVE)
        self._settle()
        return answers

    def decide_swaps(
        self, file_id: uuid.UUID, swaps: Sequence[Swap], closed: Collection[Swap] = (), token: JobToken | None = None
    ) -> tuple[list[SwapOutcome] | None, list[Extent]]:
        """See ModelCompaction: no outcomes when the id is not to be had."""
        if file_id not in self.files and self._birth_accepted(file_id):
            self.files[file_id] = self._new(FileState.LIVE)
        if file_id not in self.files or self.files[file_id].state is not FileState.LIVE:
            return None, []
        decided = super().decide_swaps(file_id, swaps, closed, token)
        self._settle()
        return decided

    def decide_log_starts(
        self, targets: Sequence[LogStartTarget], *, max_extents: int
    ) -> tuple[list[LogStartAnswer], list[LogStartMove]]:
        """See ModelRetention."""
        decided = super().decide_log_starts(targets, max_extents=max_extents)
        self._settle()
        return decided

    def delete_topic(self, topic_number: int) -> None:
        """See ModelMetastore: extents and producers are left to `purge`."""
        before = set(self.partitions)
        super().delete_topic(topic_number)
        self.purges |= before - self.partitions.keys()

    def purge(self, limit: int) -> None:
        """Purge up to `limit` extents of one deleted partition, which must have fewer producers than that."""
        if not self.purges:
            return
        key = min(self.purges)
        extents = sorted(self.leftovers[key], key=lambda extent: extent.last_offset)
        if len(extents) < limit:
            self.purges.remove(key)
        self.leftovers[key] = extents[limit:]
        self._settle()

    # -- FileApi

    def condemn(self, file_id: uuid.UUID) -> bool:
        """See ModelMetastore; whether the object may be deleted now."""
        if file_id not in self.files:
            self.files[file_id] = self._new(FileState.CONDEMNED)
            self.condemned.add(file_id)
        return self.files[file_id].state is FileState.CONDEMNED

    def condemn_files(self, file_ids: Sequence[uuid.UUID], *, min_age_ms: int) -> list[uuid.UUID]:
        """See metastore.api.files.FileApi; in order of the ids."""
        for file_id in file_ids:
            if file_id not in self.files and born_ms(file_id) < self.clock.wall_ms() - min_age_ms:
                self.files[file_id] = self._new(FileState.CONDEMNED)
                self.condemned.add(file_id)
        return sorted(f for f in file_ids if f in self.files and self.files[f].state is FileState.CONDEMNED)

    def take_dead_files(self, *, pinned_ms: int) -> list[tuple[uuid.UUID, bool]]:
        """(file id, is condemned) in order of the ids; none dead only since `pinned_ms` (a reader began)."""
        settled_ms = self.clock.wall_ms() - SETTLED_MS
        taken = []
        for file_id, file in sorted(self.files.items()):
            if file.named_ms < settled_ms:
                is_dead = file.dead_ms is not None and file.dead_ms < pinned_ms and not file.segments
                if file.state is FileState.LIVE and is_dead:
                    file.state = FileState.DELETING
                if file.state in ENDING:
                    taken.append((file_id, file.state is FileState.CONDEMNED))
        return taken

    def drop_files(self, file_ids: Sequence[uuid.UUID]) -> int:
        """See metastore.api.files.FileApi."""
        settled_ms = self.clock.wall_ms() - SETTLED_MS
        gone = [
            file_id
            for file_id in file_ids
            if (file := self.files.get(file_id)) and file.state in ENDING and file.named_ms < settled_ms
        ]
        for file_id in gone:
            del self.files[file_id]
            self.condemned.discard(file_id)
        return len(gone)

    # -- inside

    def _new(self, state: FileState) -> ModelFile:
        now_ms = self.clock.wall_ms()
        return ModelFile(state, now_ms, now_ms)

    def _birth_accepted(self, file_id: uuid.UUID) -> bool:
        return -BORN_AHEAD_MS <= self.clock.wall_ms() - born_ms(file_id) <= ANSWERS_KEPT_MS

    def _all_extents(self) -> list[Extent]:
        live = [extent for partition in self.partitions.values() for extent in partition.extents]
        return live + [extent for extents in self.leftovers.values() for extent in extents]

    def inline_extents(self) -> list[Extent]:
        """See ModelInline; deleted partitions are purged later."""
        return self._all_extents()

    def _settle(self) -> None:
        """Files that lost their last extent are dead from now on; those that got one are not."""
        named = {extent.file_id for extent in self._all_extents()}
        for file_id, file in self.files.items():
            if file_id in named:
                file.dead_ms = None
            elif file.dead_ms is None:
                file.dead_ms = self.clock.wall_ms()
        self.settle_inline()
