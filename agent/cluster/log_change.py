"""Changes of the metadata log that requests ask for: judged on an image, made only if the log still ends there.

Place: used by admin requests. `change_log` is the loop of all of them; LogChange appends records for those that have no
specific operation in the metastore.
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
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import encode_record
from headrace.protocol.errors import admin_error
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, OutcomeUnknownError

PATIENCE_SECONDS = 15.0
"""Limit in seconds of requests without a timeout field."""
LOG_KEPT_CHANGING = "the metadata log kept changing, or its answers were lost"


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
    """Judge on the newest image and act, until that is done, refused or late; `deadline` of the clock's monotonic().

    A change that was made is in the cluster's image when this returns. Errors but a lost response are raised.
    """
    in_doubt: Plan | None = None
    while True:
        image = await cluster.catch_up()
        plan = await judge(image, in_doubt)
        if isinstance(plan, Verdict):
            return plan
        late = LOG_KEPT_CHANGING
        try:
            progress = await act(image, plan)
            if progress is True:
                await cluster.catch_up()
                return Verdict()
            if isinstance(progress, Waits):
                late = progress.reason
                await clock.sleep(progress.seconds)
        except OutcomeUnknownError:
            in_doubt = plan
        if clock.monotonic() >= deadline:
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
