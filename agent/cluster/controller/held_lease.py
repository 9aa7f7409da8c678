"""The controller lease as a process knows it: noted by controller.py, read by what acts only while it is held.

Place: made with the process, before its controller and its agent, so that both have it from the start.
Invariant: a process considers itself active only until its lease, counted from before the request was sent, has
expired. A process without a controller never holds one.
"""

from __future__ import annotations

from headrace.metastore.api.controller import ControllerLease
from headrace.storage.clock import Clock


class HeldLease:
    """Of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lease: ControllerLease | None = None
        """As of the last round; another process may hold it."""
        self._active_until = 0.0

    def take(self, lease: ControllerLease | None, until: float) -> None:
        """Note who holds the lease, and until when (seconds, monotonic) none can have taken it over."""
        self.lease, self._active_until = lease, until

    def is_active(self) -> bool:
        """Whether this process holds it, and no other controller can have taken over yet."""
        return self.lease is not None and self.lease.is_own and self._clock.monotonic() < self._active_until

    @property
    def controller_id(self) -> int:
        """The active controller's node id as of the last round; -1 if unknown."""
        return -1 if self.lease is None else self.lease.controller_id
