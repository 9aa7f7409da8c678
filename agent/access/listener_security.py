"""What one listener's security protocol asks of its connections.

Place: made when a listener is bound; asked by every connection.
Invariant: settings of this listener alone (listener.name.NAME.*) go before those of all. Of the rules for the principal
of a client certificate (ssl.principal.mapping.rules), the first one with a pattern that matches the whole subject
counts; a subject that none matches is refused.
Source: KIP-371; RFC 4514 (the text of a subject).
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Callable

from cryptography import x509

from headrace.agent.access.sasl.oauthbearer import TokenKeys, token_keys
from headrace.agent.access.tls import ReloadedContext, client_context, server_context
from headrace.config.errors import ConfigError
from headrace.config.listeners import Endpoint, for_listener, link_endpoint
from headrace.config.settings import Settings
from headrace.protocol.request import ANONYMOUS
from headrace.storage.clock import Clock

_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\$(\d)")
_CASES: dict[str, Callable[[str], str]] = {"L": str.lower, "U": str.upper, "": str}
Rule = Callable[[str], str | None]


class ListenerSecurity:
    """TLS and authentication of one listener. ConfigError names a file or rule that cannot be used."""

    def __init__(self, settings: Settings, endpoint: Endpoint, clock: Clock) -> None:
        self.settings = for_listener(settings, endpoint.name)
        self.protocol = endpoint.security_protocol
        self._context = ReloadedContext(self.settings, clock, server_context) if self.protocol.has_tls else None
        self.token_keys = self._token_keys(clock)
        self._rules = PrincipalRules(self.settings.ssl_principal_mapping_rules)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Those that clients may use, if they must authenticate."""
        return tuple(self.settings.sasl_enabled_mechanisms.split(","))

    def _token_keys(self, clock: Clock) -> TokenKeys | None:
        if not self.protocol.has_sasl or "OAUTHBEARER" not in self.mechanisms:
            return None
        return token_keys(self.settings, clock)

    async def run(self) -> None:
        """Renew what does not come from files, for as long as it runs."""
        if self.token_keys is not None:
            await self.token_keys.run()

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for the next connection; None: it is not encrypted."""
        return None if self._context is None else self._context.current()

    def certificate_expires_at(self) -> float:
        """Seconds since the epoch, of the certificates in use; infinity without TLS."""
        return math.inf if self._context is None else self._context.expires_at

    @property
    def must_authenticate(self) -> bool:
        """Whether a client is served only after SaslAuthenticate."""
        return self.protocol.has_sasl

    def principal(self, certificate: bytes | None) -> str | None:
        """Return the principal of a new connection; None: it has none, or not yet.

        PermissionError for a certificate if no rule of ssl.principal.mapping.rules matches its subject.
        """
        if not self.protocol.has_tls or self.protocol.has_sasl:
            return None
        principal = self._rules.principal(certificate)
        if principal is None:
            raise PermissionError("ssl.principal.mapping.rules: no rule matches the subject of the certificate")
        return principal


def link_context(settings: Settings, clock: Clock) -> Callable[[], ssl.SSLContext | None]:
    """Return the TLS context of connections to the listener that other agents use; the context is None if it is not
    encrypted.
    """
    endpoint = link_endpoint(settings)
    if not endpoint.security_protocol.has_tls:
        return lambda: None
    return ReloadedContext(for_listener(settings, endpoint.name), clock, client_context).current


class PrincipalRules:
    """ConfigError for text that is no list of rules."""

    def __init__(self, text: str) -> None:
        self._rules: list[Rule] = []
        position = 0
        while position < len(text):
            match = _RULE.match(text, position)
            if match is None:
                raise ConfigError(
                    f"ssl.principal.mapping.rules: not RULE:pattern/replacement/[LU]: {text[position:]!r}"
                )
            self._rules.append(str if match[1] else _rule(match[2], match[3], match[4]))
            position = match.end()

    def principal(self, certificate: bytes | None) -> str | None:
        """Return the principal of a certificate in DER; ANONYMOUS without one; None if no rule matches."""
        if certificate is None:
            return ANONYMOUS
        subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
        name = self.name(subject)
        return None if name is None else f"User:{name}"

    def name(self, subject: str) -> str | None:
        """Return the name that the first rule gives that matches."""
        return next((name for rule in self._rules if (name := rule(subject)) is not None), None)


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"ssl.principal.mapping.rules: {error}: {pattern!r}") from error
    template = _GROUP.sub(r"\\g<\1>", replacement)

    def apply(subject: str) -> str | None:
        match = compiled.fullmatch(subject)
        return None if match is None else _CASES[case](match.expand(template))

    return apply
