"""A topic moves between two metastores with crashes at every step: nothing is lost, doubled or reordered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.model.topic_move import (
    COPY_ROWS,
    CommitReply,
    MovedBatch,
    Placement,
    TopicHome,
    TopicMetastore,
    TopicMover,
    TopicState,
    Write,
)
from tests.planted import PlantedBugs, Trial
from tests.properties.topic_move_world import TopicMoveWorld

SEEDS = range(150)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 50))
def test_nothing_is_lost_doubled_or_reordered(first: int) -> None:
    for seed in SEEDS[first : first + 50]:
        assert not TopicMoveWorld(seed).run().problems, f"seed {seed}"


class ActivatesBeforeTheFence(TopicMover):
    """It copies, and lets the destination begin while the source still takes records."""

    def _look_at_rows(self) -> Write:
        copied, end = len(self._destination.log), len(self._source.log)
        if copied == end and self._destination.state is TopicState.STAGED:
            return lambda: (self._destination.activate(end, dict(self._source.next_sequence)), self._source.fence())[0]
        rows = tuple(self._source.log[copied : copied + COPY_ROWS])
        return lambda: self._destination.stage(copied, rows)


class LeavesTheRest(TopicMover):
    """It takes what was copied before the fence for all there is."""

    def _look_at_rows(self) -> Write:
        copied = len(self._destination.log)
        if self._source.state is TopicState.FENCED and self._destination.state is TopicState.STAGED:
            return lambda: self._destination.activate(copied, dict(self._source.next_sequence))
        return super()._look_at_rows()


class ReadsProducersEarly(TopicMover):
    """It reads the producers' state before the fence, with the rows."""

    def __init__(self, home: TopicHome, source: TopicMetastore, destination: TopicMetastore) -> None:
        super().__init__(home, source, destination)
        self._early: Mapping[int, int] | None = None

    def _look_at_rows(self) -> Write:
        if self._early is None:
            self._early = dict(self._source.next_sequence)
        early, end = self._early, len(self._source.log)
        if self._source.state is TopicState.FENCED and len(self._destination.log) == end:
            return lambda: self._destination.activate(end, early)
        return super()._look_at_rows()


class ForgetsProducers(TopicMetastore):
    """The destination begins without the state of producers: every sequence but 0 is out of order, or doubled."""

    def activate(self, end: int, next_sequence: Mapping[int, int]) -> None:
        super().activate(end, {})


class TakesAnySequence(ForgetsProducers):
    """The same as many implementations do for a producer that they do not know."""

    def _judge(self, batch: MovedBatch) -> CommitReply:
        self.next_sequence.setdefault(batch.producer_id, batch.sequence)
        return super()._judge(batch)


class StagesIntoALiveTopic(TopicMetastore):
    """Rows that an old mover read come after the topic began here, and replace what clients wrote."""

    def stage(self, first: int, rows: Sequence[MovedBatch]) -> None:
        if self.state is TopicState.LIVE:
            self.log[first:] = rows
        super().stage(first, rows)


class ForgetsAnswersAtOnce(TopicMetastore):
    """The source takes its answers along when it cleans up: an agent in doubt gets the answer that nothing happened."""

    def clean_up(self) -> None:
        super().clean_up()
        if self.state is TopicState.GONE:
            self.answers.clear()


class OpensTheFence(TopicMover):
    """A mover that finds no staged rows takes the move for one that begins, and lets the source continue."""

    def _look_at_rows(self) -> Write:
        if self._source.state is TopicState.FENCED and len(self._destination.log) < len(self._source.log):

            def open_again() -> None:
                self._source.state = TopicState.LIVE

            return open_again
        return super()._look_at_rows()


class RepointsBeforeTheEnd(TopicMover):
    """Agents are sent to the destination as soon as the source is fenced, and the source forgets its rows."""

    def look(self) -> Write | None:
        if self._home.placement is Placement.MOVING and self._source.state is TopicState.FENCED:
            return lambda: self._home.record(Placement.DESTINATION)
        return super().look()


BUGS: Mapping[str, Callable[[int], TopicMoveWorld]] = {
    "activates before the fence": lambda seed: TopicMoveWorld(seed, mover_class=ActivatesBeforeTheFence),
    "leaves the rest": lambda seed: TopicMoveWorld(seed, mover_class=LeavesTheRest),
    "reads producers early": lambda seed: TopicMoveWorld(seed, mover_class=ReadsProducersEarly),
    "forgets producers": lambda seed: TopicMoveWorld(seed, destination_class=ForgetsProducers),
    "takes any sequence": lambda seed: TopicMoveWorld(seed, destination_class=TakesAnySequence),
    "stages into a live topic": lambda seed: TopicMoveWorld(seed, destination_class=StagesIntoALiveTopic),
    "forgets answers at once": lambda seed: TopicMoveWorld(seed, source_class=ForgetsAnswersAtOnce),
    "opens the fence": lambda seed: TopicMoveWorld(seed, mover_class=OpensTheFence),
    "repoints before the end": lambda seed: TopicMoveWorld(seed, mover_class=RepointsBeforeTheEnd),
    "sends a file in doubt to the destination": lambda seed: TopicMoveWorld(seed, asks_source_first=False),
}


PLANTED = PlantedBugs("move of a topic")


@PLANTED.cases(BUGS)
def test_planted_bugs_are_found(bug: str, trial: Trial) -> None:
    made: Any = BUGS[bug]
    for seed in trial.seeds():
        trial.saw(made(seed).run().problems)
