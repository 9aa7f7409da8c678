"""What the settings leave open to a network: for a warning when a process starts. Pure.

Place: cli/process/open_process.py writes each line to the log, once.
Invariant: an address that only the machine itself can reach is never named. What weakens a login is named on every
address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from headrace.config.listener_overrides import for_listener
from headrace.config.listeners import Endpoint, SecurityProtocol, listeners
from headrace.config.security_settings import SecuritySettings
from headrace.config.settings import Settings


def exposures(settings: Settings) -> list[str]:
    """One line for each, with the setting that closes it. ConfigError as `listeners`."""
    return list(_exposures(settings))


def _exposures(settings: Settings) -> Iterator[str]:
    found = listeners(settings)
    bound = [*found.serving, *([found.controller] if found.controller else [])]
    for endpoint in bound:
        yield from _of_listener(settings, endpoint)
    outside = [endpoint.name for endpoint in bound if not _is_loopback(endpoint.host)]
    if outside and not settings.authorizer_class_name:
        yield (
            f"ACLs are not enforced, and clients on the network reach {', '.join(outside)}: each may do everything;"
            " set authorizer.class.name"
        )
    yield from http_exposures(settings)


def http_exposures(settings: Settings) -> Iterator[str]:
    """Yield the exposures of the HTTP port, which a process that is only a compactor has, too."""
    if _is_loopback(settings.http_host):
        return
    if settings.http_bearer_token_location and not settings.http_ssl_keystore_location:
        yield "bearer tokens reach the HTTP port in clear: set http.ssl.keystore.location"
    if not settings.http_bearer_token_location and not settings.http_ssl_truststore_location:
        yield (
            "the HTTP port shows metrics and status to every program on the network: set http.bearer.token.location or"
            " http.ssl.truststore.location, or allow only Prometheus to connect"
        )


def _of_listener(settings: Settings, endpoint: Endpoint) -> Iterator[str]:
    if endpoint.security_protocol.has_sasl:
        yield from _of_tokens(for_listener(settings, endpoint.name), endpoint)
    if endpoint.security_protocol is not SecurityProtocol.SASL_PLAINTEXT:
        return
    if "PLAIN" in for_listener(settings, endpoint.name).sasl_enabled_mechanisms.split(","):
        yield f"listener {endpoint.name}: PLAIN sends passwords in clear with SASL_PLAINTEXT: use SASL_SSL, or SCRAM"
    if not _is_loopback(endpoint.host):
        yield f"listener {endpoint.name}: SASL_PLAINTEXT encrypts nothing, and {endpoint.host} is a network's address"


def _of_tokens(own: SecuritySettings, endpoint: Endpoint) -> Iterator[str]:
    if "OAUTHBEARER" not in own.sasl_enabled_mechanisms.split(","):
        return
    expected = {
        "sasl.oauthbearer.expected.audience": own.sasl_oauthbearer_expected_audience.strip(", "),
        "sasl.oauthbearer.expected.issuer": own.sasl_oauthbearer_expected_issuer,
    }
    names = [name for name, value in expected.items() if not value]
    if names:
        yield (
            f"listener {endpoint.name}: OAUTHBEARER takes every token that a key of the set has signed, also for other"
            f" services: set {' and '.join(names)}"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
