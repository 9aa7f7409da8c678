"""Order per key with the memory that coordinators have: partition_order.py, with generations and new coordinators.

Place: `python -m tests.key_order.group_order [--seeds 200]`; tests run some seeds, and planted bugs that must be found.
Fault model, in addition: the memory is the one of agents (agent/groups/positions.py), with room for few positions; the
group rebalances after its members committed, and another agent becomes the coordinator, which knows nothing. A member
that crashes without a commit is not simulated: what it had delivered comes again.
Invariant of a run without a bug: as in partition_order.py.
"""

from __future__ import annotations

import argparse

from headrace.agent.groups.positions import GroupPositionMemory, Ref
from headrace.metastore.partitions.changes import Change, Removal
from headrace.metastore.partitions.waiting import PositionReport
from headrace.protocol.ordered_requests import PartitionPosition
from tests.key_order.partition_order import OrderWorld

POSITIONS_MAX = 60


class GroupWorld(OrderWorld):
    """One seed. What tests replace to plant a bug are the methods with one line of why."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.coordinator = self.generation = 1
        self._rebalances = True
        self.memory = GroupPositionMemory(POSITIONS_MAX)
        self.answered: dict[int, int] = {}
        """Positions, as the coordinator answered last."""
        self.last: dict[int, PositionReport] = {}
        """What members believe that it knows."""

    # -- the coordinator

    def _report(self) -> None:
        """A heartbeat of the member that has this partition; members ask for all positions."""
        index = self.rng.choice(self.present())
        refs = {each: self.ref(each) for each in self.present()}
        said = [(refs[each], PartitionPosition(each, True)) for each in refs]
        if index in self.positions:
            at = self.positions[index] = max(self.positions[index], self.logs[index].start)
            before = self.logs[index].records[:at][-1:]
            now = PositionReport(at, before[0].leader_epoch if before else -1)
            if self.must_report(index, now):
                self.last[index] = now
                said.append((refs[index], PartitionPosition(index, False, at)))
        answer = self.memory.exchange("g", (self.coordinator, self.generation), "m", said)
        self.answered = {each: position for (_, each, _), position in answer.items() if position >= 0}
        self.heard()

    def ref(self, index: int) -> Ref:
        """Name a partition as the coordinator does: one that returns is another one."""
        return "t", index, self.topic.partitions[index].created_from

    def heard(self) -> None:
        """Members report again what the coordinator does not know."""
        self.last = {index: report for index, report in self.last.items() if index in self.answered}

    def must_report(self, index: int, now: PositionReport) -> bool:
        """Only what may release another member."""
        self.reports = self.last
        return super().must_report(index, now)

    def reported(self, partition: int) -> int | None:
        """See GroupPositions."""
        return self.answered.get(partition)

    def _forget_reports(self) -> None:
        """Another agent coordinates the group."""
        self.coordinator += 1

    def carry_out(self, change: Change) -> None:
        """Members forget a partition that is removed."""
        super().carry_out(change)
        if isinstance(change, Removal):
            self.answered.pop(change.partition, None)
            self.last.pop(change.partition, None)

    def _drain(self) -> None:
        self._rebalances = False  # one would make members report again
        super()._drain()

    def _deliver(self) -> None:
        if self._rebalances and self.rng.random() < 0.001:
            self.generation += 1
            self.answered, self.last = {}, {}
        super()._deliver()


def main() -> None:
    """Run seeds until one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    args = parser.parse_args()
    changes = generations = 0
    for seed in range(args.seeds):
        world = GroupWorld(seed)
        world.run()
        changes += world.changes
        generations += world.generation
    print(f"{args.seeds} seeds: {changes} changes of the count, {generations} generations, order per key kept in all")


if __name__ == "__main__":
    main()
