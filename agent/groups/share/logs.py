"""What the owner of a share group has to know of the logs, as agent/fetch/share/log_ends.py tells it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from kio.schema.errors import ErrorCode

from headrace.metastore.api.read import ReadableEnds
from headrace.storage.clock import Clock


class ShareWaiter(Protocol):
    """One turn that waits for records."""

    def reset(self) -> None:
        """Forget the news so far: the caller looks next."""

    def hear(self, new_bytes: int) -> None:
        """Something arrived, or became available."""

    async def wait(self, needed_bytes: int, clock: Clock, seconds: float) -> None:
        """Return after news since `reset`, or after `seconds`."""


class ShareLogs(Protocol):
    """The logs as this agent knows them: an end may be behind the primary's, never ahead."""

    @property
    def is_draining(self) -> bool:
        """Whether nothing should wait any more."""

    async def ends(self, offsets: Mapping[int, int], *, committed: bool) -> dict[int, ReadableEnds | ErrorCode]:
        """Partition key -> its ends, or why they are not known. `offsets`: where the group's records end."""

    async def beginnings(self, keys: Collection[int], reset: str) -> dict[int, int]:
        """Partition key -> the offset at which a group begins, by share.auto.offset.reset; those that are gone are left
        out. HeadraceError if it is not known.
        """

    async def high_watermarks(self, keys: Collection[int]) -> dict[int, int]:
        """Partition key -> its high watermark as the primary has it; those that are gone are left out. HeadraceError if
        it is not known.
        """

    def watch(self, keys: Collection[int]) -> AbstractContextManager[ShareWaiter]:
        """A waiter that hears of new records in these partitions."""
