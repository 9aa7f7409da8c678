"""Warns if there is no active controller, according to the answers to this agent's heartbeats.

Place: used by agent/cluster/membership.py. Agents serve without a controller, but then silent agents are not fenced,
reassignments not completed and background work not scheduled: operators should know.
Invariant: one warning per absence that is longer than a session timeout, one log line when it ends; a standby
takes over long before that.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Gauge

from headrace.storage.clock import Clock

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
