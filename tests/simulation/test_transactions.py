"""Histories of transactional copies: no anomaly, the same history for the same seed, and each planted bug caught."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest

from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.tail import Tail
from headrace.metastore import transactions as policy
from headrace.metastore.api.read import NONE_OPEN
from headrace.metastore.api.transactions import ProducerEpoch, TransactionState, TransactionVerdict
from tests.model.transaction_model import TransactionModel
from tests.patch import Patch, Plant, wrapped
from tests.planted import PlantedBugs, Trial
from tests.simulation import transactions
from tests.simulation.transactions import Anomaly, TransactionSimulation, simulate

DONE = TransactionVerdict.DONE
SEEDS, MANY_SEEDS = 60, 3_000


def test_no_history_shows_an_anomaly() -> None:
    assert asyncio.run(simulate(range(SEEDS))) == {}


@pytest.mark.slow
def test_no_history_of_many_shows_an_anomaly() -> None:
    assert asyncio.run(simulate(range(1_000, 1_000 + MANY_SEEDS))) == {}


def test_a_seed_replays_its_history() -> None:
    histories = []
    for _ in range(2):
        simulation = TransactionSimulation(7)
        asyncio.run(simulation.run(300))
        histories.append((simulation.history, simulation.problems))
    assert histories[0] == histories[1]


def _init_does_not_abort(right: Any) -> Any:
    """The open transaction continues, under the next epoch."""

    def init(found: Any, *rest: Any) -> Any:
        step = right(found, *rest)
        if step.end is None:
            return step
        kept = {"state": found.state, "partition_keys": found.partition_keys, "groups": found.groups}
        return replace(step, end=None, after=replace(step.after, **kept))

    return init


def _commits(right: Any) -> Any:
    """What ends a transaction commits it."""

    def end(*given: Any, **more: Any) -> Any:
        step = right(*given, **more)
        return step if step.end is None else replace(step, end=replace(step.end, commits=True))

    return end


def _no_fencing(right: Any) -> Any:
    """Every epoch of the producer id may continue."""
    return lambda found, asked: None if asked.producer_id == found.producer.producer_id else right(found, asked)


def _same_epoch(right: Any) -> Any:
    """The next instance gets the epoch of the one before."""
    return lambda producer, new_id: producer


def _judged_by_nothing(right: Any) -> Any:
    return lambda model, *given, **more: DONE


def _zombies_are_not_fenced_at_the_commit(right: Any) -> Any:
    def judge(model: TransactionModel, key: int, name: str, who: ProducerEpoch, *, adds: bool) -> TransactionVerdict:
        row = model.stored.rows.get(name)
        judged: TransactionVerdict = right(model, key, name, who if row is None else row.producer, adds=adds)
        return judged

    return judge


def _markers_in_one_partition(right: Any) -> Any:
    """The end is not atomic: one partition with data gets no marker, and is forgotten."""

    def append(model: TransactionModel, producer_id: int, **more: Any) -> None:
        for log in list(model.stored.logs.values())[:1]:
            log.first_open.pop(producer_id, None)
        right(model, producer_id, **more)

    return append


def _offsets_without_the_end(right: Any) -> Any:
    """An abort stores the offsets, too."""
    return lambda model, producer_id, *, commits: right(model, producer_id, commits=True)


def _offsets_are_lost(right: Any) -> Any:
    return lambda model, producer_id, *, commits: right(model, producer_id, commits=False)


def _offsets_count_at_once(right: Any) -> Any:
    def commit(model: TransactionModel, name: str, who: ProducerEpoch, group: str, position: int, *, adds: bool) -> Any:
        verdict = right(model, name, who, group, position, adds=adds)
        if verdict is DONE:
            model.stored.positions[group] = position
        return verdict

    return commit


def _a_life_keeps_transactions(right: Any) -> Any:
    return lambda model: None


def _a_life_commits(right: Any) -> Any:
    def forget(model: TransactionModel) -> None:
        for row in model.stored.rows.values():
            if row.state is TransactionState.ONGOING:
                model.append_markers(row.producer.producer_id, commits=True, epoch=row.producer.epoch + 1)
        right(model)

    return forget


def _duplicates_are_appended(right: Any) -> Any:
    def produce(model: TransactionModel, key: int, name: str, who: ProducerEpoch, sequence: int, *, adds: bool) -> Any:
        model.stored.logs[key].sequences[who.producer_id] = (who.epoch, sequence)
        return right(model, key, name, who, sequence, adds=adds)

    return produce


def _agents_forget_ranges(right: Any) -> Any:
    def note(self: TailIndex, row: Any, heard: dict[int, int]) -> None:
        right(self, row, heard)
        for tail in self._tails.values():
            tail.aborted = []

    return note


def _nothing_is_open(right: Any) -> Any:
    return property(lambda tail: tail.high_watermark)


def _the_primary_counts_at_once(right: Any) -> Any:
    """The bug of the first version: what is over at the primary is over, also before the feed brings its end."""

    def note(tail: Any, first_open_offset: int, end: int) -> None:
        right(tail, first_open_offset, end)
        if tail.fed_to is not None and end > tail.fed_to:
            tail.first_open_offset, tail.fed_to = first_open_offset, end

    return note


def _the_primary_says_nothing_of_aborts(right: Any) -> Any:
    return lambda model, query: replace(right(model, query), aborted=[])


def _the_primary_says_nothing_is_open(right: Any) -> Any:
    return lambda model, query: replace(right(model, query), first_open_offset=NONE_OPEN)


def _readers_do_not_stop(right: Any) -> Any:
    return lambda query, lookup: lookup._replace(last_stable_offset=1 << 60)


def _a_range_ends_too_early(right: Any) -> Any:
    """A range begins behind the first batch of its transaction."""

    def append(model: TransactionModel, producer_id: int, **more: Any) -> None:
        for log in model.stored.logs.values():
            if producer_id in log.first_open and log.first_open[producer_id] + 1 < log.end:
                log.first_open[producer_id] += 1
        right(model, producer_id, **more)

    return append


BUGS: dict[str, Plant] = {
    "InitProducerId leaves a transaction open": wrapped(policy, "init_producer", _init_does_not_abort),
    "InitProducerId commits what it finds": wrapped(policy, "init_producer", _commits),
    "a time-out commits": wrapped(policy, "time_out", _commits),
    "a producer is not fenced by its rules": wrapped(policy, "_refusal", _no_fencing),
    "an epoch is handed out twice": wrapped(policy, "_next", _same_epoch),
    "an abort commits": wrapped(policy, "end", _commits),
    "the commit judges nothing": wrapped(TransactionModel, "judge", _judged_by_nothing),
    "zombies write": wrapped(TransactionModel, "judge", _zombies_are_not_fenced_at_the_commit),
    "an end leaves a partition out": wrapped(TransactionModel, "append_markers", _markers_in_one_partition),
    "an abort stores offsets": wrapped(TransactionModel, "store_offsets", _offsets_without_the_end),
    "a commit loses offsets": wrapped(TransactionModel, "store_offsets", _offsets_are_lost),
    "offsets count before the end": wrapped(TransactionModel, "commit_offset", _offsets_count_at_once),
    "a promotion keeps transactions open": wrapped(TransactionModel, "forget_transactions", _a_life_keeps_transactions),
    "a promotion commits what survived": wrapped(TransactionModel, "forget_transactions", _a_life_commits),
    "a repeated batch is appended": wrapped(TransactionModel, "produce", _duplicates_are_appended),
    "agents forget aborted ranges": wrapped(TailIndex, "_note_transactions", _agents_forget_ranges),
    "agents ignore open transactions": wrapped(Tail, "last_stable_offset", _nothing_is_open),
    "agents are ahead of their feed": wrapped(Tail, "note_primary", _the_primary_counts_at_once),
    "the primary forgets aborted ranges": wrapped(TransactionModel, "_found", _the_primary_says_nothing_of_aborts),
    "the primary forgets open transactions": wrapped(TransactionModel, "_found", _the_primary_says_nothing_is_open),
    "readers pass the last stable offset": wrapped(transactions, "stable_part", _readers_do_not_stop),
    "a range begins too late": wrapped(TransactionModel, "append_markers", _a_range_ends_too_early),
}


PLANTED = PlantedBugs("simulation of transactions")


@PLANTED.cases(BUGS)
def test_each_planted_bug_is_caught(bug: str, trial: Trial) -> None:
    BUGS[bug](trial.patch)
    for seed in trial.seeds():
        trial.saw(_fails(seed))


def _fails(seed: int) -> bool:
    """Return whether the history shows an anomaly; a bug may also break what the simulation relies on."""
    try:
        return bool(asyncio.run(TransactionSimulation(seed).run(350)))
    except (AssertionError, KeyError, IndexError):
        return True


def test_every_kind_of_anomaly_is_found_by_some_bug(patch: Patch) -> None:
    """G1a, precommitted reads, atomicity of records and of offsets with output."""
    patch.replace(transactions, "stable_part", _readers_do_not_stop(None))
    found: set[Anomaly] = set()
    for seed in range(40):
        found |= set(asyncio.run(TransactionSimulation(seed).run(350)))
    assert {Anomaly.G1A, Anomaly.PRECOMMITTED, Anomaly.COPIES} <= found


def test_transactions_that_read_from_each_other_are_found() -> None:
    simulation = TransactionSimulation(1)
    one, two = transactions.Attempt(), transactions.Attempt()
    one.read_from, two.read_from = {two}, {one}
    simulation.attempts = [one, two]
    simulation._check_cycles()
    assert simulation.problems == {Anomaly.G1C: 2}


def test_a_half_of_a_transaction_is_found() -> None:
    simulation = TransactionSimulation(1)
    _, who = simulation.model.init_producer("t")
    _, file_id = simulation.model.produce(0, "t", who, 0, adds=True)
    assert file_id is not None
    attempt = transactions.Attempt({True}, True, {file_id, uuid.UUID(int=5)})
    simulation.attempts, simulation.batches = [attempt], {file_id: transactions.SentBatch(attempt, 1, 9)}
    simulation.model.end("t", who, commits=True, bumps=True)
    asyncio.run(simulation._quiet())
    assert simulation.problems == {Anomaly.ATOMICITY: 1}
