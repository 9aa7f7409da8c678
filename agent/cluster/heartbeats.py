"""Whether an agent's heartbeats are answered: noted by membership.py, read by its process from any thread.

Place: made with the process, before its agent, so that readiness and other agents' questions can ask.
Invariant: a heartbeat without an answer counts as failed after PATIENCE_SECONDS, while it is still under way.
"""

from __future__ import annotations

from headrace.storage.clock import Clock
from headrace.storage.dependency import PATIENCE_SECONDS


class HeartbeatHealth:
    """Of one process; one without an agent sends none, and none fail."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_at: float | None = None
        """When the heartbeat that is under way was sent."""
        self._error: str | None = None
        """The error of the newest heartbeat that ended."""

    def sent(self, at: float) -> None:
        """A heartbeat is under way since `at` (seconds, monotonic)."""
        self._sent_at = at

    def ended(self) -> None:
        """None is under way."""
        self._sent_at = None

    def judged(self, error: str | None) -> None:
        """The newest one was answered, or failed by this error."""
        self._error = error

    def failure(self) -> str | None:
        """Return why the newest heartbeat failed, or has no answer; None if it was answered. Runs on any thread."""
        sent_at = self._sent_at
        if sent_at is not None and self._clock.monotonic() - sent_at >= PATIENCE_SECONDS:
            return self._error or "a heartbeat has no answer"
        return self._error
