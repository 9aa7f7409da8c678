"""The answers to producers, compared with what is stored."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.metastore.api.commit import BatchOutcome
from tests.simulation.check_lives import check_offsets_of_all_servers, excused_losses, lost_commits
from tests.simulation.messages import Attempt, Batch
from tests.simulation.metadata import Place
from tests.simulation.problems import Kind, Problem
from tests.simulation.reading import Entry

if TYPE_CHECKING:
    from tests.simulation.stored_log import StoredLog
    from tests.simulation.world import World

FAILED_FILE = (int(ErrorCode.kafka_storage_error), int(ErrorCode.not_leader_or_follower))
"""The answers to a batch of a failed file, or with an old leader epoch: the batches behind it fail too."""


def check_sends(world: World, log: StoredLog) -> Iterator[Problem]:
    """Acknowledgements, refusals, order."""
    committed: dict[Batch, list[tuple[float, int]]] = defaultdict(list)
    for entry in (*world.database.journal, *lost_commits(world)):
        if entry.outcome is BatchOutcome.APPENDED:
            committed[entry.batch].append((entry.at, entry.base_offset))
    excused = excused_losses(world)
    for batch in world.messages.batches:
        stored = log.found.get((batch, batch.place), [])
        yield from _check_answers(batch, stored, committed[batch], excused)
        yield from _check_refusals(batch, stored)
    for place in log.entries:
        mine = [batch for batch in world.messages.batches if batch.place == place]
        yield from _check_real_time(mine, log, excused)
    yield from check_offsets_of_all_servers(world)
    yield from _check_connections(world, log)


def _check_answers(
    batch: Batch, stored: Sequence[Entry], committed: Sequence[tuple[float, int]], excused: Set[tuple[Batch, int]]
) -> Iterator[Problem]:
    """Acknowledged: committed before, still there, and at the offset that was named."""
    for attempt in batch.attempts:
        if not attempt.is_ok or attempt.answered_at is None:
            continue
        if not any(at <= attempt.answered_at for at, _ in committed):
            yield Problem(Kind.EARLY, f"{batch} acknowledged at {attempt.answered_at:.4f}")
        elif all(offset != attempt.base_offset for _, offset in committed):
            yield Problem(Kind.WRONG_ANSWER, f"{batch} told {attempt.base_offset}, committed at {committed}")
        if batch.place.topic.deleted_at is not None or (batch, attempt.base_offset) in excused:
            continue
        if not stored:
            yield Problem(Kind.LOST, f"{batch} acknowledged at offset {attempt.base_offset}")
            continue
        at = [entry for entry in stored if entry.base_offset == attempt.base_offset]
        if not at:
            yield Problem(
                Kind.WRONG_ANSWER, f"{batch} answered {attempt.base_offset}, stored at {stored[0].base_offset}"
            )
        elif batch.place.topic.stamps and attempt.append_time_ms != at[0].max_timestamp:
            yield Problem(Kind.WRONG_ANSWER, f"{batch} told {attempt.append_time_ms}, stored {at[0].max_timestamp}")


def _check_refusals(batch: Batch, stored: Sequence[Entry]) -> Iterator[Problem]:
    """Every stored copy needs an attempt that was not refused for certain."""
    for entry in stored:
        if all(attempt.is_refused for attempt in batch.attempts if attempt.identity == entry.identity):
            codes = [attempt.code for attempt in batch.attempts]
            yield Problem(Kind.PHANTOM, f"{batch} is stored at {entry.base_offset}, answered {codes}")


def _check_real_time(batches: Sequence[Batch], log: StoredLog, excused: Set[tuple[Batch, int]]) -> Iterator[Problem]:
    """A batch that was acknowledged before another was first sent has the lower offset."""
    acknowledged = sorted(
        (attempt.answered_at, attempt.base_offset)
        for batch in batches
        for attempt in batch.attempts
        if attempt.is_ok and attempt.answered_at is not None and (batch, attempt.base_offset) not in excused
    )
    times = [at for at, _ in acknowledged]
    highest: list[int] = []
    for _, offset in acknowledged:
        highest.append(max(offset, highest[-1]) if highest else offset)
    for batch in batches:
        before = bisect_left(times, batch.attempts[0].sent_at) if batch.attempts else 0
        for entry in log.found.get((batch, batch.place), []) if before else []:
            if entry.base_offset <= highest[before - 1]:
                yield Problem(
                    Kind.DISORDER,
                    f"{batch} is stored at {entry.base_offset}; {highest[before - 1]} was acknowledged earlier",
                )


def _check_connections(world: World, log: StoredLog) -> Iterator[Problem]:
    """Check the connections without a producer id, order is the connection's."""
    lines: dict[tuple[int, Place], list[Attempt]] = defaultdict(list)
    for batch in world.messages.batches:
        for attempt in () if batch.is_idempotent else batch.attempts:
            lines[attempt.connection, batch.place].append(attempt)
    for attempts in lines.values():
        attempts.sort(key=lambda attempt: attempt.sent_at)
        yield from _check_order(attempts, log)
        yield from _check_successors([attempt for attempt in attempts if attempt.batch not in world.database.expelled])


def _check_order(attempts: Sequence[Attempt], log: StoredLog) -> Iterator[Problem]:
    """The accepted batches of one connection are in the order in which they were sent."""
    highest = -1
    for attempt in attempts:
        if attempt.is_refused:
            continue
        for entry in log.found.get((attempt.batch, attempt.batch.place), []):
            if entry.base_offset <= highest:
                yield Problem(Kind.DISORDER, f"{attempt.batch} is stored at {entry.base_offset}, behind {highest}")
            highest = max(highest, entry.base_offset)


def _check_successors(attempts: Sequence[Attempt]) -> Iterator[Problem]:
    """When a batch fails finally, the batches that the agent had received behind it fail too.

    But for files that within their first minute are condemned, or too old by a clock that jumped: files
    of that age are committed together (agent/produce/files.py), because no real sweeper is so quick.
    """
    for position, failed in enumerate(attempts):
        if failed.code not in FAILED_FILE or failed.settled_at is None:
            continue
        for later in attempts[position + 1 :]:
            if later.is_ok and later.arrived_at is not None and later.arrived_at < failed.settled_at:
                yield Problem(Kind.SUCCESSOR, f"{failed.batch} failed, {later.batch} behind it was stored")
