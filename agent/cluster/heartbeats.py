"""What the answers to an agent's heartbeats show: whether it is heard, whether there is an active controller.

Place: noted by membership.py. HeartbeatHealth is made with the process, before its agent, and read from any thread,
so that readiness and other agents' questions can ask. ControllerWatch warns if there is no active controller: agents
serve without one, but then silent agents are not fenced, reassignments not completed and background work not
scheduled.
Invariant: a heartbeat without an answer counts as failed after PATIENCE_SECONDS, while it is still under way.
There is one warning per absence of controllers that is longer than a session timeout, one log line when it ends; a
standby takes over long before that.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Gauge

from headrace.storage.clock import Clock
from headrace.storage.dependency import PATIENCE_SECONDS

logger = logging.getLogger(__name__)

NOBODY = -1


class ControllerWatch:
    """Gets the answer to every heartbeat."""

    def __init__(self, clock: Clock, patience_seconds: float, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._absent_since: float | None = None
        self._warned = False
        self._gauge = Gauge(
            "headrace_active_controller_id",
            "Node id of the active controller at this agent's last heartbeat; -1: none",
            registry=registry,
        )
        self._gauge.set(NOBODY)

    def observe(self, controller_id: int) -> None:
        """The active controller's node id in a heartbeat's answer; -1 if there is none."""
        self._gauge.set(controller_id)
        if controller_id != NOBODY:
            if self._warned:
                logger.info("active controller found again: controller=%d", controller_id)
            self._absent_since, self._warned = None, False
            return
        now = self._clock.monotonic()
        if self._absent_since is None:
            self._absent_since = now
        elif not self._warned and now - self._absent_since >= self._patience_seconds:
            self._warned = True
            logger.warning(
                "no active controller, silent agents are not fenced: seconds=%.0f; does any process have the role?",
                now - self._absent_since,
            )


class HeartbeatHealth:
    """The heartbeats of one process; one without an agent sends none, and none fail."""

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
