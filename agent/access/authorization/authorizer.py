"""Decides what a client may do, by the newest metadata image; denials are counted, logged, audited.

Place: made once by each listener's owner (agent/serve/broker.py, agent/serve/controller_role.py); asked for each
request. DenialLog counts each denial, writes it to the log, and hands it to the audit log.
Invariant: a decision uses the ACLs of the agent's newest image. So a changed ACL acts on an agent as soon as that
agent has read the metadata log so far, also on open connections. A client without a principal is User:ANONYMOUS. The
same denial reaches the logs once a minute at most, however often a client repeats it, with the number of all since
the last time. All of them are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.access import (
    EMPTY,
    FULL_ACCESS,
    Access,
    AclAccess,
    Subject,
    canonical_host,
    new_decisions,
)
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.cluster.view import ClusterView
from headrace.config.settings import Settings
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.own_requests import api_name
from headrace.protocol.request import ANONYMOUS, ClientConnection, Request
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.repetition import Repetitions

logger = logging.getLogger(__name__)

SUBJECTS_MAX = 10_000
"""The number of principals with addresses for which decisions are kept; beyond this all are dropped."""


class Denial(NamedTuple):
    """One operation that a client was not allowed. `api_key` of its request; `listener` on which it came in."""

    principal: str
    host: str
    listener: str
    operation: AclOperation
    resource_type: AclResource
    resource_name: str
    api_key: int
    client_id: str | None


class Authorizer:
    """Enforces ACLs if `authorizer.class.name` says so. For one event loop."""

    def __init__(self, settings: Settings, view: ClusterView) -> None:
        self.is_on = bool(settings.authorizer_class_name)
        self.on_denied: list[Callable[[Request, Denial], None]] = []
        """Called for each denial."""
        self._view = view
        self._super_users = frozenset(filter(None, settings.super_users.split(";")))
        self._allowed_without_acl = settings.allow_everyone_if_no_acl_found
        self._index = EMPTY
        self._by_subject: dict[Subject, AclAccess] = {}
        self.decisions = new_decisions()
        """Of all subjects, by the present index."""

    @property
    def enforced(self) -> Authorizer | None:
        """Itself; None if ACLs are not enforced."""
        return self if self.is_on else None

    def image(self) -> MetadataImage:
        """The newest one."""
        return self._view.image

    async def catch_up(self) -> None:
        """Bring the image to the end of the metadata log, if that can be read."""
        try:
            await self._view.catch_up()
        except HeadraceError as error:
            logger.warning("topics not looked up for authorization: error=%s", error)

    def access(self, connection: ClientConnection) -> Access:
        """Return what the client may do now."""
        if not self.is_on:
            return FULL_ACCESS
        acls = self._view.image.access_controls
        known = connection.access
        if known is not None and known[0] is acls and known[1] == connection.principal:
            found: Access = known[2]
            return found
        found = self.of(connection.principal or ANONYMOUS, connection.peer.rpartition(":")[0])
        connection.access = (acls, connection.principal, found)
        return found

    def of(self, principal: str, host: str) -> Access:
        """Return what the principal may do from the address."""
        if not self.is_on or principal in self._super_users:
            return FULL_ACCESS
        self.refresh()
        subject = Subject(principal, canonical_host(host))
        found = self._by_subject.get(subject)
        if found is None:
            if len(self._by_subject) >= SUBJECTS_MAX:
                self._by_subject.clear()
                self.decisions.clear()
            found = AclAccess(
                self._index, subject, allowed_without_acl=self._allowed_without_acl, decisions=self.decisions
            )
            self._by_subject[subject] = found
        return found

    def refresh(self) -> None:
        """Index the ACLs of the newest image, if they changed: 1 ms for a change among 10,000."""
        acls = self._view.image.access_controls
        if self.is_on and acls is not self._index.acls:
            self._index, self._by_subject = self._index.changed(acls), {}
            self.decisions.clear()

    def require(
        self, request: Request, operation: AclOperation, resource_type: AclResource, name: str = CLUSTER_NAME
    ) -> bool:
        """Return whether the client may do this; a denial is reported."""
        if self.access(request.connection).allows(operation, resource_type, name):
            return True
        self.denied(request, operation, resource_type, name)
        return False

    def denied(
        self, request: Request, operation: AclOperation, resource_type: AclResource, name: str = CLUSTER_NAME
    ) -> None:
        """Report what a client was refused."""
        connection = request.connection
        denial = Denial(
            connection.principal or ANONYMOUS,
            connection.peer.rpartition(":")[0],
            connection.listener,
            operation,
            resource_type,
            name,
            request.api_key,
            request.client_id,
        )
        for report in self.on_denied:
            report(request, denial)


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
