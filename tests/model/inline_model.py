"""The reference model of inline files: InlineApi in plain Python, and what a commit stores of them.

Place: the part of tests/model/metastore_model.py that InlineStore, agents and merges talk to; what
metastore/postgres/inline/*.sql does. Sizes are those of the bytes alone.
Invariant: a file is dead since the last extent in it went, and never live again. Bytes go with their slot only. A slot
that got a file after it was emptied is drained again. Records that were removed are not kept: here nothing restores
them.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.compaction import Swap, SwapOutcome
from headrace.metastore.api.inline import NO_SLOT, InlineRange, InlineSlotState, InlineState
from headrace.metastore.api.jobs import JobState, JobToken
from headrace.metastore.api.read import Extent, LogStartMove
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import born_ms, is_inline
from tests.inline_slots import inline_slot
from tests.model.compaction_model import ModelCompaction
from tests.model.job_model import ModelJobs
from tests.model.retention_model import ModelRetention

SLOTS, GRACE_MS, LOOK_MS, PLANS_MS = 16, 10_000, 5_000, 120_000
"""The numbers of Postgres. The last one: how long the plan of a merge keeps slots."""
ASKED_MS = 3_600_000
"""A wish is seen for so long."""
EMPTY, FILLING, DRAINING = InlineSlotState.EMPTY, InlineSlotState.FILLING, InlineSlotState.DRAINING


@dataclass
class ModelSlot:
    """`since_ms`: when it was emptied, or began to fill. `waits_since_ms` of one that drains: the time in the id of its
    oldest live file, as of the last look. `look_ms`: when to look again.
    """

    state: InlineSlotState
    since_ms: int
    waits_since_ms: int | None = None
    look_ms: float = -math.inf


class ModelInline(ModelRetention, ModelCompaction):
    """Knows the bytes of inline files. `jobs`: leases that may be reading them."""

    answers: dict[uuid.UUID, FileAnswer]
    condemned: set[uuid.UUID]
    jobs: ModelJobs

    def __init__(self) -> None:
        self.inline_files: dict[uuid.UUID, bytes] = {}
        """The rows; some are of files with a refused commit."""
        self.inline_dead_ms: dict[uuid.UUID, int] = {}
        """Of committed files that have a row and nothing live: since when."""
        self.inline_asked_ms: int | None = None
        self.set_inline_terms()

    def set_inline_terms(self, *, slots: int = SLOTS, grace_ms: int = GRACE_MS, look_ms: int = LOOK_MS) -> None:
        """Fewer slots, and other times for which a slot keeps dead files, and is not looked at. All are empty then."""
        self.inline_grace_ms, self.inline_look_ms = grace_ms, look_ms
        self.inline_slots = [ModelSlot(EMPTY, -1) for _ in range(slots)]

    # -- InlineApi

    async def read_inline(self, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        """See metastore.api.inline.InlineApi."""
        return [self._read(each) for each in ranges]

    def _read(self, wanted: InlineRange) -> bytes | None:
        body = self.inline_files.get(wanted.file_id)
        if body is None or not wanted.length:
            return body
        return body[wanted.start : wanted.start + wanted.length]

    async def inline_state(self) -> InlineState:
        """See metastore.api.inline.InlineApi."""
        now_ms, asked_ms = self.clock.wall_ms(), self.inline_asked_ms
        filling = self._filling()
        return InlineState(
            slot=NO_SLOT if filling is None else filling,
            free_slots=len(self._in_state(EMPTY)),
            held_bytes=sum(map(len, self.inline_files.values())),
            oldest_ms=now_ms - min(self._births(), default=now_ms),
            archive_fails=False,
            retained_wal_bytes=0,
            asked_ms=-1 if asked_ms is None or asked_ms <= now_ms - ASKED_MS else now_ms - asked_ms,
        )

    async def inline_bytes(self, file_ids: Sequence[uuid.UUID]) -> list[uuid.UUID]:
        """See metastore.api.inline.InlineApi."""
        return [file_id for file_id in file_ids if file_id in self.inline_files]

    async def rotate_inline_slots(self, slot_bytes: int, slot_ms: int) -> int:
        """See metastore.api.inline.InlineApi."""
        self._drain_late_files()
        self._turn(slot_bytes, slot_ms)
        now_ms = self.clock.wall_ms()
        for number in self._in_state(DRAINING):
            slot = self.inline_slots[number]
            if slot.look_ms > now_ms:
                continue
            live = self._first_live(number)
            slot.waits_since_ms = None if live is None else born_ms(live)
            if live is None and not self._is_kept(number):
                self._empty(number)
                return 1
            if live is None:
                slot.look_ms = now_ms + self.inline_look_ms
        return 0

    async def ask_inline_move(self) -> None:
        """See metastore.api.inline.InlineApi."""
        self.inline_asked_ms = self.clock.wall_ms()

    # -- what the commit and others do

    def store_inline(self, files: Sequence[FileCommit]) -> None:
        """Store the bytes of files that are neither committed nor condemned.

        InvalidError if an id says another place.
        """
        for file in files:
            is_wrong = is_inline(file.file_id) != (file.body is not None)
            if is_wrong or (file.body is not None and len(file.body) != file.size):
                raise InvalidError(f"commit refused: the id says where the bytes are: file_id={file.file_id}")
        for file in files:
            is_known = file.file_id in self.answers or file.file_id in self.condemned
            if file.body is not None and not is_known:
                self.inline_files.setdefault(file.file_id, bytes(file.body))

    def settle_inline(self) -> None:
        """Note which files have nothing live any more."""
        if self.inline_files:
            named = {extent.source for extent in self.inline_extents()}
            for file_id in self.inline_files:
                if file_id in named:
                    self.inline_dead_ms.pop(file_id, None)
                elif file_id in self.answers:
                    self.inline_dead_ms.setdefault(file_id, self.clock.wall_ms())

    def inline_extents(self) -> Iterable[Extent]:
        """Return all that may name an inline file. Deleted partitions are purged at once."""
        return [extent for partition in self.partitions.values() for extent in partition.extents]

    def decide_swaps(
        self, file_id: uuid.UUID, swaps: Sequence[Swap], closed: Collection[Swap] = (), token: JobToken | None = None
    ) -> tuple[list[SwapOutcome] | None, list[Extent]]:
        """See ModelCompaction."""
        decided = super().decide_swaps(file_id, swaps, closed, token)
        self.settle_inline()
        return decided

    def decide_log_starts(
        self, targets: Sequence[LogStartTarget], *, max_extents: int
    ) -> tuple[list[LogStartAnswer], list[LogStartMove]]:
        """See ModelRetention."""
        decided = super().decide_log_starts(targets, max_extents=max_extents)
        self.settle_inline()
        return decided

    # -- inside

    def _in_state(self, state: InlineSlotState) -> list[int]:
        """The slots in that state, the longest first."""
        found = [(slot.since_ms, number) for number, slot in enumerate(self.inline_slots) if slot.state is state]
        return [number for _, number in sorted(found)]

    def _filling(self) -> int | None:
        return next(iter(self._in_state(FILLING)), None)

    def _files_of(self, slot: int) -> list[uuid.UUID]:
        return [file_id for file_id in self.inline_files if inline_slot(file_id) == slot]

    def _births(self) -> list[int]:
        """Return since when files wait, slot by slot."""
        waits = [slot.waits_since_ms for slot in self.inline_slots if slot.state is DRAINING]
        others = [f for f in self.inline_files if self.inline_slots[inline_slot(f)].state is not DRAINING]
        return [each for each in waits if each is not None] + [born_ms(file_id) for file_id in others]

    def _drain_late_files(self) -> None:
        """A commit that is repeated late stores its file in the slot that its id names, which may be empty by then."""
        for slot in self._in_state(EMPTY):
            if self._files_of(slot):
                self.inline_slots[slot].state = DRAINING

    def _turn(self, slot_bytes: int, slot_ms: int) -> None:
        now_ms, filling, empty = self.clock.wall_ms(), self._filling(), self._in_state(EMPTY)
        held = [] if filling is None else self._files_of(filling)
        is_full = sum(len(self.inline_files[file_id]) for file_id in held) >= slot_bytes
        is_old = bool(held) and born_ms(min(held)) <= now_ms - slot_ms
        if filling is not None and not is_full and not is_old:
            return
        if filling is not None and (empty or is_full):
            self.inline_slots[filling].state = DRAINING
        if empty:
            self.inline_slots[empty[0]] = ModelSlot(FILLING, now_ms)

    def _first_live(self, slot: int) -> uuid.UUID | None:
        """The oldest file with something live. The row of a refused commit is never live."""
        named = {extent.source for extent in self.inline_extents()}
        return min((file_id for file_id in self._files_of(slot) if file_id in named), default=None)

    def _is_kept(self, slot: int) -> bool:
        """Return whether a file of it is dead only since a moment ago, or since a merge planned to read it."""
        horizon_ms = min(self.clock.wall_ms(), self.inline_horizon()) - self.inline_grace_ms
        return any(self.inline_dead_ms.get(file_id, -math.inf) >= horizon_ms for file_id in self._files_of(slot))

    def inline_horizon(self) -> float:
        """Return when the oldest merge was planned that may be reading inline files."""
        now_ms = self.clock.wall_ms()
        leased = [
            job.leased_ms
            for job in self.jobs.jobs
            if job.state is JobState.LEASED and job.kind == "compact" and job.due_ms >= now_ms
        ]
        return min((each for each in leased if each is not None and each > now_ms - PLANS_MS), default=math.inf)

    def _empty(self, slot: int) -> None:
        for file_id in self._files_of(slot):
            del self.inline_files[file_id]
            self.inline_dead_ms.pop(file_id, None)
        self.inline_slots[slot] = ModelSlot(EMPTY, self.clock.wall_ms())
