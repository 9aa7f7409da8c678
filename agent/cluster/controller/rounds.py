"""What the rounds of a controller depend on: how long its lease is, whether it is held, which steps have their turn.

Place: controller.py has the table of all steps and calls `run` in each round while the process is the active
controller, `stand_by` in each round while it is not. It reads ControllerTimes in each round, because these settings
can change in a running cluster, and notes in HeldLease whether the process has the lease. HeldLease is made with the
process, before its controller and its agent, so that both have it from the start.
Invariant: a step judges by the image alone, and acts under a controller epoch that the metastore checks. What it did
is in the log, so the controller that takes over continues by judging again. A step that fails is left out for a
while (storage/supervision.py) and holds up no other; FencedError ends the round.
A process considers itself active only until its lease, counted from before the request was sent, has expired. A
process without a controller never holds one.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.agent.cluster.follower import MetadataFollower
from headrace.config.settings import Settings
from headrace.metastore.api.controller import ControllerLease, SnapshotState
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError
from headrace.storage.supervision import Supervisor

TURNS_PER_LEASE = 4
"""A lease is requested for one round less: a standby asks in the first round after its end, so it takes over within
the whole lease."""


@dataclass(frozen=True, slots=True)
class ControllerTimes:
    """The lease duration, and the limits for snapshots; milliseconds and bytes."""

    lease_ms: int
    session_timeout_ms: int
    snapshot_interval_ms: int
    snapshot_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> ControllerTimes:
        """Return the values of the settings of the same names."""
        return cls(
            settings.controller_lease_ms,
            settings.broker_session_timeout_ms,
            settings.metadata_snapshot_interval_ms,
            settings.metadata_snapshot_bytes,
        )

    @property
    def granted_ms(self) -> int:
        """The lease that a controller requests, so that a standby is active `lease_ms` after the last renewal."""
        return self.lease_ms - self.lease_ms // TURNS_PER_LEASE

    def snapshot_is_due(self, state: SnapshotState) -> bool:
        """Say whether a snapshot is due: by size, and by age if there are new records."""
        return state.log_bytes >= self.snapshot_bytes or (
            state.log_records > 0 and state.age_ms >= self.snapshot_interval_ms
        )


class HeldLease:
    """The lease as one process knows it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lease: ControllerLease | None = None
        """The lease as of the last round; another process may hold it."""
        self._active_until = 0.0

    def take(self, lease: ControllerLease | None, until: float) -> None:
        """Note who holds the lease, and until when (seconds, monotonic) none can have taken it over."""
        self.lease, self._active_until = lease, until

    def is_active(self) -> bool:
        """Return whether this process holds it, and no other controller can have taken over yet."""
        return self.lease is not None and self.lease.is_own and self._clock.monotonic() < self._active_until

    @property
    def controller_id(self) -> int:
        """The active controller's node id as of the last round; -1 if unknown."""
        return -1 if self.lease is None else self.lease.controller_id


logger = logging.getLogger(__name__)

T = TypeVar("T")
AT_ONCE = float("-inf")


def always(image: MetadataImage) -> bool:
    """Judge that there may be something to do: the metastore knows."""
    return True


@dataclass(slots=True)
class ControllerStep(Generic[T]):
    """One kind of work of the active controller, under this name in logs, metrics and /readyz."""

    name: str
    judge: Callable[[MetadataImage], T]
    """Return what there is to do; nothing is done if that is empty."""
    act: Callable[[int, MetadataImage, T], Awaitable[object]]
    """Do it: controller epoch, image, what was found. Returns True if more is left, which the next round does."""
    pause_seconds: Callable[[], float] = lambda: 0.0
    """Time between two turns that were taken, from beginning to beginning."""
    stand_by: Callable[[], object] = lambda: None
    """Forget and hide what only the active controller knows; called in each round of a standby."""
    is_long: bool = False
    """It may take longer than the round may: it runs in a separate task, and after a failure it pauses as well."""
    taken_at: float = AT_ONCE
    turn: asyncio.Task[None] | None = None


class ControllerSteps:
    """Takes the steps in their order. For one event loop."""

    def __init__(
        self, steps: Sequence[ControllerStep[Any]], follower: MetadataFollower, clock: Clock, supervisor: Supervisor
    ) -> None:
        self.steps = {step.name: step for step in steps}
        self._follower, self._clock, self._supervisor = follower, clock, supervisor

    async def run(self, epoch: int) -> None:
        """Take the steps that do not pause. FencedError for a stale epoch."""
        for step in self.steps.values():
            if self._clock.monotonic() - step.taken_at < step.pause_seconds():
                continue
            if not step.is_long:
                await self._supervisor.attempt(step.name, partial(self._take, step, epoch))
            elif step.turn is None or step.turn.done():
                step.turn = asyncio.create_task(self._take_aside(step, epoch))

    def stand_by(self) -> None:
        """Another process takes the steps, or may do so. If this one does again, each is due at once."""
        for step in self.steps.values():
            step.taken_at = AT_ONCE
            step.stand_by()
            self._supervisor.forget(step.name)

    async def close(self) -> None:
        """End what runs in the background."""
        turns = [step.turn for step in self.steps.values() if step.turn is not None]
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        self.stand_by()

    async def _take(self, step: ControllerStep[Any], epoch: int) -> None:
        now, image = self._clock.monotonic(), self._follower.image
        found = step.judge(image)
        if not found:
            return
        if step.is_long:
            step.taken_at = now
        is_unfinished = await step.act(epoch, image, found)
        step.taken_at = AT_ONCE if is_unfinished else now

    async def _take_aside(self, step: ControllerStep[Any], epoch: int) -> None:
        try:
            await self._supervisor.attempt(step.name, partial(self._take, step, epoch))
        except FencedError as error:
            logger.warning("controller step failed: step=%s error=%s", step.name, error)


class TopicsWhere:
    """Judges which topics a step is about; looks at them again only when topics changed."""

    def __init__(self, is_concerned: Callable[[TopicImage], bool]) -> None:
        self._is_concerned = is_concerned
        self._seen: Mapping[uuid.UUID, TopicImage] | None = None
        self._found: list[uuid.UUID] = []

    def __call__(self, image: MetadataImage) -> list[uuid.UUID]:
        """Return their ids."""
        if image.topics_by_id is not self._seen:
            self._seen = image.topics_by_id
            self._found = [topic_id for topic_id, topic in self._seen.items() if self._is_concerned(topic)]
        return self._found
