"""Compares the bucket with the metastore: does the bucket hold exactly what the metastore says? Reads only.

Place: `headrace audit`; can run while the cluster runs.
Invariant: each file is checked with one snapshot of its row and extents against the footer of its object, which
never changes; a missing object is a violation only if its row still exists when checked again, an unreferenced object
only if it still exists when checked again.
What is checked: the bytes of every extent are inside the footer's range of that partition, with the same number of
records; the live bytes of files add up; every object has a row or is recent. With --deep also every batch's checksum
and framing: what is wrong is read again, so that no transfer counts as damage, and only what extents name counts.
Memory is limited to one page of files.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.compactor.put_back import read_whole
from headrace.compactor.sweeper import MIN_AGE_MS, pages
from headrace.jobs.kinds import SWEEP_ORPHANS_MS
from headrace.metastore.api.files import FileState
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import Extent, run_of
from headrace.metastore.api.reports import AuditedFile, PartitionName
from headrace.storage.errors import BadTransferError, CorruptError, DamagedError, NotFoundError
from headrace.storage.file_id import born_ms, object_key, term_ms
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.damage import BatchRun, damaged, pieces
from headrace.storage.segment.format import Footer, PartitionEntry
from headrace.storage.segment.reader import read_footer, walk_batches
from headrace.storage.segment.rereading import VerifiedReads

PAGE_FILES = 500
PARALLEL = 16
KEPT_VIOLATIONS = 1_000


class Kind(enum.StrEnum):
    """The kinds of violations."""

    MISSING = "missing"
    """Extents refer to the file, but the bucket does not have it."""
    UNSOUND = "unsound"
    """Its footer, or with --deep its batches, cannot be read."""
    MISMATCH = "mismatch"
    """An extent does not match the footer, or with --deep the batches."""
    MISCOUNTED = "miscounted"
    """Its live bytes are not the sum of the bytes of its extents."""
    DAMAGED = "damaged"
    """Its bytes at some offsets are not those that were stored, which --deep finds: `headrace damage` goes past it."""
    UNNAMED = "unnamed"
    """It has no row and is not recent any more."""


class Violation(NamedTuple):
    kind: Kind
    file_id: uuid.UUID
    detail: str


class DamagedOffsets(NamedTuple):
    """Damage in a live extent; `name` is None for a deleted partition."""

    name: PartitionName | None
    file_id: uuid.UUID
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Audit:
    """The findings. Sizes in bytes."""

    files: int = 0
    """Files with extents."""
    extents: int = 0
    live_bytes: int = 0
    dead_bytes: int = 0
    """Batches in those files that no extent covers: compaction reclaims them. Unknown for damaged files."""
    overhead_bytes: int = 0
    """Bytes of those files that are not batches: headers, indexes, footers."""
    dead_files: int = 0
    """Dead files that wait for file.delete.delay.ms or for the janitor."""
    dead_file_bytes: int = 0
    condemned: int = 0
    reserved: int = 0
    """Ids of uploads under way, or that the cleanup of segments will end."""
    objects: int = 0
    object_bytes: int = 0
    unnamed: int = 0
    """Recent ones too: the sweeper reclaims them when they are old enough."""
    unnamed_bytes: int = 0
    foreign: int = 0
    """Keys below segments/ that are not those of segment files."""
    violation_count: int = 0
    violations: list[Violation] = field(default_factory=list)
    """The first violations."""
    damaged: list[DamagedOffsets] = field(default_factory=list)
    """The places of the violations of kind DAMAGED, as far as these are listed."""

    @property
    def amplification(self) -> float:
        """Bytes stored per live byte."""
        return self.object_bytes / self.live_bytes if self.live_bytes else 0.0

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that compaction, janitor and sweeper would free."""
        return self.dead_bytes + self.dead_file_bytes + self.unnamed_bytes

    def report(self, kind: Kind, file_id: uuid.UUID, detail: str) -> None:
        """Count a violation."""
        self.violation_count += 1
        if len(self.violations) < KEPT_VIOLATIONS:
            self.violations.append(Violation(kind, file_id, detail))


OnProgress = Callable[[str, int, int], None]
"""(what is being done, number done, total; 0: unknown)."""


def young_ms(delete_delay_ms: int) -> int:
    """The age up to which an object may have no row: after it the sweeper should have deleted the object."""
    return max(MIN_AGE_MS, delete_delay_ms) + 2 * SWEEP_ORPHANS_MS


async def audit(
    api: Metastore, reads: VerifiedReads, *, deep: bool, on_progress: OnProgress, delete_delay_ms: int = 0
) -> Audit:
    """Check metastore and bucket. Raises what either raises if it is not available.

    `delete_delay_ms`: file.delete.delay.ms of the processes that sweep.
    """
    found = Audit()
    totals = await api.reports.file_totals()
    await _check_files(_FileCheck(api, reads, found, deep=deep), totals.total, on_progress)
    await _check_objects(api, reads.store, found, young_ms(delete_delay_ms), on_progress)
    return found


async def _check_files(check: _FileCheck, total: int, on_progress: OnProgress) -> None:
    done, after = 0, uuid.UUID(int=0)
    while page := await check.api.reports.audit_files(after, PAGE_FILES):
        keys = {extent.partition_key for file in page for extent in file.extents}
        names = await check.api.reports.partition_names(sorted(keys)) if keys else {}
        gate = asyncio.Semaphore(PARALLEL)
        await asyncio.gather(*(check.check(file, names, gate) for file in page))
        done, after = done + len(page), page[-1].file_id
        on_progress("files", done, max(done, total))


async def _check_objects(
    api: Metastore, store: ObjectStore, found: Audit, young_ms: int, on_progress: OnProgress
) -> None:
    async for page in pages(store):
        found.objects += len(page.files)
        found.object_bytes += sum(info.size for info in page.files.values())
        found.foreign += len(page.foreign)
        unnamed = await api.files.unnamed_files(list(page.files)) if page.files else []
        now_ms = (await api.reports.file_totals()).wall_ms if unnamed else 0
        for file_id in unnamed:
            info, age_ms = page.files[file_id], now_ms - born_ms(file_id) - term_ms(file_id)
            found.unnamed += 1
            found.unnamed_bytes += info.size
            if age_ms > young_ms and await _is_there(store, file_id):
                found.report(Kind.UNNAMED, file_id, f"it has no row: size={info.size} age_ms={age_ms}")
        on_progress("objects", found.objects, 0)


async def _is_there(store: ObjectStore, file_id: uuid.UUID) -> bool:
    """Called after its row was not found: janitor and sweeper delete the object first, then the row."""
    try:
        await store.head(object_key(file_id))
    except NotFoundError:
        return False
    return True


class _FileCheck:
    """Checks files, several of them in parallel."""

    def __init__(self, api: Metastore, reads: VerifiedReads, found: Audit, *, deep: bool) -> None:
        self.api = api
        self._reads = reads
        self._found = found
        self._deep = deep

    async def check(self, file: AuditedFile, names: Mapping[int, PartitionName], gate: asyncio.Semaphore) -> None:
        found = self._found
        if file.state is FileState.STAGED and not file.extents:
            async with gate:
                await self._check_staged(file)
            return
        if file.state is FileState.RESERVED and not file.extents:
            found.reserved += 1
            return
        live_bytes = sum(extent.length for extent in file.extents)
        if file.state is FileState.CONDEMNED:
            found.condemned += 1
        elif not file.extents:
            found.dead_files += 1
            found.dead_file_bytes += file.size
        else:
            found.files += 1
            found.extents += len(file.extents)
            found.live_bytes += live_bytes
        if file.state is not FileState.LIVE and file.extents:
            found.report(Kind.MISMATCH, file.file_id, f"extents refer to a file that is {file.state.name.lower()}")
        if file.live_bytes != live_bytes or (file.dead_ms is None) != bool(live_bytes):
            found.report(
                Kind.MISCOUNTED,
                file.file_id,
                f"counted={file.live_bytes} extents={live_bytes} dead={file.dead_ms is not None}",
            )
        if file.extents:
            async with gate:
                await self._check_object(file, names)

    async def _check_staged(self, file: AuditedFile) -> None:
        """Check a staged file of a decided bulk write: no extent names it yet, and its object must be there when its
        chunk is committed.
        """
        try:
            size = (await self._reads.store.head(object_key(file.file_id))).size
        except NotFoundError:
            self._found.report(Kind.MISSING, file.file_id, f"it is staged: size={file.size}")
            return
        if size != file.size:
            self._found.report(Kind.UNSOUND, file.file_id, f"unexpected size: expected={file.size} found={size}")

    async def _check_object(self, file: AuditedFile, names: Mapping[int, PartitionName]) -> None:
        key = object_key(file.file_id)
        try:
            if self._deep:
                body, footer = await self._whole(file, names)
                if footer.object_size != file.size:
                    raise CorruptError(f"unexpected size: expected={file.size} found={footer.object_size}")
            else:
                body, footer = None, await self._reads.footer(key, file.size)
        except NotFoundError:
            if await self._still_lives(file):
                self._found.report(Kind.MISSING, file.file_id, f"extents={len(file.extents)} bytes={file.live_bytes}")
            return
        except (CorruptError, BadTransferError) as error:
            self._found.report(Kind.UNSOUND, file.file_id, str(error))
            return
        body_bytes = sum(entry.length for entry in footer.partitions)
        self._found.dead_bytes += body_bytes - sum(extent.length for extent in file.extents)
        self._found.overhead_bytes += file.size - body_bytes
        for problem in problems(file.extents, names, footer):
            self._found.report(Kind.MISMATCH, file.file_id, problem)
        if body is not None and not any(place.file_id == file.file_id for place in self._found.damaged):
            for problem in deep_problems(file.extents, body):
                self._found.report(Kind.MISMATCH, file.file_id, problem)

    async def _whole(self, file: AuditedFile, names: Mapping[int, PartitionName]) -> tuple[memoryview, Footer]:
        """The file's bytes and footer; reports damaged batches in its live extents. CorruptError for other damage."""
        try:
            return await read_whole(self._reads, file.file_id)
        except DamagedError:
            body = memoryview(await self._reads.store.get(object_key(file.file_id)))
            footer = read_footer(body, len(body))
            if not _has_damaged_batches(body, footer):
                raise
        for extent in file.extents:
            for piece in damaged(pieces(body[extent.position :][: extent.length], run_of(extent))):
                offsets = f"offsets={piece.base_offset}-{piece.last_offset}"
                self._found.report(Kind.DAMAGED, file.file_id, f"{piece.why}: {offsets} {_where(extent)}")
                if len(self._found.damaged) < KEPT_VIOLATIONS:
                    name = names.get(extent.partition_key)
                    place = DamagedOffsets(name, file.file_id, piece.base_offset, piece.last_offset)
                    self._found.damaged.append(place)
        return body, footer

    async def _still_lives(self, file: AuditedFile) -> bool:
        """Return whether extents refer to the file now: it may have been replaced and deleted meanwhile."""
        again = await self.api.reports.audit_files(uuid.UUID(int=file.file_id.int - 1), 1)
        return bool(again) and again[0].file_id == file.file_id and bool(again[0].extents)


def problems(extents: Sequence[Extent], names: Mapping[int, PartitionName], footer: Footer) -> list[str]:
    """Contradictions to the footer. Extents of deleted partitions are only checked for overlaps."""
    found = []
    entries = {(entry.topic_id, entry.partition_index): entry for entry in footer.partitions}
    end = 0
    for extent in sorted(extents, key=lambda extent: extent.position):
        if extent.position < end:
            found.append(f"extents overlap: {_where(extent)}")
        end = max(end, extent.position + extent.length)
        if (name := names.get(extent.partition_key)) is None:
            continue
        entry = entries.get(name)
        if entry is None:
            found.append(f"the footer has no such partition: {_where(extent)}")
        elif not _fits(extent, entry):
            found.append(f"the footer has other values: {_where(extent)} entry={entry._replace(index_entries=())}")
    return found


def _has_damaged_batches(body: memoryview, footer: Footer) -> bool:
    for entry in footer.partitions:
        run = BatchRun(entry.position, entry.length, 0, entry.record_count - 1)
        if damaged(pieces(body[entry.position : entry.position + entry.length], run)):
            return True
    return False


def deep_problems(extents: Sequence[Extent], body: memoryview) -> list[str]:
    """Extents that are not complete batches with the same number of records."""
    found = []
    for extent in extents:
        data = body[extent.position : extent.position + extent.length]
        try:
            records = sum(header.last_offset_delta + 1 for _, header in walk_batches(data))
        except CorruptError as error:
            found.append(f"{error}: {_where(extent)}")
            continue
        if records != extent.last_offset - extent.base_offset + 1:
            found.append(f"batches have other offsets: records={records} {_where(extent)}")
    return found


def _fits(extent: Extent, entry: PartitionEntry) -> bool:
    records = extent.last_offset - extent.base_offset + 1
    is_whole = extent.length == entry.length
    return (
        entry.position <= extent.position
        and extent.position + extent.length <= entry.position + entry.length
        and (records == entry.record_count if is_whole else 0 < records < entry.record_count)
        and extent.max_timestamp <= entry.max_timestamp
    )


def _where(extent: Extent) -> str:
    return (
        f"partition_key={extent.partition_key} offsets={extent.base_offset}-{extent.last_offset}"
        f" position={extent.position} length={extent.length}"
    )
