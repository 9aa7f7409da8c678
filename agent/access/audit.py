"""The audit log: who was refused, who failed to prove who it is, who changed the cluster.

Place: called by the authorizer (`denied`) and by authentication (`failed_authentication`); `audited` is around the
handlers of administrative requests that agent/apis/api_row.py registers. The rows of agent/apis name the functions
that find the changes in a request and its response: one line per resource that a request changed, or was refused to
change.
Invariant: one JSON object per line, and no value in it can forge another line; no value of a config, no password and
no token is in it. Changes are never left out. Denials and failures are limited in number, because clients can cause
any amount of them: the next line says how many were left out.
What a handler answers passes unchanged. A request that another agent forwarded is audited there, with its client's
connection, and not a second time. A check without a change (validate_only) is no line.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter

from headrace.protocol.own_requests import api_name
from headrace.protocol.request import ANONYMOUS, ClientConnection, Request, RequestHandler, Response
from headrace.protocol.typed import decode, entity_of
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock

LOGGER = "headrace.audit"
FAILURES_PER_SECOND = 20.0
"""Lines about denials and failures, in the long run; FAILURES_AT_ONCE of them at once."""
FAILURES_AT_ONCE = 200.0
LONGEST_VALUE = 512
"""Characters of a value that came from a client."""

Write = Callable[[str], None]


class AuditLog:
    """Audit log for one event loop. `write` gets each line; None: the logger `headrace.audit`."""

    def __init__(self, clock: Clock, registry: CollectorRegistry, write: Write | None = None) -> None:
        self._clock = clock
        self._write: Write = write or logging.getLogger(LOGGER).info
        self._left, self._left_at = FAILURES_AT_ONCE, clock.monotonic()
        self._unwritten = 0
        self._lines = Counter(
            "headrace_audit_events",
            "Events of the audit log, also those that it left out.",
            ["event"],
            registry=registry,
        )
        self._omitted = Counter(
            "headrace_audit_omitted", "Denials and failures that were too many for the audit log.", registry=registry
        )

    def denied(self, request: Request, operation: str, resource: str, *, count: int = 1) -> None:
        """The principal may not do this: `operation` as Kafka names it (`READ`), `resource` as `TOPIC:name`.

        `count`: the number of such refusals since the last line about one.
        """
        fields = _of_request(request) | {"operation": operation, "resource": _bounded(resource), "outcome": "denied"}
        self._failure("denied", fields | ({"count": count} if count > 1 else {}))

    def failed_authentication(
        self, connection: ClientConnection, client_id: str | None, mechanism: str, reason: object, user: str = ""
    ) -> None:
        """Report a failed login by SASL, or a certificate that no rule matches (mechanism `SSL`). `reason` has no
        secret. `user`: the name that the client gave, if it did; it proves nothing.
        """
        fields = _of_client(connection, client_id) | {"api": None, "resource": f"LISTENER:{connection.listener}"}
        fields |= {"user": _bounded(user)} if user else {}
        self._failure(
            "authentication", fields | {"mechanism": mechanism, "outcome": "failed", "error": _bounded(str(reason))}
        )

    def changed(self, request: Request, resource: str, error: str | None, detail: str | None = None) -> None:
        """An administrative change was made, or refused with `error`, Kafka's name of it. `detail`: what of the
        resource, without values."""
        fields = _of_request(request) | {"resource": _bounded(resource)}
        if detail:
            fields["detail"] = _bounded(detail)
        outcome = {"outcome": "success"} if error is None else {"outcome": "failed", "error": error}
        self._emit("change", fields | outcome)

    def _failure(self, event: str, fields: dict[str, Any]) -> None:
        now = self._clock.monotonic()
        self._left = min(FAILURES_AT_ONCE, self._left + (now - self._left_at) * FAILURES_PER_SECOND)
        self._left_at = now
        if self._left < 1:
            self._lines.labels(event).inc()
            self._omitted.inc()
            self._unwritten += 1
            return
        self._left -= 1
        self._emit(event, fields)

    def _emit(self, event: str, fields: dict[str, Any]) -> None:
        self._lines.labels(event).inc()
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": at, "event": event, **fields}
        if self._unwritten:
            line["omitted_before"], self._unwritten = self._unwritten, 0
        self._write(json.dumps(line))


def open_audit_log(path: str) -> None:
    """Write the audit log at every log.level, and with a path also to this file, one JSON object per line. The file
    may be moved while it is written (logrotate). OSError if it cannot be opened."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    if path:
        lines = WatchedFileHandler(path, encoding="utf-8")
        lines.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(lines)


def _of_client(connection: ClientConnection, client_id: str | None) -> dict[str, Any]:
    return {
        "principal": _bounded(connection.principal or ANONYMOUS),
        "client_id": None if client_id is None else _bounded(client_id),
        "host": connection.peer.rpartition(":")[0],
        "listener": connection.listener,
    }


def _of_request(request: Request) -> dict[str, Any]:
    return _of_client(request.connection, request.client_id) | {"api": api_name(request.api_key)}


def _bounded(value: str) -> str:
    return shown(value, LONGEST_VALUE)


LINES_AT_ONCE = 100
"""Lines that are written before other tasks have a turn."""


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
    """Return the handler, with its changes in the audit log; unchanged for None, an API that changes nothing."""
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
