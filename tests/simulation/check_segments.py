"""The judge of remote segments: after every call what always holds, and at the end that nothing is left under way.

Invariant: it trusts the records of both logs and the extents; of the model's decisions it takes none for granted.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

from headrace.metastore.api.segment_states import (
    Latest,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionKey,
    RemoteSegmentKey,
    partition_transition,
    segment_transition,
)
from headrace.metastore.api.segments import ReferenceState
from headrace.storage.errors import IllegalTransitionError
from headrace.storage.file_id import level_of
from tests.model.segment_end_model import ModelLifecycle
from tests.model.segment_rows import Recorded
from tests.simulation.problems import Kind

if TYPE_CHECKING:
    from tests.simulation.world import World

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class LifecycleJudge:
    """`segments` and `partitions`: what a reader of all records has."""

    def __init__(self, world: World, model: ModelLifecycle) -> None:
        self._world, self._model = world, model
        self.segments: dict[RemoteSegmentKey, Latest] = {}
        self.partitions: dict[RemotePartitionKey, RemotePartitionDeleteState] = {}
        self._seen = 0
        self._offsets = Counter[int]()
        self._audit_offsets = Counter[int]()
        self._deleted: set[uuid.UUID] = set()
        """Files with an object that the janitor deleted."""
        self._reported: set[str] = set()

    @property
    def is_wrong(self) -> bool:
        """Whether anything was reported."""
        return bool(self._reported)

    def deleted(self, file_id: uuid.UUID) -> None:
        """The janitor deletes its object now."""
        self._deleted.add(file_id)
        if any(e.file_id == file_id for p in self._model.partitions.values() for e in p.visible_extents):
            self._wrong(f"object deleted under a reader: file={file_id}")

    def look(self, after: str) -> None:
        """Check what holds after every call."""
        for record in self._model.logs.records[self._seen :]:
            self._read(record, after)
        self._seen = len(self._model.logs.records)
        self._check_extents(after)
        self._check_references(after)

    def rest(self) -> None:
        """Check what holds when nothing is under way: every key is readable, and the table is what its log compacts
        to.
        """
        model = self._model
        for key, row in sorted(model.segments.items()):
            if (row.state, row.live_extents > 0, row.tombstoned_ms) != (FINISHED, True, None):
                self._wrong(f"unfinished at the end: {key} {row.state.name} live={row.live_extents} {row.cause.name}")
        table = {key: Latest(row.state, row.segment_id) for key, row in model.segments.items()}
        if table != self.segments:
            self._wrong(f"the table is not the log: {sorted(map(str, table.keys() ^ self.segments.keys()))}")
        if model.markers or self.partitions:
            self._wrong(f"delete markers are left: {sorted(map(str, model.markers))}")
        for file_id in sorted(set(self._world.bucket.file_ids()) - model.files.keys()):
            self._world.sweeper.clean(file_id)  # arrived after its row went
        for file_id in self._world.bucket.file_ids():
            if not any(e.file_id == file_id for p in model.partitions.values() for e in p.extents):
                self._wrong(f"no extent, reference or lease has it: file={file_id} row={model.files.get(file_id)}")

    def _read(self, record: Recorded, after: str) -> None:
        """One record more."""
        part = record.metadata_partition
        places = (record.log_offset, self._offsets[part]), (record.audit_offset, self._audit_offsets[part])
        self._offsets[part] += 1
        self._audit_offsets[part] += record.state is not None
        if any(offset not in (None, expected) for offset, expected in places):
            self._wrong(f"offset: {record}")
        key, state = record.key, record.state
        try:
            if isinstance(key, RemotePartitionKey):
                self._read_marker(key, state)
            elif state is None:
                self._read_tombstone(key)
            else:
                assert isinstance(state, RemoteLogSegmentState)
                assert record.segment_id
                new = Latest(state, record.segment_id)
                segment_transition(key, self.segments.get(key), new)
                self.segments[key] = new
                self._check_record(key, state, record.file_id)
        except IllegalTransitionError as error:
            self._wrong(f"{after}: {error}")

    def _read_marker(
        self, key: RemotePartitionKey, state: RemoteLogSegmentState | RemotePartitionDeleteState | None
    ) -> None:
        if state is None:
            del self.partitions[key]
            return
        assert isinstance(state, RemotePartitionDeleteState)
        partition_transition(key, self.partitions.get(key), state)
        self.partitions[key] = state
        left = [k for k in self.segments if k.of_partition == key]
        if state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED and left:
            self._wrong(f"partition is deleted before its segments: {key} {left[0]}")

    def _read_tombstone(self, key: RemoteSegmentKey) -> None:
        above = [k for k, latest in self.segments.items() if k[:3] == key[:3] and latest.state is DELETE_FINISHED]
        if max((k.epoch for k in above), default=-1) < key.epoch:
            self._wrong(f"tombstone without a deletion: {key} {self.segments.get(key)}")
        self.segments.pop(key, None)

    def _check_record(self, key: RemoteSegmentKey, state: RemoteLogSegmentState, file_id: uuid.UUID | None) -> None:
        assert file_id
        if state is STARTED:
            for other, latest in self.segments.items():
                if other[:3] == key[:3] and other.epoch > key.epoch and latest.state < DELETE_STARTED:
                    self._wrong(f"a higher epoch is undercut: {key} by {other}")
        file = self._model.files.get(file_id)
        if state is DELETE_FINISHED and (file is None or file.segments <= 0) and file_id not in self._deleted:
            self._wrong(f"DELETE_FINISHED before its object is deleted: {key} file={file_id}")

    def _check_extents(self, after: str) -> None:
        """Check that what is readable in merged files has a key that says so."""
        counted = Counter[RemoteSegmentKey]()
        for partition_key, partition in self._model.partitions.items():
            for extent in partition.extents:
                if level_of(extent.source):
                    key = self._model.segment_of.get((partition_key, extent.last_offset, extent.source))
                    if key is None or (latest := self.segments.get(key)) is None or latest.state is not FINISHED:
                        self._wrong(f"{after}: readable without COPY_FINISHED: {extent} key={key}")
                    elif self._model.segments[key].file_id != extent.file_id:
                        self._wrong(f"{after}: readable under another file's key: {extent} key={key}")
                    else:
                        counted[key] += 1
        for key, row in self._model.segments.items():
            if row.partition_key in self._model.partitions and row.live_extents != counted[key]:
                self._wrong(f"{after}: live extents of {key}: {row.live_extents}, there are {counted[key]}")

    def _check_references(self, after: str) -> None:
        held = Counter(
            row.file_id
            for row in self._model.segments.values()
            if row.reference is ReferenceState.HELD and row.tombstoned_ms is None
        )
        for file_id, file in self._model.files.items():
            if file.segments != held[file_id]:
                self._wrong(f"{after}: references of file={file_id}: {file.segments}, there are {held[file_id]}")

    def _wrong(self, what: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._world.report(Kind.LIFECYCLE, what)
