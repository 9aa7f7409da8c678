"""The form of an agent's row of an API: its handler, who may ask, what the audit log says, and where it is served.

Place: the other modules of agent/apis are made of rows; protocol/api_versions.py has the row of the same API's
versions.
Invariant: a handler is registered behind its rule and its audit lines, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.audited_changes import Changes, audited
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.gate import gate
from headrace.agent.access.authorization.rule import Rule
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.peers.forwarding.routes import Route
from headrace.protocol.request import RequestHandler

P = TypeVar("P", contravariant=True)
Wrap = Callable[[Route | None, RequestHandler], RequestHandler]
"""Puts forwarding before a handler."""


@dataclass(frozen=True)
class ApiRow(Generic[P]):
    """One API as an agent serves it. `P`: what its handler is made of."""

    handler: Callable[[P], RequestHandler]
    rule: Rule
    changes: Changes | None = None
    """Lines of the audit log; None for an API that changes nothing that an administrator looks after."""
    route: Route | None = None
    """The rule that chooses the agent, if the clients see all agents as one; None: any."""
    is_advertised: bool = True
    """It is in ApiVersions. Others are for the tools of Headrace."""


def register_rows(
    dispatcher: Dispatcher,
    rows: Mapping[int, ApiRow[P]],
    parts: P,
    authorizer: Authorizer,
    audit: AuditLog,
    forward: Wrap = lambda route, handler: handler,
) -> None:
    """Make the handlers, and serve them."""
    for api_key, row in rows.items():
        register = dispatcher.register if row.is_advertised else dispatcher.register_unadvertised
        served = audited(row.changes, forward(row.route, row.handler(parts)), audit)
        register(api_key, gate(authorizer, row.rule, served))


def routes_of(rows: Mapping[int, ApiRow[P]]) -> dict[int, Route]:
    """List the APIs that other agents may serve, each with its route."""
    return {api_key: row.route for api_key, row in rows.items() if row.route is not None}


def unadvertised(row: ApiRow[P]) -> ApiRow[P]:
    """The same row, served and not named in ApiVersions."""
    return replace(row, is_advertised=False)
