"""Running the schedules of a trial with a deliberate bug in the code.

Place: between tests/planted.py, which has the seeds, and the tests of the bugs.
"""

from __future__ import annotations

from tests.planted import Trial
from tests.simulation.bug import Bug
from tests.simulation.seeds import make_plan
from tests.simulation.world import simulate


def look_for(bug: Bug, trial: Trial) -> int:
    """Run schedules until one shows the bug as what it is; its seed."""
    seed = 0
    for seed in trial.seeds():
        if not bug.may_show(make_plan(seed)):
            continue
        with trial.planted(bug.apply):
            kinds = {problem.kind for problem in simulate(seed).problems}
        trial.saw(kinds & set(bug.caught_as), instead=kinds)
    return seed
