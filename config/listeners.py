"""Reads the listeners of a process from its settings.

Place: called when a process is composed, with Kafka's settings `listeners`, `advertised.listeners`,
`inter.broker.listener.name`, `controller.listener.names`. load.py reads the settings of one listener
(`listener.name.NAME.SETTING`); cli/process/open_process.py logs each line of what is open, once.
Invariant of settings for one listener: only the settings of config/security_settings.py can be set for one listener;
each value was checked as the setting itself. A listener's name has any case.
Invariant: each listener of the broker has a name, an address to bind, and one advertised address, to which clients
of this listener are sent. The listener for controllers is never advertised. The first listener is one for clients,
unless there is none but that of inter.broker.listener.name. A listener with TLS has a key. An advertised address
that no client could connect to is refused.
Source: KIP-103 (listener names, settings for one listener); KIP-631, configurations.
Invariant of warnings: an address that only the machine itself can reach is never named. What weakens a login is
named on every address.
"""

from __future__ import annotations

import enum
import functools
import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from headrace.config.addresses import address_text, is_every_address
from headrace.config.errors import ConfigError
from headrace.config.security_settings import SecuritySettings
from headrace.config.settings import Settings

PREFIX = "listener.name."


@functools.cache
def overridable() -> dict[str, str]:
    """Setting -> field of SecuritySettings."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(SecuritySettings)}


def split_key(key: str) -> tuple[str, str] | None:
    """(listener, setting) of `listener.name.NAME.SETTING`; None for another key, or for a setting that cannot be set
    for one listener."""
    if not key.startswith(PREFIX):
        return None
    name, _, setting = key.removeprefix(PREFIX).partition(".")
    return (name.upper(), setting) if name and setting in overridable() else None


def key_of_variable(variable: str) -> str | None:
    """`listener.name.external.ssl.client.auth` for LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUTH; None for another variable.

    A name may have underscores: the longest setting that fits is the setting.
    """
    prefix = PREFIX.replace(".", "_").upper()
    if not variable.startswith(prefix):
        return None
    rest = variable.removeprefix(prefix)
    endings = {"_" + setting.replace(".", "_").upper(): setting for setting in overridable()}
    for ending in sorted(endings, key=len, reverse=True):
        if rest.endswith(ending) and rest != ending:
            return f"{PREFIX}{rest.removesuffix(ending).lower()}.{endings[ending]}"
    return None


def grouped(given: Iterable[tuple[str, object]]) -> dict[str, dict[str, object]]:
    """Group keys and values: listener -> setting -> value. Later ones count."""
    found: dict[str, dict[str, object]] = {}
    for key, value in given:
        split = split_key(key)
        assert split is not None, key
        found.setdefault(split[0], {})[split[1]] = value
    return found


def for_listener(settings: Settings, name: str) -> SecuritySettings:
    """The security settings of the listener with this name."""
    values: Mapping[str, object] = settings.listener_overrides.get(name.upper(), {})
    own = {overridable()[setting]: value for setting, value in values.items()}
    plain = {field: getattr(settings, field) for field in overridable().values()}
    return SecuritySettings(**(plain | own))


_LISTENER = re.compile(r"([A-Za-z][A-Za-z0-9_]*)://(\[[0-9A-Fa-f:.]*\]|[0-9A-Fa-f:.]*|[^:\[\]/]*):(\d{1,5})")
"""The brackets of an IPv6 address may be left out, as in Kafka: Kubernetes gives an address without them."""
_MAPPED = re.compile(r"([A-Za-z][A-Za-z0-9_]*):([A-Za-z_]+)")
BROKER, CONTROLLER, COMPACTOR, TABLES = "broker", "controller", "compactor", "tables"


class SecurityProtocol(enum.IntEnum):
    """Kafka's numbers."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener's name and an address; port 0 to bind picks a free one, port 0 to advertise is the bound one."""

    name: str
    host: str
    port: int
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT


@dataclass(frozen=True, slots=True)
class Listeners:
    """`controller` None: controllers are reached only through the broker's listeners and the metastore."""

    serving: tuple[Endpoint, ...]
    """The broker's listeners, to bind; the one for clients first, the one of inter.broker.listener.name last."""
    controller: Endpoint | None
    advertised: tuple[Endpoint, ...]
    """The advertised endpoints in the order of `serving`, with the same names."""
    inter_broker: str | None
    """Name of the listener that other agents use; None: the first one."""
    proxied: frozenset[str] = frozenset()
    """Names of the listeners with PROXY protocol."""


HTTP_PORT, COMPACTOR_HTTP_PORT = 9644, 9645


def http_port(settings: Settings) -> int:
    """The port of the HTTP listener; 0 picks a free one."""
    if settings.http_port is not None:
        return settings.http_port
    return COMPACTOR_HTTP_PORT if roles(settings) <= {COMPACTOR, TABLES} else HTTP_PORT


def roles(settings: Settings) -> frozenset[str]:
    """process.roles as a set. ConfigError if tables is in a process that serves clients or controls the cluster."""
    found = frozenset(settings.process_roles.split(","))
    if TABLES in found and not found <= {COMPACTOR, TABLES}:
        raise ConfigError("process.roles: tables runs alone or with compactor: its work would delay clients")
    return found


def listeners(settings: Settings) -> Listeners:
    """The listeners to bind and to advertise. ConfigError names the setting that is wrong."""
    serving, controller = _bound(settings)
    protocols = _protocols(settings)
    serving = [_secured(settings, endpoint, protocols) for endpoint in serving]
    controller = controller and _secured(settings, controller, protocols)
    between = settings.inter_broker_listener_name.strip().upper() or None
    if between is not None and between not in {endpoint.name for endpoint in serving} and BROKER in roles(settings):
        raise ConfigError(f"inter.broker.listener.name: not a listener of this broker: {between}")
    serving = sorted(serving, key=lambda endpoint: endpoint.name == between)  # stable: others keep their order
    advertised = _advertised(settings, serving) if BROKER in roles(settings) else serving
    by_name = {endpoint.name: endpoint.security_protocol for endpoint in serving}
    advertised = [replace(endpoint, security_protocol=by_name[endpoint.name]) for endpoint in advertised]
    return Listeners(tuple(serving), controller, tuple(advertised), between, _proxied(settings, serving, between))


def link_endpoint(settings: Settings) -> Endpoint:
    """Name and protocol of the listener that agents use between each other; host and port are of no use."""
    name = settings.inter_broker_listener_name.strip().upper()
    if not name:
        serving = listeners(settings).serving
        return serving[0] if serving else Endpoint("PLAINTEXT", "", 0)
    return Endpoint(name, "", 0, _protocols(settings).get(name, SecurityProtocol.PLAINTEXT))


def _proxied(settings: Settings, serving: list[Endpoint], between: str | None) -> frozenset[str]:
    names = frozenset(name.strip().upper() for name in settings.proxy_protocol_listeners.split(",") if name.strip())
    if unknown := names - {endpoint.name for endpoint in serving}:
        raise ConfigError(f"proxy.protocol.listeners: not a listener of this broker: {', '.join(sorted(unknown))}")
    if between in names or (names and between is None):
        problem = "agents connect to each other without a balancer: set another inter.broker.listener.name"
        raise ConfigError(f"proxy.protocol.listeners: {problem}")
    return names


def listeners_text(endpoints: Iterable[Endpoint]) -> str:
    """Return `endpoints` as a value of `listeners` or `advertised.listeners`."""
    return ",".join(f"{e.name}://{address_text(e.host, e.port)}" for e in endpoints)


def _bound(settings: Settings) -> tuple[list[Endpoint], Endpoint | None]:
    """The broker's listeners, and the one for controllers."""
    names = {name.strip().upper() for name in settings.controller_listener_names.split(",") if name.strip()}
    found = _parse("listeners", settings.listeners)
    if len({endpoint.name for endpoint in found}) < len(found):
        raise ConfigError(f"listeners: duplicate name: {settings.listeners}")
    ports = [(endpoint.host, endpoint.port) for endpoint in found if endpoint.port]
    if len(set(ports)) < len(ports):
        raise ConfigError(f"listeners: two of them have the same address: {settings.listeners}")
    if unknown := names - {endpoint.name for endpoint in found}:
        raise ConfigError(f"controller.listener.names: not in listeners: {', '.join(sorted(unknown))}")
    for_controllers = [endpoint for endpoint in found if endpoint.name in names]
    serving = [endpoint for endpoint in found if endpoint.name not in names]
    if len(for_controllers) > 1:
        raise ConfigError(f"controller.listener.names: at most one listener is for controllers: {settings.listeners}")
    if for_controllers and CONTROLLER not in roles(settings):
        raise ConfigError("controller.listener.names: process.roles does not include controller")
    if not serving and BROKER in roles(settings):
        raise ConfigError("listeners: process.roles includes broker, but no listener is left for clients")
    return serving, for_controllers[0] if for_controllers else None


def _advertised(settings: Settings, serving: list[Endpoint]) -> list[Endpoint]:
    """Return the advertised address of each listener: what advertised.listeners says, else its own."""
    found: dict[str, Endpoint] = {}
    if settings.advertised_listeners:
        found = {endpoint.name: endpoint for endpoint in _parse("advertised.listeners", settings.advertised_listeners)}
    if unknown := found.keys() - {endpoint.name for endpoint in serving}:
        known = ", ".join(endpoint.name for endpoint in serving)
        raise ConfigError(f"advertised.listeners: the broker listens as {known}, not as {', '.join(sorted(unknown))}")
    if any(is_every_address(endpoint.host) for endpoint in found.values()):
        raise ConfigError(f"advertised.listeners: clients cannot connect to it: {settings.advertised_listeners}")
    return [found.get(endpoint.name) or _itself(endpoint) for endpoint in serving]


def _itself(endpoint: Endpoint) -> Endpoint:
    """The bound address as the advertised one. ConfigError if it is not one address."""
    if is_every_address(endpoint.host):
        problem = f"{endpoint.name} is not set, and clients cannot connect to {endpoint.host}"
        raise ConfigError(f"advertised.listeners: {problem}")
    return Endpoint(endpoint.name, endpoint.host, 0)


def _parse(setting: str, value: str) -> list[Endpoint]:
    return [_endpoint(setting, text.strip()) for text in value.split(",")]


def _endpoint(setting: str, text: str) -> Endpoint:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[3]) > 65_535:
        raise ConfigError(f"{setting}: not of the form NAME://host:port: {text!r}")
    host = match[2].strip("[]")
    if ":" in host and not _is_ipv6(host):
        raise ConfigError(f"{setting}: not an IPv6 address and a port, NAME://[address]:port: {text!r}")
    return Endpoint(match[1].upper(), host or "0.0.0.0", int(match[3]))


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _protocols(settings: Settings) -> Mapping[str, SecurityProtocol]:
    """Return the protocols by the listeners' names: those that are protocols, and those of
    listener.security.protocol.map.
    """
    found = {protocol.name: protocol for protocol in SecurityProtocol}
    for text in filter(None, map(str.strip, settings.listener_security_protocol_map.split(","))):
        match = _MAPPED.fullmatch(text)
        if match is None or match[2].upper() not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(
                f"listener.security.protocol.map: not of the form NAME:PROTOCOL, with one of {known}: {text!r}"
            )
        found[match[1].upper()] = SecurityProtocol[match[2].upper()]
    return found


def _secured(settings: Settings, endpoint: Endpoint, protocols: Mapping[str, SecurityProtocol]) -> Endpoint:
    """Return the listener with its protocol. ConfigError if that needs a setting."""
    protocol = protocols.get(endpoint.name, SecurityProtocol.PLAINTEXT)
    own = for_listener(settings, endpoint.name)
    if protocol.has_tls and not own.ssl_keystore_location:
        raise ConfigError(f"ssl.keystore.location: listener {endpoint.name} uses {protocol.name} and has no key")
    if protocol.has_tls and own.ssl_client_auth != "none" and not own.ssl_truststore_location:
        raise ConfigError(f"ssl.truststore.location: ssl.client.auth={own.ssl_client_auth} needs it: {endpoint.name}")
    if (
        protocol.has_sasl
        and "OAUTHBEARER" in own.sasl_enabled_mechanisms
        and not own.sasl_oauthbearer_jwks_endpoint_url
    ):
        raise ConfigError(f"sasl.oauthbearer.jwks.endpoint.url: OAUTHBEARER needs it: {endpoint.name}")
    return replace(endpoint, security_protocol=protocol)


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
