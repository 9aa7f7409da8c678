"""Whether there is an active controller, as an agent's heartbeats are told.

Place: beside agent/cluster/membership.py. Agents serve without a controller, but nobody then fences the
silent, completes reassignments or schedules background work: somebody should know.
Invariant: one warning per absence that outlasts a session timeout, one line when it ends; a standby
takes over long before that. If the process dies here nothing is lost.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Gauge

from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

NOBODY = -1


class ControllerWatch:
    """Told by every heartbeat's answer."""

    def __init__(self, clock: Clock, patience_seconds: float, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._absent_since: float | None = None
        self._warned = False
        self._gauge = Gauge(
            "headrace_active_controller_id",
            "Node id of the active controller as of this agent's last heartbeat; -1 while there is none:"
            " then nobody fences the silent",
            registry=registry,
        )
        self._gauge.set(NOBODY)

    def told(self, controller_id: int) -> None:
        """The active controller's node id as a heartbeat's answer has it; -1 while there is none."""
        self._gauge.set(controller_id)
        if controller_id != NOBODY:
            if self._warned:
                logger.info("there is an active controller again: controller=%d", controller_id)
            self._absent_since, self._warned = None, False
            return
        now = self._clock.monotonic()
        if self._absent_since is None:
            self._absent_since = now
        elif not self._warned and now - self._absent_since >= self._patience_seconds:
            self._warned = True
            logger.warning(
                "no active controller, so nobody fences silent agents: seconds=%.0f; does any process have the role?",
                now - self._absent_since,
            )
