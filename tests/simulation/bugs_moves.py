"""Deliberate bugs of what an agent makes of leaders that moved (agent/produce/last_stored.py).

That an agent takes its image for the newest shows too rarely in a schedule: test_refusal_bugs.py proves it.
"""

from __future__ import annotations

from headrace.agent.produce import last_stored
from headrace.agent.produce.last_stored import LastStored
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W7", Kind.SPURIOUS)
def moves_of_a_leader_are_not_looked_at(patch: Patch) -> None:
    """A connection is as settled as before once the leader is back."""
    patch.replace(last_stored, "_moved_at", lambda image, batch: 0)


@bug("W7", Kind.SPURIOUS)
def only_agents_that_come_and_go_unsettle_a_connection(patch: Patch) -> None:
    """Neither moves nor what another agent stored are looked at: decision 82 as it was."""
    patch.wrap(
        LastStored,
        "is_settled",
        lambda right: (
            lambda self, entry, answer: right(self, entry, answer._replace(next_sequence=0, metadata_offset=0))
        ),
    )
    patch.replace(last_stored, "_moved_at", lambda image, batch: image.moved_at)
    patch.replace(last_stored, "_all_came_here", lambda known, batch, end, is_appended: True)
