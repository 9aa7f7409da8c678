"""Puts the rule of an API before its handler.

Place: around the handlers that agent/apis/api_row.py registers.
Invariant: an API without a rule has no row, so it is not registered, also while ACLs are not enforced. If they are
not, a handler is registered as it is, and costs nothing more. Requests of other agents are not wrapped: their handlers
check the cluster's secret. A request that another agent forwards has its client's principal and address, and is
judged here again, by this agent's image.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace.agent.access.authorization.ask import GatedRequest
from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.rule import Rule
from headrace.protocol.request import Request, RequestHandler, Response


def gate(authorizer: Authorizer, rule: Rule, handler: RequestHandler) -> RequestHandler:
    """The handler behind the rule of its API."""
    serve = rule.serve
    if serve is None or not authorizer.is_on:
        return handler

    def gated(request: Request) -> Awaitable[Response]:
        access = authorizer.access(request.connection)
        if access.is_full:
            return handler(request)
        return serve(GatedRequest(authorizer, request, handler, access))

    return gated
