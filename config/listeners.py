"""The addresses a process binds and the address it advertises, from `listeners`, `controller.listener.names`,
`advertised.listeners` and their short forms.

Place: called once, when a process is composed.
Invariant: one listener for clients, and at most one for controllers, which is never advertised to clients.
Unsupported listeners (TLS, SASL, a second client listener) are refused by name, and so is an advertised address that
no client could connect to.
Source: KIP-631, configurations; KIP-103 (listener names).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.config.errors import ConfigError
from headrace.config.settings import Settings

_LISTENER = re.compile(r"([A-Za-z][A-Za-z0-9_]*)://(\[[0-9A-Fa-f:]*\]|[^:\[\]/]*):(\d{1,5})")
_EVERY_ADDRESS = ("0.0.0.0", "::")
_OTHER_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
BROKER, CONTROLLER, COMPACTOR = "broker", "controller", "compactor"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listener's name and the address to bind; port 0 picks a free one."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Listeners:
    """`controller` None: controllers are reached only through the client listener and the metastore."""

    client: Endpoint
    controller: Endpoint | None
    advertised: Endpoint
    """The address that clients connect to. Port 0: the port that the listener is bound to."""


HTTP_PORT, COMPACTOR_HTTP_PORT = 9644, 9645


def http_port(settings: Settings) -> int:
    """The port of the HTTP listener; 0 picks a free one."""
    if settings.http_port is not None:
        return settings.http_port
    return COMPACTOR_HTTP_PORT if roles(settings) == {COMPACTOR} else HTTP_PORT


def roles(settings: Settings) -> frozenset[str]:
    """process.roles as a set."""
    return frozenset(settings.process_roles.split(","))


def listeners(settings: Settings) -> Listeners:
    """The listeners to bind and to advertise. ConfigError names the setting that is wrong."""
    client, controller = _bound(settings)
    return Listeners(client, controller, _advertised(settings, client))


def _bound(settings: Settings) -> tuple[Endpoint, Endpoint | None]:
    """The listener for clients, and the one for controllers."""
    plain = Endpoint("PLAINTEXT", settings.kafka_host, settings.kafka_port)
    names = [name.strip() for name in settings.controller_listener_names.split(",") if name.strip()]
    if not settings.listeners:
        if names:
            raise ConfigError("controller.listener.names: listeners must be set as well")
        return plain, None
    found = _parse("listeners", settings.listeners)
    if len({endpoint.name for endpoint in found}) < len(found):
        raise ConfigError(f"listeners: duplicate name: {settings.listeners}")
    if unknown := set(names) - {endpoint.name for endpoint in found}:
        raise ConfigError(f"controller.listener.names: not in listeners: {', '.join(sorted(unknown))}")
    for_controllers = [endpoint for endpoint in found if endpoint.name in names]
    for_clients = [endpoint for endpoint in found if endpoint.name not in names]
    if len(for_clients) > 1 or len(for_controllers) > 1:
        raise ConfigError(f"listeners: at most one for clients and one for controllers: {settings.listeners}")
    if for_controllers and CONTROLLER not in roles(settings):
        raise ConfigError("controller.listener.names: process.roles does not include controller")
    if not for_clients and BROKER in roles(settings):
        raise ConfigError("listeners: process.roles includes broker, but no listener is left for clients")
    return for_clients[0] if for_clients else plain, for_controllers[0] if for_controllers else None


def _advertised(settings: Settings, client: Endpoint) -> Endpoint:
    if not settings.advertised_listeners:
        if client.host in _EVERY_ADDRESS and settings.advertised_host is None and BROKER in roles(settings):
            raise ConfigError(f"advertised.host: not set, and clients cannot connect to {client.host}")
        return Endpoint(client.name, settings.advertised_host or client.host, settings.advertised_port or 0)
    if settings.advertised_host is not None or settings.advertised_port is not None:
        raise ConfigError("advertised.listeners: set it, or advertised.host and advertised.port, not both")
    found = _parse("advertised.listeners", settings.advertised_listeners)
    if len(found) > 1:
        told = "at most one, because there is one listener for clients"
        raise ConfigError(f"advertised.listeners: {told}: {settings.advertised_listeners}")
    if found[0].name != client.name:
        raise ConfigError(f"advertised.listeners: the listener for clients is {client.name}, not {found[0].name}")
    if found[0].host in _EVERY_ADDRESS:
        raise ConfigError(f"advertised.listeners: clients cannot connect to it: {settings.advertised_listeners}")
    return found[0]


def _parse(setting: str, value: str) -> list[Endpoint]:
    return [_endpoint(setting, text.strip()) for text in value.split(",")]


def _endpoint(setting: str, text: str) -> Endpoint:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[3]) > 65_535:
        raise ConfigError(f"{setting}: not of the form NAME://host:port: {text!r}")
    if match[1].upper() in _OTHER_PROTOCOLS:
        raise ConfigError(f"{setting}: only PLAINTEXT is supported, terminate TLS in front of it: {text}")
    return Endpoint(match[1].upper(), match[2].strip("[]") or "0.0.0.0", int(match[3]))
