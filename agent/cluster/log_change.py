"""Changes of the metadata log that requests ask for: judged on an image, made only if the log still ends there.

Place: used by admin requests. `change_log` is the loop of all but the creation and deletion of topics; LogChange
appends records for those that have no specific operation in the metastore. All count their appends with Appends.
Invariant: compare and append; if the log changed, everything is judged again on the newer image. A judge is given the
attempt that got no response, and looks in the image or the log whether it was made. Otherwise the repetition of a
removal would be answered "not found".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.cluster import ClusterApi, MetadataRecord
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import encode_record
from headrace.protocol.errors import admin_error
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, OutcomeUnknownError

PATIENCE_SECONDS = 15.0
"""Limit in seconds of requests without a timeout field."""
LOG_KEPT_CHANGING = "the metadata log kept changing, or its answers were lost"


APPENDS_MIN = 4
"""Appends that a change may make after its deadline, too, if others came first each time: on a busy machine a client's
patience may end before the first append, and of changes that are made at once all but one lose."""
PAUSE_SECONDS = 0.01
"""Pause after the second append that came too late; a second append follows the first at once."""


class Appends:
    """The appends of one change: when there is time for another, and the pauses between them."""

    def __init__(self, cluster: ClusterView, clock: Clock, deadline: float) -> None:
        self._cluster, self._clock, self._deadline = cluster, clock, deadline
        self._count = 0
        self._was_late = False

    @property
    def may_go_on(self) -> bool:
        """Whether to append, for the first time or again."""
        in_time = self._clock.monotonic() < self._deadline
        return in_time or not self._count or (self._was_late and self._count < APPENDS_MIN)

    def begin(self) -> None:
        """Count the append that follows. Only one that came too late lets another follow after the deadline."""
        self._count += 1
        self._was_late = False

    async def came_late(self) -> None:
        """Pause after an append that another change preceded; for another time on each agent."""
        self._was_late = True
        apart = 0.5 + self._cluster.node_id * 0.618 % 1
        await self._clock.sleep(PAUSE_SECONDS * apart * min(self._count - 1, 10))


class Verdict(NamedTuple):
    """The result of a whole change; `code` is ErrorCode.none if it was applied."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None

    @classmethod
    def failed(cls, error: HeadraceError) -> Verdict:
        """Return the answer to an admin request that met this error."""
        return cls(ErrorCode(admin_error(error)), str(error))


class Waits(NamedTuple):
    """A change is not made yet: what it waits for, and the pause before it is judged again."""

    reason: str
    seconds: float


Plan = TypeVar("Plan")
Judge = Callable[[MetadataImage, Plan | None], Awaitable[Plan | Verdict]]
"""Returns what to do, or the result of what is not to be done. The plan that it is given has an unknown outcome."""
Act = Callable[[MetadataImage, Plan], Awaitable[bool | Waits]]
"""Returns whether the change was made; False: the log changed meanwhile."""


async def change_log(
    cluster: ClusterView, clock: Clock, judge: Judge[Plan], act: Act[Plan], deadline: float
) -> Verdict:
    """Judge on the newest image and act, until that is done, refused or late: after `deadline` of the clock's
    monotonic(), and APPENDS_MIN times at least if others came first.

    A change that was made is in the cluster's image when this returns. Errors but a lost response are raised.
    """
    in_doubt: Plan | None = None
    appends = Appends(cluster, clock, deadline)
    while True:
        image = await cluster.catch_up()
        plan = await judge(image, in_doubt)
        if isinstance(plan, Verdict):
            return plan
        late = LOG_KEPT_CHANGING
        try:
            appends.begin()
            progress = await act(image, plan)
            if progress is True:
                await cluster.catch_up()
                return Verdict()
            if isinstance(progress, Waits):
                late = progress.reason
                await clock.sleep(progress.seconds)
            else:
                await appends.came_late()
        except OutcomeUnknownError:
            in_doubt = plan
        if not appends.may_go_on:
            return Verdict(ErrorCode.request_timed_out, late)


class _Records(NamedTuple):
    """Records, and the offset at which they are appended."""

    offset: int
    records: Sequence[MetadataRecord]


@dataclass(frozen=True, slots=True)
class LogChange:
    """Appends through the metastore."""

    cluster: ClusterView
    api: ClusterApi
    clock: Clock

    async def append(self, judge: Callable[[MetadataImage], Sequence[MetadataRecord]], deadline: float) -> Verdict:
        """Append the records that `judge` returns for the newest image; `deadline` in seconds of the clock's
        monotonic().

        `judge` is called again for each newer image and must not raise; its last call counts.
        """

        async def decide(image: MetadataImage, in_doubt: _Records | None) -> _Records | Verdict:
            if in_doubt is not None and await self._stands(*in_doubt):
                return Verdict()
            records = judge(image)
            return _Records(image.offset, records) if records else Verdict()

        async def append(_: MetadataImage, planned: _Records) -> bool:
            return await self.api.append_records(*planned)

        try:
            return await change_log(self.cluster, self.clock, decide, append, deadline)
        except HeadraceError as error:
            return Verdict.failed(error)

    async def _stands(self, offset: int, records: Sequence[MetadataRecord]) -> bool:
        return await self.api.read_metadata(offset, len(records)) == [encode_record(record) for record in records]
