"""TLS contexts from PEM files that may change: for a listener, for connections to other agents.

Place: agent/listener asks for a context for each new connection. FileWatch says whether files changed, also those
with the keys of tokens and the tokens of the HTTP listener: they are renewed while a process runs.
Invariant: the files are looked at when a connection or request comes, at most once a second. A changed file counts
for the next connection, and open ones are not touched. Files that do not fit together are reported, and the context
before them stays in use: half a renewal closes no door.
"""

from __future__ import annotations

import logging
import math
import os
import ssl
from collections.abc import Callable, Sequence

from cryptography import x509

from headrace.config.errors import ConfigError
from headrace.config.security_settings import SecuritySettings
from headrace.storage.clock import Clock

LOOK_SECONDS = 1.0
"""How often the files may be looked at."""
_Seen = tuple[tuple[int, int, int], ...]


class FileWatch:
    """File watch for one thread."""

    def __init__(self, paths: Sequence[str], clock: Clock) -> None:
        self._paths, self._clock = paths, clock
        self._seen = self._look()
        self._looked_at = clock.monotonic()

    def changed(self) -> bool:
        """Return whether a file has changed since the last look; False within LOOK_SECONDS of it."""
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def _look(self) -> _Seen:
        return tuple(map(_identity, self._paths))


def _identity(path: str) -> tuple[int, int, int]:
    """Changes with the file, also when a symbolic link above it changes, as Kubernetes replaces secrets."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_size, found.st_mtime_ns


logger = logging.getLogger(__name__)

_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def server_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Return a TLS context for a listener. ConfigError names the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _restrict(context, settings)
    _load_key(context, settings)
    context.verify_mode = _AUTH[settings.ssl_client_auth]
    if settings.ssl_truststore_location:
        _load_trust(context, settings)
    return context


def client_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Return a TLS context for connections to other agents: shows the listener's own certificate. Errors as
    `server_context`.
    """
    context = ssl.create_default_context()
    _restrict(context, settings)
    context.check_hostname = settings.ssl_endpoint_identification_algorithm == "https"
    if settings.ssl_keystore_location:
        _load_key(context, settings)
    if settings.ssl_truststore_location:
        _load_trust(context, settings)
    return context


class ReloadedContext:
    """A context that follows its files. For one event loop."""

    def __init__(
        self, settings: SecuritySettings, clock: Clock, make: Callable[[SecuritySettings], ssl.SSLContext]
    ) -> None:
        """Errors as `make`."""
        self._settings, self._make = settings, make
        self._paths = [path for path in (settings.ssl_keystore_location, settings.ssl_truststore_location) if path]
        self._watch = FileWatch(self._paths, clock)
        self._context = make(settings)
        self.expires_at = _expiry(settings.ssl_keystore_location)
        """When the first certificate of the chain in use expires; seconds since the epoch."""

    def current(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        if self._watch.changed():
            self._reload()
        return self._context

    def _reload(self) -> None:
        try:
            self._context = self._make(self._settings)
            self.expires_at = _expiry(self._settings.ssl_keystore_location)
        except ConfigError as error:
            logger.error("certificates not reloaded, the earlier ones stay in use: %s", error)
        else:
            logger.info("certificates reloaded: files=%s", ", ".join(self._paths))


def _restrict(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    versions = [_VERSIONS[name] for name in settings.ssl_enabled_protocols.split(",")]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings.ssl_cipher_suites:
        try:
            context.set_ciphers(settings.ssl_cipher_suites)
        except ssl.SSLError as error:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of them: {settings.ssl_cipher_suites}") from error


def _load_key(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    path = settings.ssl_keystore_location
    try:
        context.load_cert_chain(path, password=settings.ssl_key_password or "")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"ssl.keystore.location: no private key with its certificate chain in PEM: {path}: {_reason(error)}"
        ) from error


def _load_trust(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    path = settings.ssl_truststore_location
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError(f"ssl.truststore.location: no certificates in PEM: {path}: {_reason(error)}") from error


def _expiry(path: str) -> float:
    """Infinity without certificates."""
    if not path:
        return math.inf
    with open(path, "rb") as file:
        chain = x509.load_pem_x509_certificates(file.read())
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not PEM, or the wrong ssl.key.password"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
