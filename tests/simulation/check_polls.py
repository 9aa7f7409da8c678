"""What readers were shown, against what is stored and when it was committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.simulation.consumers import EARLIEST, LATEST
from tests.simulation.messages import Batch
from tests.simulation.metadata import Place
from tests.simulation.problems import Kind, Problem
from tests.simulation.reading import Entry, Listing, Poll

if TYPE_CHECKING:
    from tests.simulation.stored_log import StoredLog
    from tests.simulation.world import World


def check_polls(world: World, log: StoredLog) -> Iterator[Problem]:
    """Each poll by itself, and all of them against each other."""
    truth: dict[tuple[Place, int], tuple[Batch, tuple[int, int, int]]] = {
        (place, entry.base_offset): (entry.batch, entry.identity)
        for place, entries in log.entries.items()
        for entry in entries
    }
    for poll in world.polls:
        yield from _check_poll(world, poll)
        for entry in poll.entries:
            # deleted topics have no stored log any more: there the first reader sets the truth
            known = truth.setdefault((poll.place, entry.base_offset), (entry.batch, entry.identity))
            if known != (entry.batch, entry.identity):
                yield Problem(
                    Kind.INCONSISTENT,
                    f"{poll.reader} at agent {poll.node_id} read {entry.batch} at {poll.place}:{entry.base_offset},"
                    f" where {known[0]} is stored",
                )


def check_own_writes(world: World, log: StoredLog) -> Iterator[Problem]:
    """A fetch that was sent to a process after it acknowledged a batch shows a high watermark behind it."""
    acknowledged: dict[tuple[Place, int], list[tuple[float, int]]] = defaultdict(list)
    for batch in world.messages.batches:
        for attempt in batch.attempts:
            if attempt.is_ok and attempt.answered_at is not None and attempt.base_offset >= 0:
                end = attempt.base_offset + batch.count
                acknowledged[batch.place, attempt.process].append((attempt.answered_at, end))
    for poll in world.polls if not world.past else ():  # a metastore that was replaced may have lost some
        ends = [end for at, end in acknowledged[poll.place, poll.process] if at <= poll.sent_at]
        if ends and poll.high_watermark < max(ends):
            yield Problem(
                Kind.STALE,
                f"{poll.reader} at agent {poll.node_id}, {poll.place}:{poll.position}: high watermark"
                f" {poll.high_watermark}, acknowledged {max(ends)}",
            )


def _check_poll(world: World, poll: Poll) -> Iterator[Problem]:
    where = f"{poll.reader} at agent {poll.node_id}, {poll.place}:{poll.position}"
    committed = world.database.high_watermarks[poll.place.key].at(poll.answered_at)
    if poll.high_watermark > committed:
        yield Problem(Kind.EARLY, f"{where}: high watermark {poll.high_watermark}, committed {committed}")
    if poll.high_watermark < poll.position:
        yield Problem(Kind.REWOUND, f"{where}: high watermark {poll.high_watermark}")
    if not poll.entries:
        return
    first = poll.entries[0]
    if not first.stored_base <= poll.position <= first.stored_last:
        yield Problem(Kind.SKIPPED, f"{where}: begins with {first.stored_base}-{first.stored_last}")
    for before, after in zip(poll.entries, poll.entries[1:], strict=False):
        if after.base_offset != before.last_offset + 1:
            yield Problem(Kind.SKIPPED, f"{where}: {after.base_offset} follows {before.last_offset}")
    if poll.entries[-1].last_offset >= committed:
        yield Problem(Kind.EARLY, f"{where}: read {poll.entries[-1].last_offset}, committed {committed}")


def check_listings(world: World, log: StoredLog) -> Iterator[Problem]:
    """ListOffsets answers are as new as what was acknowledged, and no newer than what was committed."""
    for listing in world.listings:
        where = f"{listing.place} timestamp={listing.timestamp} answered {listing.offset}"
        if listing.timestamp == LATEST:
            yield from _check_latest(world, listing, where)
        elif listing.timestamp == EARLIEST:
            if listing.offset not in _log_starts(world, listing):
                yield Problem(Kind.STALE, where)
        else:
            yield from _check_by_time(world, listing, log, where)


def _check_latest(world: World, listing: Listing, where: str) -> Iterator[Problem]:
    floor, ceiling = _committed(world, listing)
    if not floor <= listing.offset <= ceiling:
        yield Problem(Kind.STALE, f"{where}: committed {floor} when asked, {ceiling} when answered")


def _check_by_time(world: World, listing: Listing, log: StoredLog, where: str) -> Iterator[Problem]:
    """The first record that may be read and is new enough, as far as it was committed meanwhile."""
    floor, ceiling = _committed(world, listing)
    legal = set()
    for log_start in _log_starts(world, listing):
        first = _first_new_enough(log.entries[listing.place], listing, log_start)
        if first < ceiling:
            legal.add(first)
        if not 0 <= first < floor:
            legal.add(-1)
    if listing.offset not in legal:
        yield Problem(Kind.STALE, f"{where}: expected one of {legal}, committed {floor} to {ceiling}")


def _first_new_enough(entries: Sequence[Entry], listing: Listing, log_start: int) -> int:
    """Its offset, -1 when there is none. Records of a batch are 1 ms apart, or all have the same time."""
    for entry in entries:
        if entry.max_timestamp >= listing.timestamp and entry.last_offset >= log_start:
            too_old = 0 if listing.place.topic.stamps else max(listing.timestamp - entry.batch.timestamp, 0)
            return max(entry.base_offset + too_old, log_start)
    return -1


def _committed(world: World, listing: Listing) -> tuple[int, int]:
    """The high watermark when the question was asked, and when it was answered."""
    marks = world.database.high_watermarks[listing.place.key]
    return marks.at(listing.sent_at), marks.at(listing.answered_at)


def _log_starts(world: World, listing: Listing) -> set[int]:
    return world.database.log_starts[listing.place.key].during(listing.sent_at, listing.answered_at)
