"""Decide who may read the pages of the HTTP listener, and its encryption.

Place: around the application of http_app.py; uvicorn calls HttpHandshakes for each connection, in place of the class of
http_server.py, which has the limits.
Invariant: with authentication every path but OPEN_PATHS needs a token of the file, or a certificate that the trust
store's sign; a path that is added later needs one, too. A request is judged before any of its pages runs.
Each connection gets the newest certificates, and open ones are not touched. A connection waits for its client until its
handshake is complete, among the others that do.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import ssl
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.agent.access.tls import FileWatch, ReloadedContext, server_context
from headrace.agent.listener.tls_protocol import TlsProtocol
from headrace.cli.process.http_server import HAS_CERTIFICATE, BoundedConnection, HttpWait
from headrace.config.errors import ConfigError
from headrace.config.security_settings import SecuritySettings
from headrace.config.settings import Settings
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths for probes, which show neither token nor certificate: the answer to them is yes or no, without details."""
MAY_READ = "may_read"
"""Entry of a request's state."""
_BEYOND_SECONDS = 60
"""asyncio's own limit of a handshake, behind that of a wait."""


class BearerTokens:
    """The tokens of a file, read again when it changes. For one event loop."""

    def __init__(self, path: str, clock: Clock) -> None:
        """ConfigError if the file has no token."""
        self._path = path
        self._watch = FileWatch([path], clock)
        self._tokens = self._load()

    def accepts(self, shown: bytes) -> bool:
        """Return whether it is one of them; the time says nothing about how much of it fits."""
        if self._watch.changed():
            try:
                self._tokens = self._load()
            except ConfigError as error:
                logger.error("tokens not reloaded, the earlier ones stay in use: %s", error)
        return any(hmac.compare_digest(token, shown) for token in self._tokens)

    def _load(self) -> list[bytes]:
        try:
            with open(self._path, "rb") as file:
                tokens = [line.strip() for line in file if line.strip()]
        except OSError as error:
            raise ConfigError(f"http.bearer.token.location: {self._path}: {error.strerror}") from error
        if not tokens:
            raise ConfigError(f"http.bearer.token.location: no token in the file: {self._path}")
        return tokens


class HttpSecurity:
    """TLS and authentication of one HTTP listener. ConfigError names a file that cannot be used."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        if settings.http_ssl_truststore_location and not settings.http_ssl_keystore_location:
            raise ConfigError("http.ssl.truststore.location: needs http.ssl.keystore.location")
        self._tokens = self._context = None
        if settings.http_bearer_token_location:
            self._tokens = BearerTokens(settings.http_bearer_token_location, clock)
        if settings.http_ssl_keystore_location:
            self._context = ReloadedContext(_tls_settings(settings), clock, _context)
        self._must_authenticate = bool(self._tokens or settings.http_ssl_truststore_location)

    def guarded(self, app: ASGIApp) -> ASGIApp:
        """`app` for clients that may read; 401 for others."""
        if not self._must_authenticate:
            return app

        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            may_read = scope["type"] == "http" and self._may_read(scope)
            if not may_read and scope.get("path") not in OPEN_PATHS:
                refused = PlainTextResponse("unauthorized\n", 401, {"WWW-Authenticate": "Bearer"})
                await refused(scope, receive, send)
                return
            scope["state"][MAY_READ] = may_read  # for the pages of open paths
            await app(scope, receive, send)

        return guard

    @property
    def authenticates(self) -> bool:
        """Whether clients must show a token or a certificate."""
        return self._must_authenticate

    @property
    def accepts_tokens(self) -> bool:
        """Whether there is a file of tokens."""
        return self._tokens is not None

    def accepts_token(self, token: str) -> bool:
        """Return whether the file has it."""
        return self._tokens is not None and self._tokens.accepts(token.strip().encode())

    def encrypted(self, connection: type[BoundedConnection]) -> Callable[..., asyncio.BaseProtocol]:
        """Return what makes the protocol of a new connection: `connection`, under TLS if there is a key."""
        return connection if self._context is None else HttpHandshakes(connection, self._context)

    def _may_read(self, scope: Scope) -> bool:
        if scope["state"].get(HAS_CERTIFICATE, False):
            return True
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        return self._tokens is not None and scheme.lower() == "bearer" and self._tokens.accepts(token.strip().encode())


def _tls_settings(settings: Settings) -> SecuritySettings:
    """Return settings of TLS as those of a Kafka listener. A client that shows no certificate may still have a
    token, or ask an open path.
    """
    return SecuritySettings(
        ssl_keystore_location=settings.http_ssl_keystore_location,
        ssl_key_password=settings.http_ssl_key_password,
        ssl_truststore_location=settings.http_ssl_truststore_location,
        ssl_client_auth="requested" if settings.http_ssl_truststore_location else "none",
        ssl_enabled_protocols=settings.ssl_enabled_protocols,
        ssl_cipher_suites=settings.ssl_cipher_suites,
    )


def _context(settings: SecuritySettings) -> ssl.SSLContext:
    try:
        return server_context(settings)
    except ConfigError as error:
        raise ConfigError(f"http.{error}") from error


class HttpHandshakes:
    """Connections in their handshake, for one event loop."""

    def __init__(self, connection: type[BoundedConnection], context: ReloadedContext) -> None:
        self._connection, self._context = connection, context

    def __call__(self, **given: Any) -> asyncio.BaseProtocol:
        """Make the protocol of a new connection; `given` is uvicorn's."""
        return _Handshake(self._connection, self._context, given)


class _Handshake(asyncio.Protocol):
    """A connection that was just accepted: TLS allocates nothing for it before it is among those that wait."""

    def __init__(self, connection: type[BoundedConnection], context: ReloadedContext, given: dict[str, Any]) -> None:
        self._connection, self._context, self._given = connection, context, given

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        wait: HttpWait = self._connection.room.wait(transport)
        if transport.is_closing():
            return
        inner = self._connection(**self._given)
        inner.wait = wait
        encrypted = TlsProtocol(inner, self._context.current(), _BEYOND_SECONDS, wait.end)
        encrypted.handshake.add_done_callback(_log_failure)
        transport.set_protocol(encrypted)
        encrypted.connection_made(transport)


def _log_failure(done: asyncio.Future[None]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None:
        logger.debug("tls handshake failed: listener=http reason=%s", error)
