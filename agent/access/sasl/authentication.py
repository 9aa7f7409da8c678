"""SaslHandshake (key 17) and SaslAuthenticate (36), and what is served before and after them.

Place: between the listener and the dispatcher, on every connection of a listener with SASL.
Invariant: before a client has authenticated, only ApiVersions, SaslHandshake and SaslAuthenticate are served. After a
failed authentication a connection is of no further use, so each guess costs a connection and the delay. An
authentication ends with its time, with the delegation token, and when the user's credential changes.
After SaslHandshake 0 (clients before Kafka 1.0) messages are frames without headers: connection.py makes a request of
each. Source: KIP-43 (tokens), KIP-152 (SaslAuthenticate), KIP-368 (re-authentication).
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, Counter

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed, SaslExchange
from headrace.agent.access.sasl.oauthbearer import OauthBearerExchange
from headrace.agent.access.sasl.passwords import Credentials, PlainExchange, ScramExchange
from headrace.agent.cluster.view import catch_up_briefly
from headrace.agent.peers.channel import BETWEEN_AGENTS
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.scram_keys import MECHANISMS
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import ClientConnection, CloseConnection, Request, RequestHandler, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock
from headrace.storage.repetition import LIMITED, Repetitions

logger = logging.getLogger(__name__)

_BEFORE = frozenset({int(ApiKey.API_VERSIONS), int(ApiKey.SASL_HANDSHAKE), int(ApiKey.SASL_AUTHENTICATE)})
_UNCHECKED = _BEFORE | BETWEEN_AGENTS
_NONCE_BITS = 192
FAILURES_PER_MINUTE = 50
"""Log lines about failures: one per address and user, and so many of all. The audit log has more."""
_REFUSED = "Authentication failed: invalid credentials"
"""All that a client gets to know."""
INTERVAL_SECONDS = 0.1
"""Time between two reads of the log. Clients log in rarely, and only those that come together wait for so long."""


@dataclass(slots=True)
class SaslState:
    """State of SASL on one connection."""

    mechanism: str = ""
    exchange: SaslExchange | None = None
    authenticated: Authenticated | None = None
    ends_at: float | None = None
    """The end of the session, by the monotonic clock."""
    has_failed: bool = False


class Authentication:
    """Authentication for the listeners of one agent; `securities` by their names."""

    def __init__(
        self,
        securities: Mapping[str, ListenerSecurity],
        credentials: Credentials,
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry,
        audit: AuditLog,
        catch_up: Callable[[], Awaitable[MetadataImage]],
    ) -> None:
        """`rng` draws nonces, which must not be guessed. `catch_up`: with the metadata log."""
        self._securities, self._credentials, self._clock, self._rng = securities, credentials, clock, rng
        self._audit, self._log = audit, NewestLog(catch_up, clock)
        self._unexpected, self._failures = Repetitions(), Repetitions()
        self._all_failures = Repetitions(lines=FAILURES_PER_MINUTE)
        self._count = Counter(
            "headrace_authentications",
            "Authentications by SASL that ended, by listener, mechanism and result.",
            ["listener", "mechanism", "result"],
            registry=registry,
        )

    def gate(self, handle: RequestHandler) -> RequestHandler:
        """`handle` for requests of clients that are authenticated where they must be; CloseConnection for others."""

        def gated(request: Request) -> Awaitable[Response]:
            connection = request.connection
            if connection.must_authenticate and request.api_key not in _UNCHECKED:
                self._check(connection)
            return handle(request)

        return gated

    async def handshake(self, request: Request) -> Response:
        """Choose a mechanism."""
        schema, entity = decode(request)
        security = self._securities.get(request.connection.listener)
        if not request.connection.must_authenticate or security is None:
            self._report_unexpected(request)
            return reply(request, schema.response(error_code=ErrorCode.illegal_sasl_state, mechanisms=()))
        state = _state(request.connection)
        code = ErrorCode.none
        if entity.mechanism not in security.mechanisms:
            code = ErrorCode.unsupported_sasl_mechanism
        elif state.authenticated is not None and (entity.mechanism != state.mechanism or request.api_version == 0):
            code = (
                ErrorCode.illegal_sasl_state
            )  # KIP-368: the mechanism stays the same, and version 0 has no second one
        else:
            await self._log.see()  # for each mechanism: how long it takes says nothing about a user
            state.mechanism = entity.mechanism
            state.exchange = self._exchange(entity.mechanism, security)
            request.connection.sends_tokens = request.api_version == 0 and not state.has_failed
        return reply(request, schema.response(error_code=code, mechanisms=security.mechanisms))

    def _report_unexpected(self, request: Request) -> None:
        connection = request.connection
        address = connection.peer.rpartition(":")[0]
        left_out = self._unexpected.left_out((address, connection.listener), self._clock.monotonic())
        if left_out is not None:
            logger.warning(
                "sasl refused: peer=%s client_id=%s listener=%s left_out=%d reason=clients of this listener do not"
                " authenticate: use a listener with SASL_PLAINTEXT or SASL_SSL",
                connection.peer,
                shown(request.client_id),
                connection.listener,
                left_out,
                extra=LIMITED,
            )

    async def authenticate(self, request: Request) -> Response:
        """One message of the mechanism."""
        if request.connection.sends_tokens:
            return await self._token(request)
        schema, entity = decode(request)
        state = _state(request.connection)
        if state.has_failed:
            raise CloseConnection("authentication failed before")
        code, answer = ErrorCode.illegal_sasl_state, b""
        message: str | None = "SaslHandshake comes first"
        lifetime_ms = 0
        if state.exchange is not None:
            code, message = ErrorCode.none, None
            try:
                step = await state.exchange.step(bytes(entity.auth_bytes))
                answer = step if isinstance(step, bytes) else step.answer
                if isinstance(step, Authenticated):
                    lifetime_ms = self._succeeded(request.connection, state, step)
            except AuthenticationFailed as error:
                await self._failed(request, state, error)
                code, message, answer = ErrorCode.sasl_authentication_failed, _REFUSED, b""
        response = schema.response(
            error_code=code,
            error_message=message,
            auth_bytes=answer,
            session_lifetime=datetime.timedelta(milliseconds=lifetime_ms),
        )
        return reply(request, response)

    async def _token(self, request: Request) -> Response:
        """One message without a frame of Kafka's: there are no error codes, a failure closes the connection."""
        connection, state = request.connection, _state(request.connection)
        assert state.exchange is not None, "SaslHandshake 0 made it"
        try:
            step = await state.exchange.step(bytes(request.body))
            if isinstance(step, Authenticated):
                self._succeeded(connection, state, step)
        except AuthenticationFailed as error:
            await self._failed(request, state, error)
            raise CloseConnection("authentication failed") from error
        connection.sends_tokens = state.exchange is not None
        return Response([step if isinstance(step, bytes) else step.answer])

    def _exchange(self, mechanism: str, security: ListenerSecurity) -> SaslExchange:
        if mechanism in MECHANISMS:
            nonce = f"{self._rng.getrandbits(_NONCE_BITS):x}"
            return ScramExchange(mechanism, self._credentials, nonce)
        if mechanism == "PLAIN":
            return PlainExchange(self._credentials)
        assert security.token_keys is not None, "config/listeners.py refuses OAUTHBEARER without keys"
        return OauthBearerExchange(security.settings, security.token_keys, self._clock)

    def _succeeded(self, connection: ClientConnection, state: SaslState, result: Authenticated) -> int:
        """Return how long it is valid, in ms; 0: without an end. AuthenticationFailed if the principal is another
        one.
        """
        if connection.principal not in (None, result.principal):
            raise AuthenticationFailed("the principal changed at re-authentication")
        settings = self._securities[connection.listener].settings
        ends = [settings.connections_max_reauth_ms] if settings.connections_max_reauth_ms else []
        if result.expires_ms is not None:
            ends.append(max(1, result.expires_ms - self._clock.wall_ms()))
        lifetime_ms = min(ends, default=0)
        state.ends_at = self._clock.monotonic() + lifetime_ms / 1000 if lifetime_ms else None
        state.authenticated, state.exchange = result, None
        connection.principal, connection.is_by_token = result.principal, result.token_id is not None
        self._count.labels(connection.listener, state.mechanism, "succeeded").inc()
        return lifetime_ms

    async def _failed(self, request: Request, state: SaslState, error: AuthenticationFailed) -> None:
        connection, user = request.connection, "" if state.exchange is None else state.exchange.user
        state.has_failed, state.exchange = True, None
        self._count.labels(connection.listener, state.mechanism, "failed").inc()
        self._log_failure(request, state.mechanism, user, error)
        self._audit.failed_authentication(connection, request.client_id, state.mechanism, error, user)
        delay_ms = self._securities[connection.listener].settings.connection_failed_authentication_delay_ms
        await self._clock.sleep(delay_ms / 1000)

    def _log_failure(self, request: Request, mechanism: str, user: str, error: AuthenticationFailed) -> None:
        connection, now = request.connection, self._clock.monotonic()
        address, name = connection.peer.rpartition(":")[0], shown(user)
        left_out = self._failures.left_out((address, connection.listener, mechanism, name), now)
        if left_out is not None and self._all_failures.left_out("", now) is not None:
            logger.warning(
                "authentication failed: listener=%s mechanism=%s user=%r peer=%s client_id=%r left_out=%d reason=%s",
                connection.listener,
                mechanism,
                name,
                connection.peer,
                shown(request.client_id),
                left_out,
                error,
                extra=LIMITED,
            )

    def _check(self, connection: ClientConnection) -> None:
        """CloseConnection unless the client is authenticated, still."""
        state = _state(connection)
        if state.authenticated is None or state.has_failed:
            raise CloseConnection("not authenticated")
        if state.ends_at is not None and self._clock.monotonic() > state.ends_at:
            raise CloseConnection("authentication has ended: the client did not authenticate again")
        if not self._credentials.holds(state.authenticated):
            raise CloseConnection("the credential was changed or removed")


def _state(connection: ClientConnection) -> SaslState:
    if connection.sasl is None:
        connection.sasl = SaslState()
    state: SaslState = connection.sasl
    return state


class NewestLog:
    """The metadata log, read before a login: users, passwords and tokens that another agent has just stored.

    One per agent. A login waits for a read that begins after its handshake arrived, but not longer than
    catch_up_briefly does. A client needs no password for a handshake and can repeat it, so the reads of one agent begin
    at least INTERVAL_SECONDS apart: the logins that wait share the next one.
    """

    def __init__(self, catch_up: Callable[[], Awaitable[MetadataImage]], clock: Clock) -> None:
        """`catch_up`: with the metadata log."""
        self._catch_up, self._clock = catch_up, clock
        self._next: asyncio.Task[None] | None = None
        """A read that has not begun."""
        self._may_begin_at = -math.inf

    async def see(self) -> None:
        """Return when the image has what was in the log before this call, or the metastore does not answer."""
        if self._next is None:
            self._next = asyncio.create_task(self._read())
        await asyncio.shield(self._next)

    async def _read(self) -> None:
        await self._clock.sleep(self._may_begin_at - self._clock.monotonic())
        self._next, self._may_begin_at = None, self._clock.monotonic() + INTERVAL_SECONDS
        error = await catch_up_briefly(self._catch_up, self._clock)
        if error is not None:
            logger.warning("authentication without the log's head: error=%s", error)
