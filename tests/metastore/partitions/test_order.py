"""Order per key through random changes of the count, with late and forgotten positions; and planted bugs."""

from __future__ import annotations

from headrace.metastore.partitions import changes
from headrace.metastore.partitions.changes import Change, Expansion, Removal, Shrinking
from headrace.metastore.partitions.placement import ancestors, nearest
from headrace.metastore.partitions.topic_partitions import OrderedPartition, TopicPartitions
from headrace.metastore.partitions.waiting import PositionReport, must_report
from tests.key_order.partition_order import OrderError, OrderWorld
from tests.planted import PlantedBugs, Trial
from tests.seeds import first

SEEDS = first(12, range(40))


def test_order_per_key_is_kept_through_changes_of_the_count() -> None:
    worlds = [OrderWorld(seed).run() for seed in SEEDS]
    assert sum(world.changes for world in worlds) > 10 * len(SEEDS)


class AnyCount(OrderWorld):
    """The commit does not compare counts."""

    def accepts(self, count: int) -> bool:
        """Also to marked partitions."""
        return True


class PlainModulo(OrderWorld):
    """Clients place keys by hash modulo count."""

    def place(self, hashed: int, count: int) -> int:
        return hashed % count


class EpochsStay(OrderWorld):
    """The epochs of existing partitions do not rise."""

    def carry_out(self, change: Change) -> None:
        super().carry_out(change if isinstance(change, Removal) else change._replace(epochs={}))


class EpochsBeforeTheCount(OrderWorld):
    """An expansion is two transactions: epochs rise first, and records of the old count come between."""

    def carry_out(self, change: Change) -> None:
        if isinstance(change, Expansion):
            first = Expansion(self.topic.undeleted, change.epochs, {})
            super().carry_out(first)
            for _ in range(10):
                self._produce()
        super().carry_out(change)


class CountBeforeTheEpochs(OrderWorld):
    """A deletion is two transactions: the count changes first, and records of the new count come between."""

    def carry_out(self, change: Change) -> None:
        if isinstance(change, Shrinking):
            super().carry_out(change._replace(epochs={}))
            for _ in range(10):
                self._produce()
        super().carry_out(change)


class OneTooEarly(OrderWorld):
    """A new partition is read one record before its source is done."""

    def may_begin(self, index: int) -> bool:
        created_from = self.topic.partitions[index].created_from
        if created_from is None:
            return True
        position = self.reported(created_from.source)
        return position is not None and position >= self.end_of(*created_from) - 1


class UnknownIsDone(OrderWorld):
    """A position that no member has reported counts as passed."""

    def reported(self, partition: int) -> int | None:
        found = super().reported(partition)
        return self.high_watermark(partition) if found is None else found


class Impatient(OrderWorld):
    """Heirs do not wait for marked partitions."""

    def may_deliver(self, index: int, at: int) -> bool:
        return True


class WaitsForAnyReport(OrderWorld):
    """Heirs wait until a marked partition is read, but not to its end."""

    def high_watermark(self, partition: int) -> int:
        return 0


class ReportsAsTheSeed(OrderWorld):
    """The three conditions of KIP-253 alone: a member that is blocked says nothing."""

    def must_report(self, index: int, now: PositionReport) -> bool:
        at_end = now.position == self.logs[index].end
        return must_report(now, self.reports.get(index), at_end=at_end, is_blocked=False)


class ReportsOnce(OrderWorld):
    """Members do not notice that the coordinator is a new one, which knows nothing."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._said: dict[int, PositionReport] = {}

    def must_report(self, index: int, now: PositionReport) -> bool:
        self.reports, known = self._said, self.reports
        must = super().must_report(index, now)
        self.reports = known
        if must:
            self._said[index] = now
        return must


class RemembersItsSource(OrderWorld):
    """A partition that returns keeps what its readers waited for the first time."""

    def carry_out(self, change: Change) -> None:
        if isinstance(change, Expansion):
            created = {index: self._as_before(index, made) for index, made in change.created.items()}
            change = change._replace(created=created)
        if isinstance(change, Removal):
            self._first = getattr(self, "_first", {}) | {
                change.partition: self.topic.partitions[change.partition].created_from
            }
        super().carry_out(change)

    def _as_before(self, index: int, made: OrderedPartition) -> OrderedPartition:
        first = getattr(self, "_first", {}).get(index)
        return made if first is None else made._replace(created_from=first)


BUGS = [
    AnyCount,
    PlainModulo,
    EpochsStay,
    EpochsBeforeTheCount,
    CountBeforeTheEpochs,
    OneTooEarly,
    UnknownIsDone,
    Impatient,
    WaitsForAnyReport,
    ReportsAsTheSeed,
    ReportsOnce,
    RemembersItsSource,
]
BUGS_OF_A_PLAN = {
    "the first ancestor alone is the heir": (
        *(changes, "ancestors"),
        lambda index, initial: ancestors(index, initial)[-1:],
    ),
    "the first ancestor is the source": (
        *(changes, "nearest"),
        lambda index, initial, count: nearest(index, initial, initial),
    ),
    "a source that is removed first leaves its child unread": (TopicPartitions, "source", lambda self, index: None),
}
"""What is wrong -> (module or class, attribute, wrong one)."""
PLANTED = PlantedBugs("order of partitions")


def _look_for(trial: Trial, world: type[OrderWorld]) -> None:
    for seed in trial.seeds():
        with trial.shown_by(OrderError):
            world(seed).run()


@PLANTED.cases(BUGS, lambda bug: bug.__name__)
def test_planted_bugs_are_found(bug: type[OrderWorld], trial: Trial) -> None:
    _look_for(trial, bug)


@PLANTED.cases(BUGS_OF_A_PLAN)
def test_planted_bugs_of_a_plan_are_found(bug: str, trial: Trial) -> None:
    trial.plant(*BUGS_OF_A_PLAN[bug])
    _look_for(trial, OrderWorld)
