"""Look at one partition: can every extent be read, what is wrong with those that cannot, and is a sound copy there.

    recorded   damage that agents, merges and cleaning met: it is read again, so what was restored is sound here
    looked at  of every extent the first header and the last byte: finds objects that are gone, refused or too short
    deep       all bytes of every extent

Place: `headrace partitions check`; mend.py finds the sound copies, as `headrace damage repair` does.
Invariant: reads only. A store that does not answer is an error (UnavailableError), not a finding: nothing is known of
the partition then. Memory is one page of extents; at most `extents_max` extents are looked at, and the result says up
to which offset.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from headrace.compactor.mending.mend import Mending
from headrace.metastore.api.compaction import ListedDamage
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import ALL_BYTES, DataExtent, ExtentQuery, PartitionExtents, is_in_file, run_of
from headrace.metastore.api.reports import PartitionName
from headrace.storage.errors import BadTransferError, CorruptError, InvalidError, NotFoundError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange, ObjectStore
from headrace.storage.records.header import HEADER_BYTES, read_header
from headrace.storage.segment.damage_reads import examine

PARALLEL = 16


class ProblemKind(enum.StrEnum):
    """What is wrong with an extent: each has another remedy."""

    ALTERED = "altered"
    """The object has other bytes than were stored, or fewer."""
    MISSING = "missing"
    """The object is gone."""
    REFUSED = "refused"
    """The store refuses to read the object: rights, a policy, a key of encryption. The bytes may be sound."""
    UNSTEADY = "unsteady"
    """Reads of the same bytes differ: the store, or what is on the way, alters them. The object may be sound."""


class Problem(NamedTuple):
    """An extent that cannot be read, or offsets of it."""

    kind: ProblemKind
    file_id: uuid.UUID
    position: int
    length: int
    first_offset: int
    last_offset: int
    why: str
    found_ms: int | None
    """The time at which it was recorded first, on the database's clock; None: this look found it."""
    copy: str | None
    """The place of sound batches; None: nowhere. Not searched (also None) unless the bytes are altered or gone."""


class PartitionCheck(NamedTuple):
    """What was found."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    extents: int
    """Extents that were looked at."""
    checked_to: int
    """They end before this offset; the high watermark if all were looked at."""
    problems: list[Problem]


OnProgress = Callable[[int, int], None]
"""(offsets done, total)."""


class PartitionChecker:
    """Looks at partitions of one cluster."""

    def __init__(
        self,
        api: Metastore,
        store: ObjectStore,
        mending: Mending,
        sleep: Callable[[float], Awaitable[None]],
        *,
        deep: bool,
        extents_max: int,
    ) -> None:
        self._api, self._store, self._mending, self._sleep = api, store, mending, sleep
        self._deep, self._extents_max = deep, extents_max
        self._places = asyncio.Semaphore(PARALLEL)

    async def check(
        self, name: PartitionName, key: int, recorded: Sequence[ListedDamage], from_offset: int, on: OnProgress
    ) -> PartitionCheck:
        """Look at the extents from an offset on. NotFoundError for a partition that is gone; UnavailableError if the
        metastore or the store does not answer.
        """
        known = {(one.extent.source, one.extent.position): one for one in recorded}
        answer = await self._page(key, max(0, from_offset))
        begin = offset = max(from_offset, answer.log_start_offset)
        end, looked = answer.high_watermark, 0
        problems: list[Problem] = []
        while answer.extents and offset < end and looked < self._extents_max:
            extents = [one for one in answer.extents if is_in_file(one)][: self._extents_max - looked]
            looked += len(extents)
            found = await asyncio.gather(*(self._look(name, one, known) for one in extents))
            problems += [problem for some in found for problem in some]
            last = extents[-1] if extents and looked >= self._extents_max else answer.extents[-1]
            offset = last.last_offset + 1
            on(offset - begin, end - begin)
            answer = await self._page(key, offset)
        visible = [one for one in problems if one.last_offset >= answer.log_start_offset]
        return PartitionCheck(
            answer.log_start_offset,
            answer.high_watermark,
            answer.last_stable_offset,
            extents=looked,
            checked_to=offset if looked >= self._extents_max else max(offset, end),
            problems=sorted(visible, key=lambda one: one.first_offset),
        )

    async def _page(self, key: int, offset: int) -> PartitionExtents:
        (answer,) = await self._api.index.find_extents([ExtentQuery(key, offset, ALL_BYTES)])
        if not answer.known:
            raise NotFoundError(f"the partition was deleted meanwhile: partition_key={key}")
        return answer

    async def _look(
        self, name: PartitionName, extent: DataExtent, known: dict[tuple[uuid.UUID, int], ListedDamage]
    ) -> list[Problem]:
        recorded = known.get((extent.file_id, extent.position))
        found_ms = None if recorded is None else recorded.found_ms
        async with self._places:
            try:
                if await self._is_sound(extent, all_bytes=self._deep or recorded is not None):
                    return []
            except (BadTransferError, InvalidError) as error:
                if not isinstance(error, NotFoundError):
                    kind = ProblemKind.UNSTEADY if isinstance(error, BadTransferError) else ProblemKind.REFUSED
                    return [_problem(kind, extent, str(error), found_ms)]
            return await self._pieces(name, extent, found_ms)

    async def _is_sound(self, extent: DataExtent, *, all_bytes: bool) -> bool:
        """Return whether nothing wrong was seen; what the store raises, but for damage."""
        key, run = object_key(extent.file_id), run_of(extent)
        ends = (ByteRange(extent.position, HEADER_BYTES), ByteRange(extent.position + extent.length - 1, 1))
        try:
            head, _ = [await self._store.get(key, each) for each in ends]
            size = read_header(head, 0).size
            if all_bytes:
                return not (await examine(self._store, key, run, [], self._sleep)).damaged
        except CorruptError:
            return False
        return HEADER_BYTES <= size <= extent.length

    async def _pieces(self, name: PartitionName, extent: DataExtent, found_ms: int | None) -> list[Problem]:
        """Return the damaged offsets, with where a sound copy of them is; none if the extent is sound after all."""
        try:
            look = await self._mending.look(name, extent.partition_key, extent.base_offset)
        except BadTransferError as error:
            return [_problem(ProblemKind.UNSTEADY, extent, str(error), found_ms)]
        except CorruptError as error:  # the object is too short for a read of the extent
            return [_problem(ProblemKind.ALTERED, extent, str(error), found_ms)]
        kind = ProblemKind.ALTERED if look.examined.body else ProblemKind.MISSING
        return [
            Problem(
                kind,
                extent.file_id,
                one.piece.position,
                one.piece.length,
                first_offset=one.piece.base_offset,
                last_offset=one.piece.last_offset,
                why=one.piece.why,
                found_ms=found_ms,
                copy=one.source if one.batches else None,
            )
            for one in look.found
        ]


def _problem(kind: ProblemKind, extent: DataExtent, why: str, found_ms: int | None) -> Problem:
    """The whole extent."""
    place = (extent.file_id, extent.position, extent.length, extent.base_offset, extent.last_offset)
    return Problem(kind, *place, why, found_ms, None)
