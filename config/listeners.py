"""The addresses a process binds and the addresses it advertises, from Kafka's settings `listeners`,
`advertised.listeners`, `inter.broker.listener.name`, `controller.listener.names`.

Place: called once, when a process is composed.
Invariant: each listener of the broker has a name, an address to bind, and one advertised address, to which clients of
this listener are sent. The listener for controllers is never advertised. The first listener is one for clients, unless
there is none but that of inter.broker.listener.name. A listener with TLS has a key. An advertised address that no
client could connect to is refused.
Source: KIP-631, configurations; KIP-103 (listener names).
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headrace.config.addresses import address_text, is_every_address
from headrace.config.errors import ConfigError
from headrace.config.listener_overrides import for_listener
from headrace.config.settings import Settings

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
