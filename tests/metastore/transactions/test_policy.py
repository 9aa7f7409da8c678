"""The rules of one transactional id, against a small model that only knows who holds the id and what was answered.

Fault model: any request in any order, by the present holder of the id or by any earlier one, repeated at any time;
time-outs. Invariant checked: only the holder changes anything; a pair of producer id and epoch is handed out once;
each transaction ends once, and a repeated request gets the same answer.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.metastore import transactions as policy
from headrace.metastore.api.transactions import (
    EPOCH_MAX,
    NO_PRODUCER,
    ProducerEpoch,
    Transaction,
    TransactionState,
    TransactionVerdict,
)
from headrace.metastore.transactions import TransactionStep
from tests.planted import PlantedBugs, Trial
from tests.seeds import examples

DONE, FENCED = TransactionVerdict.DONE, TransactionVerdict.FENCED
INVALID = TransactionVerdict.INVALID_STATE
TIMEOUT_MS = 1_000

LENGTH = 30
Action = tuple[str, int, bool, bool]
REQUESTS = ("init", "recover", "add", "end", "time out", "pass")
ACTIONS = st.tuples(
    st.sampled_from(REQUESTS),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
"""(request, which holder sends it: 0 the present one, 1 the one before, ..., commits, bumps)."""


@dataclass
class Story:
    """The rules on one id, driven by actions; raises AssertionError when they break a promise."""

    rules: Any = policy
    row: Transaction | None = None
    now_ms: int = 0
    holders: list[ProducerEpoch] = field(default_factory=list)
    """Every identity that a client got, in order."""
    ended_by: dict[ProducerEpoch, bool] = field(default_factory=dict)
    """The last outcome that each identity asked for and got, with a new identity as answer."""
    answers: dict[ProducerEpoch, ProducerEpoch] = field(default_factory=dict)
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(100))

    def act(self, action: Action) -> None:
        what, which, commits, bumps = action
        asked = self.holders[-1 - which] if which < len(self.holders) else ProducerEpoch(7, 7)
        if what == "pass":
            self.now_ms += TIMEOUT_MS // 2
        elif what == "init":
            self._hold(self.rules.init_producer(self.row, "t", TIMEOUT_MS, NO_PRODUCER, next(self.ids)))
        elif what == "recover" and self.holders:
            self._recover(asked)
        elif what == "add":
            self._add(asked)
        elif what == "end":
            self._end(asked, commits=commits, bumps=bumps)
        elif what == "time out":
            self._time_out()

    def _take(self, step: TransactionStep) -> None:
        """Do what the metastore does with a step."""
        was_open = self.row is not None and self.row.state is TransactionState.ONGOING
        if step.verdict is not DONE:
            assert step.after is None, "a refused request changes something"
        if step.end is not None:
            assert was_open, "a transaction that is not open ends"
            assert self.row is not None
            assert step.end.marker_epoch >= self.row.producer.epoch
        if step.after is not None:
            if was_open and step.after.state is not TransactionState.ONGOING:
                assert step.end is not None, "an open transaction is forgotten"
            begun = self.now_ms if not was_open else self.row.begun_ms if self.row else -1
            self.row = replace(step.after, begun_ms=begun)
            assert self.row.producer.epoch <= EPOCH_MAX + 1
            if self.row.state is not TransactionState.ONGOING:
                assert not self.row.partition_keys
                assert not self.row.groups

    def _hold(self, step: TransactionStep) -> None:
        assert step.verdict is DONE
        self._take(step)
        assert step.producer not in self.holders, "an identity is handed out twice"
        assert self.row is not None
        assert self.row.producer == step.producer
        assert step.producer.epoch <= EPOCH_MAX
        self.holders.append(step.producer)
        self.ended_by.clear()

    def _recover(self, asked: ProducerEpoch) -> None:
        before = self.row
        step = self.rules.init_producer(before, "t", TIMEOUT_MS, asked, next(self.ids))
        assert before is not None
        if asked == before.producer:
            self._hold(step)
            self.answers[asked] = step.producer
        elif step.verdict is DONE:
            assert self.answers.get(asked) == step.producer == before.producer, "a fenced producer gets a new life"
            self._take(step)
        else:
            assert step.verdict is FENCED
            self._take(step)

    def _add(self, asked: ProducerEpoch) -> None:
        before = self.row
        step = self.rules.add(before, asked, {1, 2}, {"g"})
        assert (step.verdict is DONE) == (before is not None and asked == before.producer)
        self._take(step)
        if step.verdict is DONE:
            assert self.row is not None
            assert self.row.state is TransactionState.ONGOING
            assert {1, 2} <= self.row.partition_keys
            self.ended_by.clear()

    def _end(self, asked: ProducerEpoch, *, commits: bool, bumps: bool) -> None:
        before = self.row
        step = self.rules.end(before, asked, commits=commits, bumps=bumps, new_producer_id=next(self.ids))
        self._take(step)
        if step.verdict is not DONE:
            if before is not None and asked == before.producer:
                assert before.state is not TransactionState.ONGOING, "the holder cannot end its transaction"
            return
        assert before is not None
        if asked != before.producer:
            assert bumps
            assert self.ended_by.get(asked) == commits, "an end is answered with the other outcome"
            assert self.answers[asked] == step.producer, "a repeated end gets another answer"
            assert step.end is None
            return
        if before.state is TransactionState.ONGOING:
            assert step.end is not None
            assert step.end.commits == commits, "the other outcome"
        if bumps:
            assert step.producer not in self.holders, "an identity is handed out twice"
            self.holders.append(step.producer)
            self.ended_by = {asked: commits}
            self.answers[asked] = step.producer
        else:
            assert step.producer == asked

    def _time_out(self) -> None:
        before = self.row
        step = self.rules.time_out(before, self.now_ms)
        late = (
            before is not None
            and before.state is TransactionState.ONGOING
            and self.now_ms - before.begun_ms >= before.timeout_ms
        )
        assert (step.verdict is DONE) == late
        self._take(step)
        if late:
            assert self.row is not None
            assert self.row.producer not in self.holders
            self.ended_by.clear()
            self.answers.clear()


def play(actions: list[Action], rules: Any = policy, epoch: int = 0) -> Story:
    """The story of these actions; its first identity has this epoch."""
    story = Story(rules)
    if epoch:
        story.act(("init", 0, False, False))
        assert story.row is not None
        story.row = replace(story.row, producer=story.row.producer._replace(epoch=epoch))
        story.holders = [story.row.producer]
    for action in actions:
        story.act(action)
    return story


@given(st.lists(ACTIONS, max_size=LENGTH), st.sampled_from([0, EPOCH_MAX - 1, EPOCH_MAX]))
@settings(max_examples=examples(200))
def test_only_the_holder_acts_and_each_transaction_ends_once(actions: list[Action], epoch: int) -> None:
    play(actions, epoch=epoch)


FENCING = EPOCH_MAX + 1


@pytest.mark.parametrize("is_open", [False, True])
def test_no_request_may_name_the_epoch_that_fences_the_last_one(is_open: bool) -> None:
    """A row that is open under it, from an agent of the release before, is ended under the same epoch: a smallint."""
    producer = ProducerEpoch(7, FENCING)
    state = TransactionState.ONGOING if is_open else TransactionState.COMPLETE_ABORT
    row = Transaction(transactional_id="t", producer=producer, state=state, timeout_ms=TIMEOUT_MS, begun_ms=0)
    for refused in (
        policy.init_producer(row, "t", TIMEOUT_MS, producer, 8),
        policy.add(row, producer, {1}, set()),
        policy.end(row, producer, commits=True, bumps=False, new_producer_id=8),
        policy.end(row, producer, commits=False, bumps=True, new_producer_id=8),
        policy.abort(row, producer),
    ):
        assert refused == TransactionStep(TransactionVerdict.USED_UP)
    begun = policy.init_producer(row, "t", TIMEOUT_MS, NO_PRODUCER, 8)
    assert (begun.verdict, begun.producer) == (DONE, ProducerEpoch(8, 0)), "it goes on under a new id"
    late = policy.time_out(row, TIMEOUT_MS)
    ends = [step.end for step in (begun, late) if step.end is not None]
    assert [end.marker_epoch for end in ends] == ([FENCING] * 2 if is_open else [])
    assert late.after is None or late.after.producer == producer


class Bugged:
    """The rules with one replaced."""

    def __init__(self, **changed: Callable[..., TransactionStep]) -> None:
        self._changed = changed

    def __getattr__(self, name: str) -> Any:
        return self._changed.get(name) or getattr(policy, name)


def _init_without_fencing(found: Transaction | None, *rest: Any) -> TransactionStep:
    step = policy.init_producer(found, *rest)
    if found is None or step.after is None:
        return step
    return replace(step, after=replace(step.after, producer=found.producer), producer=found.producer)


def _init_without_abort(*given: Any) -> TransactionStep:
    return replace(policy.init_producer(*given), end=None)


def _end_by_anyone(found: Transaction | None, asked: ProducerEpoch, **more: Any) -> TransactionStep:
    return policy.end(found, asked if found is None else found.producer, **more)


def _end_with_any_outcome(
    found: Transaction | None, asked: ProducerEpoch, *, commits: bool, **more: Any
) -> TransactionStep:
    step = policy.end(found, asked, commits=commits, **more)
    if step.verdict is INVALID and found is not None and asked == found.previous:
        return replace(step, verdict=DONE, producer=found.producer)
    return step


def _end_always_commits(
    found: Transaction | None, asked: ProducerEpoch, *, commits: bool, **more: Any
) -> TransactionStep:
    step = policy.end(found, asked, commits=commits, **more)
    return replace(step, end=replace(step.end, commits=True)) if step.end else step


def _end_without_new_epoch(
    found: Transaction | None, asked: ProducerEpoch, *, bumps: bool, **more: Any
) -> TransactionStep:
    step = policy.end(found, asked, bumps=bumps, **more)
    if bumps and step.after is not None:
        return replace(step, after=replace(step.after, producer=asked), producer=asked)
    return step


def _end_again(found: Transaction | None, asked: ProducerEpoch, **more: Any) -> TransactionStep:
    if found is not None and asked == found.previous and found.state is not TransactionState.ONGOING:
        found = replace(found, producer=asked, state=TransactionState.ONGOING)
    return policy.end(found, asked, **more)


def _add_by_anyone(found: Transaction | None, asked: ProducerEpoch, *rest: Any) -> TransactionStep:
    return policy.add(found, asked if found is None else found.producer, *rest)


def _time_out_without_fencing(found: Transaction | None, now_ms: int) -> TransactionStep:
    step = policy.time_out(found, now_ms)
    if found is not None and step.after is not None:
        return replace(step, after=replace(step.after, producer=found.producer))
    return step


def _time_out_at_once(found: Transaction | None, now_ms: int) -> TransactionStep:
    return policy.time_out(found, now_ms + TIMEOUT_MS)


BUGS = {
    "init does not fence": Bugged(init_producer=_init_without_fencing),
    "init forgets the open transaction": Bugged(init_producer=_init_without_abort),
    "a zombie ends the transaction": Bugged(end=_end_by_anyone),
    "a repeated end is answered with any outcome": Bugged(end=_end_with_any_outcome),
    "an abort commits": Bugged(end=_end_always_commits),
    "an end keeps the epoch": Bugged(end=_end_without_new_epoch),
    "a repeated end writes markers again": Bugged(end=_end_again),
    "a zombie adds partitions": Bugged(add=_add_by_anyone),
    "a timed out producer is not fenced": Bugged(time_out=_time_out_without_fencing),
    "a transaction times out too early": Bugged(time_out=_time_out_at_once),
}


PLANTED = PlantedBugs("rules of transactions", most=100_000)


@PLANTED.cases(BUGS)
def test_a_planted_bug_is_found(bug: str, trial: Trial) -> None:
    for seed in trial.seeds():
        rng = random.Random(seed)
        actions = [
            (rng.choice(REQUESTS), rng.randrange(4), rng.random() < 0.5, rng.random() < 0.5) for _ in range(LENGTH)
        ]
        with trial.shown_by(AssertionError):
            play(actions, BUGS[bug])
