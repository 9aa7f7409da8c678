"""Read the records that the owner of a share group gave a member, and say which of them could not be sent.

Place: after the owner's turn, on the read path of ordinary fetches: locate -> read -> assemble.
Invariant: what is said to be acquired is covered by the batches that are sent, up to its last offset: a client takes an
acquired offset without a record for a gap, and it would be lost. The rest is given back, and no record of an aborted
transaction is sent to a group that reads committed ones. Offsets without a record (holes.py) are done without the
client, also those that follow what was acquired. Records that the bucket has damaged are done, with an error, as
Kafka's client rejects a corrupt batch: the group continues behind them. Whole batches are sent: they may have other
members' records, which the client skips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from headrace.agent.fetch.deliver import Delivery, DeliveryOutcome, largest_first, largest_reply
from headrace.agent.fetch.files.assemble import Batches
from headrace.agent.fetch.files.damage import DamagedOffsetsError
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.lookup import Lookup, LookupStatus
from headrace.agent.fetch.reply_claim import ReplyClaim
from headrace.agent.fetch.share.holes import OffsetRange, find_holes, have_holes, headers
from headrace.agent.peers.share_turns import Returned
from headrace.metastore.api.read import AbortedRange, ExtentQuery
from headrace.protocol.errors import READ_DAMAGED, READ_FAILED

AcquiredRange = tuple[int, int, int]
"""First offset, last offset, number of the attempt."""


@dataclass(slots=True)
class ShareDelivery:
    """One partition's part of the answer."""

    error: int = ErrorCode.none
    records: list[bytes | memoryview] = field(default_factory=list)
    acquired: list[AcquiredRange] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)


class ShareReader:
    """Reads what members of share groups acquired, for one agent."""

    def __init__(
        self, locator: Locator, delivery: Delivery, catch_up: Callable[[], Awaitable[None]], max_bytes: int
    ) -> None:
        """`catch_up` returns once the index has everything that was committed before the call. `max_bytes` limits every
        response."""
        self._locator, self._delivery, self._catch_up, self._max_bytes = locator, delivery, catch_up, max_bytes

    async def read(
        self,
        acquired: Mapping[int, Sequence[AcquiredRange]],
        max_bytes: int,
        memory: ReplyClaim,
        *,
        committed: bool,
        needed_ends: Mapping[int, int] | None = None,
    ) -> dict[int, ShareDelivery]:
        """Partition key -> what can be sent of it. `needed_ends`: partition key -> where the last batch that is needed
        may begin before; what was acquired from its end on is given back."""
        limit = max(0, min(max_bytes, self._max_bytes))
        keys = list(acquired)
        queries = [ExtentQuery(key, acquired[key][0][0], max(limit, 1)) for key in keys]
        ends = [(needed_ends or {}).get(key) or acquired[key][-1][1] + 1 for key in keys]
        found = await self._locator.locate(queries, max(limit, 1))
        if any(_is_behind(lookup, end, committed=committed) for lookup, end in zip(found, ends, strict=True)):
            await self._catch_up()
            found = await self._locator.locate(queries, max(limit, 1))
        lookups = [_up_to(lookup, end, committed=committed) for lookup, end in zip(found, ends, strict=True)]
        limit = await memory.claim(largest_reply(queries, lookups, limit), largest_first(queries, lookups), limit)
        outcomes = await self._delivery.deliver(queries, lookups, limit, committed=True)
        parts = {}
        for key, original, (lookup, outcome) in zip(keys, found, outcomes, strict=True):
            aborted = (*original.aborted, *lookup.aborted) if committed else ()
            holes: list[OffsetRange] = []
            if isinstance(outcome, Batches) and have_holes(outcome.buffers):
                holes = await asyncio.to_thread(find_holes, outcome.buffers)
            parts[key] = _part(key, acquired[key], lookup, outcome, aborted, holes)
        return parts


def _is_behind(lookup: Lookup, end: int, *, committed: bool) -> bool:
    """Return whether the index lacks what the owner has acquired."""
    if lookup.status not in (LookupStatus.FOUND, LookupStatus.OUT_OF_RANGE):
        return False
    return (lookup.last_stable_offset if committed else lookup.high_watermark) < end


def _up_to(lookup: Lookup, end: int, *, committed: bool) -> Lookup:
    """Return the extents with records before `end`; as a stable end, no batch from there on is read.

    Nothing is read for read_committed from where it is not known here what was aborted.
    """
    if committed:
        end = min(end, lookup.last_stable_offset)
    extents = [extent for extent in lookup.extents if extent.base_offset < end]
    return lookup._replace(extents=extents, last_stable_offset=end)


def _part(
    key: int,
    acquired: Sequence[AcquiredRange],
    lookup: Lookup,
    outcome: DeliveryOutcome,
    aborted: Sequence[AbortedRange],
    holes: Sequence[OffsetRange],
) -> ShareDelivery:
    part = ShareDelivery()
    covered: float = acquired[0][0]
    if lookup.status is LookupStatus.GONE:
        part.error = ErrorCode.unknown_topic_or_partition
        return part  # nothing is given back to a partition that is gone
    if lookup.status is LookupStatus.FOUND and isinstance(outcome, Batches):
        if outcome.next is not None:
            covered = outcome.next.offset
        part.records, gone = _without_aborted(outcome.buffers, aborted)
        part.returned += [Returned(key, *both, True) for both in _done(acquired, [*gone, *holes])]
    elif isinstance(outcome, DamagedOffsetsError):
        part.error = READ_DAMAGED
        covered = outcome.last_offset + 1
        damaged = _common(acquired, outcome.first_offset, outcome.last_offset)
        part.returned += [Returned(key, *both, True) for both in damaged]
    elif lookup.status is not LookupStatus.OUT_OF_RANGE:
        part.error = READ_FAILED
    done = [(each.first, each.last) for each in part.returned]
    for first, last, tries in acquired:
        if last >= covered:
            part.returned.append(Returned(key, max(first, int(covered)), last))
            last = int(covered) - 1
        part.acquired += [(*both, tries) for both in _except(first, last, done)]
    if not part.acquired:
        part.records = []
    return part


def _without_aborted(
    buffers: Sequence[bytes | memoryview], aborted: Sequence[AbortedRange]
) -> tuple[list[bytes | memoryview], list[OffsetRange]]:
    """Return (the batches that are not of aborted transactions, the offsets of those that are)."""
    if not aborted:
        return list(buffers), []
    kept: list[bytes | memoryview] = []
    gone: list[OffsetRange] = []
    for header, head, rest in headers(buffers):
        first, last = header.base_offset, header.base_offset + header.last_offset_delta
        is_aborted = header.is_transactional and any(
            each.producer_id == header.producer_id and each.first_offset <= first <= each.last_offset
            for each in aborted
        )
        if is_aborted:
            gone.append((first, last))
        else:
            kept += (head, rest)
    return kept, gone


def _done(acquired: Sequence[AcquiredRange], gone: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the acquired offsets that no member has to acknowledge, ascending, each once; the last range ends past
    what was acquired as far as there are no records.
    """
    done: list[OffsetRange] = []
    last_acquired = acquired[-1][1]
    for first, last in sorted(gone):
        for begin, end in _common(acquired, first, last):
            if done and begin <= done[-1][1] + 1:
                begin, end = done[-1][0], max(done.pop()[1], end)
            done.append((begin, end))
        if done and done[-1][1] >= last_acquired and first <= done[-1][1] + 1:
            done[-1] = done[-1][0], max(done[-1][1], last)
    return done


def _common(acquired: Sequence[AcquiredRange], first: int, last: int) -> list[tuple[int, int]]:
    """Return the acquired offsets of a batch."""
    return [(max(a, first), min(b, last)) for a, b, _ in acquired if a <= last and first <= b]


def _except(first: int, last: int, done: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of a range that are not in `done`, which is ascending."""
    parts = []
    for begin, end in done:
        if end < first or begin > last:
            continue
        if first < begin:
            parts.append((first, begin - 1))
        first = end + 1
    return [*parts, (first, last)] if first <= last else parts
