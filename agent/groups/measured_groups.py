"""Measures the memory of groups: of those that changed in the next turn of the clock, of others now and then.

Place: under held_groups.py, which tells what happens to a group; group_memory.py has the results.
Invariant: what joins a group counts at once (GroupMemory.add); a group that changed is measured soon after. Heartbeats
that change nothing are most of all requests, an image of other topics comes to all groups at once, and measuring takes
some 2 µs for each member, so a turn measures only HEARD_AT_ONCE groups that have nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from headrace.agent.groups.group_memory import GroupMemory

MEASURED_AT_ONCE = 500
"""Groups in one turn of the event loop; the next turn measures the next ones."""
HEARD_AT_ONCE = 1
"""How many of these may be groups to which only heartbeats and images came, without effect."""


class MeasuredGroups:
    """The groups of one agent that are to be measured."""

    def __init__(self, memory: GroupMemory) -> None:
        self._memory = memory
        self.changed: dict[str, None] = {}
        """The groups that changed, in that order."""
        self._heard: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self.changed.keys() | self._heard.keys())

    def note(self, group_id: str, *, is_same: bool) -> None:
        """Something happened to the group. `is_same`: it uses as much as before, about."""
        (self._heard if is_same else self.changed)[group_id] = None

    def forget(self, group_id: str) -> None:
        """The group was released, and uses nothing. New groups may come faster than HEARD_AT_ONCE are measured."""
        self.changed.pop(group_id, None)
        self._heard.pop(group_id, None)
        self._memory.measured(group_id, {})

    def measure(self, sizes: Callable[[str], Mapping[str, int]]) -> None:
        """Measure some groups. `sizes`: bytes by client address; empty for a group that was released."""
        if not self.changed:
            self.changed.update(dict.fromkeys(self._memory.unmeasured))
        for group_id in list(itertools.islice(self._heard, HEARD_AT_ONCE)):
            del self._heard[group_id]
            self.changed[group_id] = None
        for group_id in list(itertools.islice(self.changed, MEASURED_AT_ONCE)):
            del self.changed[group_id]
            self._memory.measured(group_id, sizes(group_id))
