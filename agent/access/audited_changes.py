"""Audits administrative requests: one line per resource that a request changed, or was refused to change.

Place: around the handlers that agent/apis/api_row.py registers. The rows of agent/apis name the functions that find the
changes in a request and its response.
Invariant: what a handler answers passes unchanged. A request that another agent forwarded is audited there, with its
client's connection, and not a second time. Names of configs are in the log, values are not. A check without a change
(validate_only) is no line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.access.audit import AuditLog
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.protocol.typed import decode, entity_of

LINES_AT_ONCE = 100
"""Then other tasks have a turn."""


class Change(NamedTuple):
    """What became of one resource. `detail`: what of it, without values."""

    resource: str
    error_code: int
    detail: str | None = None


Changes = Callable[[Request, Response], Iterable[Change]]


def of_entities(find: Callable[[Any, Any], Iterable[Change]]) -> Changes:
    """Changes found in the entities of a request and its response."""

    def found(request: Request, response: Response) -> Iterable[Change]:
        _, asked = decode(request)
        answer = entity_of(request, response)
        return () if getattr(asked, "validate_only", False) or answer is None else find(asked, answer)

    return found


def audited(changes: Changes | None, handler: RequestHandler, audit: AuditLog) -> RequestHandler:
    """The handler, with its changes in the audit log; the same handler for None, an API that changes nothing."""
    return handler if changes is None else _wrapped(handler, audit, changes)


def _wrapped(handler: RequestHandler, audit: AuditLog, find: Changes) -> RequestHandler:
    async def handle(request: Request) -> Response:
        response = await handler(request)
        if not request.connection.is_forwarded:
            for number, change in enumerate(find(request, response)):
                if number % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                    await asyncio.sleep(0)
                audit.changed(request, change.resource, _error(change.error_code), change.detail)
        return response

    return handle


_NAMES: dict[int, str] = {each.value: each.name.upper() for each in ErrorCode}


def _error(code: int) -> str | None:
    return None if code == ErrorCode.none else _NAMES.get(code, str(code))
