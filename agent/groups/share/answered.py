"""What members of this agent's share groups were answered, for the bucket: so that a loss in Postgres can be listed.

Place: filled when a group is released; written when another server becomes the
metastore, when another life of it begins, and when the agent stops (metastore/life/recorded_shares.py).
Invariant: only states that Postgres said it had stored. What is not written, because the agent is killed or the bucket
fails, makes the list of lost acknowledgements shorter, not wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.api.groups import ShareState
from headrace.metastore.life.numbers import life_of_number
from headrace.metastore.life.recorded_shares import RecordedShares, agent_writer, write_recorded
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""How long a stop waits for the bucket."""


class AnsweredShares:
    """One per agent. All but `close` may be called at any time on the loop."""

    def __init__(self, store: ObjectStore | None, node_id: Callable[[], int], clock: Clock) -> None:
        """`store`: None if nothing is recorded."""
        self._store, self._node_id, self._clock = store, node_id, clock
        self._released = ClientMemory[tuple[str, int], ShareState](REMEMBERED_BYTES["share_states"], _size)
        """States of groups that this agent has released; those that it released first are forgotten."""
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def in_use_bytes(self) -> int:
        """The memory for groups that this agent does not hold any more."""
        return self._released.in_use_bytes

    def note_released(self, states: Iterable[ShareState]) -> None:
        """Remember the states of a group that this agent does not hold any more."""
        for state in states:
            self._released.put(state.place, state)

    def forget(self, group_id: str, keys: Collection[int] | None = None) -> None:
        """Forget what was deleted on demand: the group's states in these partitions, or in all."""
        for place in list(self._released):
            if place[0] == group_id and (keys is None or place[1] in keys):
                self._released.pop(place)

    def record(self, held: Iterable[ShareState]) -> None:
        """Begin to write what is remembered, and the states of groups that the agent has."""
        states = dict(self._released.items()) | {state.place: state for state in held}
        by_life: defaultdict[int, list[ShareState]] = defaultdict(list)
        for state in states.values():
            by_life[life_of_number(state.coordinator_epoch)].append(state)
        for life, some in by_life.items():
            task = asyncio.get_running_loop().create_task(self._write(life, some))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        newest = max(by_life, default=0)
        for place, state in self._released.items():
            if life_of_number(state.coordinator_epoch) < newest:
                self._released.pop(place)

    async def close(self) -> None:
        """Return once everything is written, or failed, or takes too long."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=CLOSE_SECONDS)

    async def _write(self, life: int, states: list[ShareState]) -> None:
        if self._store is None:
            return
        recorded = RecordedShares(self._clock.wall_ms(), states, 0, life, agent_writer(self._node_id()))
        try:
            await write_recorded(self._store, recorded)
        except HeadraceError as error:
            logger.warning("share groups not recorded: partitions=%d error=%s", len(states), error)
        else:
            logger.info("share groups recorded: life=%d partitions=%d", life, len(states))


def _size(place: tuple[str, int], state: ShareState) -> int:
    return text_bytes(place[0]) + len(state.kept)
