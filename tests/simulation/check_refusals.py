"""Decide which out-of-order batches are refused retriably, judged from answers and from what the metastore judged.

An agent that refused a batch of a producer does not tell the batches behind it that they are out of order, until it has
stored the refused one or a later one (agent/produce/refused_sequences.py). Only then does it tell them, or after the
time that an earlier batch may be on its way through another agent. It refuses nothing that the commit accepted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS, NEW_LIFE_SECONDS, NOTED_SECONDS
from headrace.metastore.api.commit import BatchOutcome
from tests.simulation.clocks import CLOCK_RATES
from tests.simulation.database import Committed
from tests.simulation.messages import SEQUENCES, Attempt
from tests.simulation.problems import Kind, Problem

if TYPE_CHECKING:
    from tests.simulation.stored_log import StoredLog
    from tests.simulation.world import World

_Judged = dict[tuple[int, tuple[int, int, int]], list[Committed]]
"""By partition, and producer id, epoch and sequence."""
NOT_STORED = int(ErrorCode.kafka_storage_error)
OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
SENT_AGAIN = (NOT_STORED, int(ErrorCode.not_leader_or_follower), int(ErrorCode.leader_not_available))


def check_refusals(world: World, logs: StoredLog) -> Iterator[Problem]:
    """Look at each producer in each epoch, partition and process."""
    servers = (*world.past, world.database)
    judged: _Judged = defaultdict(list)
    for committed in {committed.serial: committed for server in servers for committed in server.journal}.values():
        judged[committed.key, committed.identity].append(committed)
    appended: dict[tuple[object, ...], list[float]] = defaultdict(list)
    """By partition, producer id and epoch: when anything was appended."""
    for (key, (producer_id, epoch, _)), verdicts in judged.items():
        times = [committed.at for committed in verdicts if committed.outcome is BatchOutcome.APPENDED]
        appended[key, producer_id, epoch] += times
    streams: dict[tuple[object, ...], list[Attempt]] = defaultdict(list)
    for batch in world.messages.batches:
        for attempt in batch.attempts if batch.is_idempotent else ():
            streams[batch.place, attempt.producer_id, attempt.epoch, attempt.process].append(attempt)
    for attempts in streams.values():
        yield from _check_out_of_order(world, attempts, judged)
        yield from _check_hidden(attempts, judged, appended, world.lives_heard[attempts[0].process])


def _check_out_of_order(world: World, attempts: Sequence[Attempt], judged: _Judged) -> Iterator[Problem]:
    """Check, within the time of the first note: what it explains does not last longer. Attempts of
    one process.
    """
    lives = world.lives_heard[attempts[0].process]
    noted = [a for a in attempts if a.code in SENT_AGAIN]
    ends = min((_end_of_note(a, lives) for a in noted), default=0.0)
    by_gaps = [a for a in noted if _is_by_gap(a, noted, attempts, judged)]
    for told in attempts:
        if told.code != OUT_OF_ORDER or told.arrived_at is None or told.arrived_at > ends:
            continue
        for refused in noted:
            if (
                refused.settled_at is not None
                and refused not in by_gaps
                and refused.settled_at <= told.arrived_at
                and _is_before(refused, told)
                and not any(_may_end(refused, stored) for stored in attempts)
            ):
                yield Problem(
                    Kind.SPURIOUS, f"{told.batch} is called out of order, {refused.batch} before it was refused there"
                )


def _is_by_gap(
    told: Attempt,
    noted: Sequence[Attempt],
    attempts: Sequence[Attempt],
    judged: _Judged,
) -> bool:
    """Return whether a batch may have been refused only because an earlier one might be elsewhere: out of order, and
    nothing before it was refused here. What that explains ends with the gap's own time."""
    verdicts = _verdicts(told, judged)
    return any(committed.outcome is BatchOutcome.OUT_OF_ORDER for committed in verdicts) and not any(
        _is_before(refused, told)
        and not _is_by_gap(refused, (), attempts, judged)
        and not any(_ends(refused, stored, told) for stored in attempts)
        for refused in noted
    )


def _verdicts(told: Attempt, judged: _Judged) -> list[Committed]:
    """Return how the commits judged the batch while its agent had the attempt."""
    if told.arrived_at is None or told.settled_at is None:
        return []
    return [
        committed
        for committed in judged[told.batch.place.key, told.identity]
        if committed.node_id == told.process // 1000 and told.arrived_at <= committed.at <= told.settled_at
    ]


def _end_of_note(refused: Attempt, lives: Sequence[float]) -> float:
    """When the agent may forget the refusal, by the fastest clock: sooner around a life that it learns of."""
    if refused.settled_at is None:
        return math.inf
    noted, shorter = NOTED_SECONDS / CLOCK_RATES[1], NEW_LIFE_SECONDS / CLOCK_RATES[1]
    began = [max(heard, refused.settled_at) + shorter for heard in lives if heard >= refused.settled_at - NOTED_SECONDS]
    return min([refused.settled_at + noted, *began])


def _check_hidden(
    attempts: Sequence[Attempt],
    judged: _Judged,
    appended: dict[tuple[object, ...], list[float]],
    lives: Sequence[float],
) -> Iterator[Problem]:
    hidden: list[Attempt] = []
    for told in attempts:
        if told.code != NOT_STORED or told.arrived_at is None or told.settled_at is None:
            continue
        verdicts = _verdicts(told, judged)
        accepted = any(c.outcome in (BatchOutcome.APPENDED, BatchOutcome.DUPLICATE) for c in verdicts)
        if accepted and not any(_may_be_of(other, told) for other in attempts):
            yield Problem(Kind.PHANTOM, f"{told.batch} is called not stored, and the commit accepted it")
        out_of_order = [
            committed
            for committed in verdicts
            if committed.outcome is BatchOutcome.OUT_OF_ORDER
            and not any(_may_be_of(other, told) and _may_wait(other, committed.at) for other in attempts)
        ]
        if out_of_order and not any(
            _is_before(refused, told)
            and not refused.is_ok
            and not any(_ends(refused, stored, told) for stored in attempts)
            for refused in attempts
        ):
            hidden.append(told)
    for told in hidden:
        progress = appended[told.batch.place.key, told.producer_id, told.epoch]
        if any(_is_waited_for_too_long(first, told, attempts, progress, lives) for first in hidden):
            yield Problem(Kind.HIDDEN, f"{told.batch} is out of order for too long, and called not stored")


def _is_waited_for_too_long(
    first: Attempt, told: Attempt, attempts: Sequence[Attempt], progress: Sequence[float], lives: Sequence[float]
) -> bool:
    """Return whether the gap before `first` is still hidden from `told`, by the slowest clock. By the fastest one, the
    agent may have forgotten it, and waits again. After the partition got another batch, another one is missing; so it
    is in another life of the metastore, which may have lost batches."""
    assert first.settled_at is not None
    assert told.arrived_at is not None
    if any(first.settled_at <= heard <= told.arrived_at for heard in lives):
        return False
    since = max([first.settled_at, *(at for at in progress if at <= told.arrived_at)])
    waited = told.arrived_at - since
    return ELSEWHERE_SECONDS / CLOCK_RATES[0] < waited < NOTED_SECONDS / CLOCK_RATES[1] and not any(
        _may_end(first, stored) for stored in attempts
    )


def _is_before(attempt: Attempt, other: Attempt) -> bool:
    return 0 < (other.sequence - attempt.sequence) % SEQUENCES <= SEQUENCES // 2


def _may_be_of(other: Attempt, told: Attempt) -> bool:
    """Return whether the verdicts of an attempt may be those of another one of the same batch."""
    is_same = other is not told and other.identity == told.identity
    return is_same and (other.is_replay or other.arrived_at is None or other.arrived_at <= (told.settled_at or 0.0))


def _may_wait(attempt: Attempt, at: float) -> bool:
    """Return whether its agent may have had it without an answer then."""
    has_arrived = attempt.arrived_at is None or attempt.arrived_at <= at
    return has_arrived and (attempt.settled_at is None or at <= attempt.settled_at)


def _may_end(refused: Attempt, stored: Attempt) -> bool:
    """Return whether an attempt stored the refused batch or a later one, or may have."""
    return not _is_before(stored, refused) and (stored.is_ok or not stored.is_refused)


def _ends(refused: Attempt, stored: Attempt, told: Attempt) -> bool:
    """Return whether the agent stored the refused batch or a later one before it answered `told`."""
    return (
        stored.is_ok
        and not _is_before(stored, refused)
        and refused.settled_at is not None
        and stored.settled_at is not None
        and told.arrived_at is not None
        and refused.settled_at < stored.settled_at < told.arrived_at
    )
