"""What members of this agent's share groups were answered, for the bucket: so that a loss in Postgres can be listed.

Place: filled when a group is released; written when another server becomes the
metastore, when another life of it begins, and when the agent stops (metastore/life/recorded_shares.py).
Invariant: only states that Postgres said it had stored. An object of a life replaces the one before, so it has all that
this agent wanted to write of that life and has not yet. What is not written, because the agent is killed or the bucket
fails for minutes (storage/insistent.py), makes the list of lost acknowledgements shorter, not wrong.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.api.groups import ShareState
from headrace.metastore.life.numbers import life_of_number
from headrace.metastore.life.recorded_shares import RecordedShares, agent_writer, write_recorded
from headrace.storage.clock import Clock
from headrace.storage.insistent import InsistentPuts
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
        self._puts = InsistentPuts(clock)
        self._unwritten: dict[int, dict[tuple[str, int], ShareState]] = {}
        """What a task is writing, or is about to, by life of the metastore."""

    @property
    def in_use_bytes(self) -> int:
        """The memory for groups that this agent does not hold any more."""
        unwritten = (_size(*each) for states in self._unwritten.values() for each in states.items())
        return self._released.in_use_bytes + sum(unwritten)

    def note_released(self, states: Iterable[ShareState]) -> None:
        """Remember the states of a group that this agent does not hold any more."""
        for state in states:
            self._released.put(state.place, state)

    def forget(self, group_id: str, keys: Collection[int] | None = None) -> None:
        """Forget what was deleted on demand: the group's states in these partitions, or in all."""

        def is_gone(place: tuple[str, int]) -> bool:
            return place[0] == group_id and (keys is None or place[1] in keys)

        for place in filter(is_gone, list(self._released)):
            self._released.pop(place)
        for states in self._unwritten.values():
            for place in filter(is_gone, list(states)):
                del states[place]

    def record(self, held: Iterable[ShareState]) -> None:
        """Begin to write what is remembered, and the states of groups that the agent has."""
        states = dict(self._released.items()) | {state.place: state for state in held}
        by_life: defaultdict[int, dict[tuple[str, int], ShareState]] = defaultdict(dict)
        for place, state in states.items():
            by_life[life_of_number(state.coordinator_epoch)][place] = state
        for life, some in by_life.items():
            if life in self._unwritten:
                self._unwritten[life].update(some)
            elif self._store is not None:
                self._unwritten[life] = some
                self._puts.start(self._write(self._store, life))
        newest = max(by_life, default=0)
        for place, state in self._released.items():
            if life_of_number(state.coordinator_epoch) < newest:
                self._released.pop(place)

    async def close(self) -> None:
        """Return once everything is written, or failed once more, or takes too long."""
        await self._puts.close(CLOSE_SECONDS)

    async def _write(self, store: ObjectStore, life: int) -> None:
        unwritten, written = self._unwritten[life], dict[tuple[str, int], ShareState]()

        async def put() -> None:
            nonlocal written
            now, written = self._clock.wall_ms(), dict(unwritten)
            writer = agent_writer(self._node_id())
            await write_recorded(store, RecordedShares(now, list(written.values()), 0, life, writer))

        is_written = True
        while is_written and written != unwritten:
            is_written = await self._puts.insist(put, f"share groups: life={life} partitions={len(unwritten)}")
        del self._unwritten[life]
        if is_written:
            logger.info("share groups recorded: life=%d partitions=%d", life, len(written))


def _size(place: tuple[str, int], state: ShareState) -> int:
    return text_bytes(place[0]) + len(state.kept)
