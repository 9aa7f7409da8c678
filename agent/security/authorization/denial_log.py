"""Counts denials, and hands them to the audit log.

Place: called by authorizer.py for each denial.
Invariant: the same denial reaches the audit log once a minute at most, however often a client repeats it, with the
number of all since the last time. All of them are counted.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.cluster.view import ClusterView
from headrace.agent.security.audit import AuditLog
from headrace.agent.security.authorization.authorizer import Authorizer, Denial
from headrace.config.settings import Settings
from headrace.protocol.api_names import api_name
from headrace.protocol.request import Request
from headrace.storage.clock import Clock

AGAIN_SECONDS = 60.0
KNOWN_MAX = 10_000
"""Denials that are remembered; beyond it all are forgotten, and written again."""


class DenialLog:
    """For one agent."""

    def __init__(self, clock: Clock, registry: CollectorRegistry, audit: AuditLog) -> None:
        self._clock, self._audit = clock, audit
        self._known: dict[Denial, tuple[float, int]] = {}
        """When it was written, and how often it was not since."""
        self._count = Counter(
            "headrace_authorization_denied",
            "Operations that ACLs did not allow, by API and operation.",
            ["api", "operation"],
            registry=registry,
        )

    def __call__(self, request: Request, denial: Denial) -> None:
        self._count.labels(api_name(denial.api_key), denial.operation.name).inc()
        now = self._clock.monotonic()
        written_at, left_out = self._known.get(denial, (-AGAIN_SECONDS, 0))
        if now - written_at < AGAIN_SECONDS:
            self._known[denial] = (written_at, left_out + 1)
            return
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[denial] = (now, 0)
        resource = f"{denial.resource_type.name}:{denial.resource_name}"
        self._audit.denied(request, denial.operation.name, resource, count=left_out + 1)


def reporting_authorizer(
    settings: Settings, view: ClusterView, clock: Clock, registry: CollectorRegistry, audit: AuditLog
) -> Authorizer:
    """An authorizer that counts and writes down what it denies, with the ACLs of the view's present image."""
    authorizer = Authorizer(settings, view)
    authorizer.refresh()
    authorizer.on_denied.append(DenialLog(clock, registry, audit))
    return authorizer
