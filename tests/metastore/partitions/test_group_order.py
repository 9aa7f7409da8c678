"""Order per key through new generations and new coordinators; and planted bugs."""

from __future__ import annotations

from headrace.agent.groups.positions import Ref
from tests.key_order.group_order import GroupWorld
from tests.key_order.partition_order import OrderError
from tests.planted import PlantedBugs, Trial
from tests.seeds import first

SEEDS = first(10, range(30))


def test_order_per_key_is_kept_through_generations_and_coordinators() -> None:
    generations = 0
    for seed in SEEDS:
        world = GroupWorld(seed)
        world.run()
        generations += world.generation
    assert generations > len(SEEDS)


class BelievesThatItWasHeard(GroupWorld):
    """Members do not notice that a new coordinator knows nothing."""

    def heard(self) -> None:
        pass


class SameIndexSamePartition(GroupWorld):
    """The coordinator takes a position in a partition that was removed for one in its successor."""

    def ref(self, index: int) -> Ref:
        return "t", index, None


PLANTED = PlantedBugs("order of groups")


@PLANTED.cases([BelievesThatItWasHeard, SameIndexSamePartition], lambda bug: bug.__name__)
def test_planted_bugs_are_found(bug: type[GroupWorld], trial: Trial) -> None:
    for seed in trial.seeds():
        with trial.shown_by(OrderError):
            bug(seed).run()
