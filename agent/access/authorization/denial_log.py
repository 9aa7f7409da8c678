"""Counts denials, writes them to the log, and hands them to the audit log.

Place: called by authorizer.py for each denial.
Invariant: the same denial reaches the logs once a minute at most, however often a client repeats it, with the
number of all since the last time. All of them are counted.
"""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.authorizer import Authorizer, Denial
from headrace.agent.cluster.view import ClusterView
from headrace.config.settings import Settings
from headrace.protocol.own_requests import api_name
from headrace.protocol.request import ANONYMOUS, Request
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock
from headrace.storage.repetition import Repetitions

logger = logging.getLogger(__name__)


class DenialLog:
    """Denial log for one agent."""

    def __init__(self, clock: Clock, registry: CollectorRegistry, audit: AuditLog) -> None:
        self._clock, self._audit = clock, audit
        self._denials = Repetitions()
        self._count = Counter(
            "headrace_authorization_denied",
            "Operations that ACLs did not allow, by API and operation.",
            ["api", "operation"],
            registry=registry,
        )

    def __call__(self, request: Request, denial: Denial) -> None:
        self._count.labels(api_name(denial.api_key), denial.operation.name).inc()
        left_out = self._denials.left_out(denial, self._clock.monotonic())
        if left_out is None:
            return
        resource = f"{denial.resource_type.name}:{denial.resource_name}"
        logger.warning(  # without LIMITED: a client may invent any number of names
            "denied: principal=%s operation=%s resource=%s api=%s client_id=%r count=%d",
            request.connection.principal or ANONYMOUS,
            denial.operation.name,
            shown(resource),
            api_name(denial.api_key),
            shown(request.client_id),
            left_out + 1,
        )
        self._audit.denied(request, denial.operation.name, resource, count=left_out + 1)


def reporting_authorizer(
    settings: Settings, view: ClusterView, clock: Clock, registry: CollectorRegistry, audit: AuditLog
) -> Authorizer:
    """An authorizer that counts and writes down what it denies, with the ACLs of the view's present image."""
    authorizer = Authorizer(settings, view)
    authorizer.refresh()
    authorizer.on_denied.append(DenialLog(clock, registry, audit))
    return authorizer
