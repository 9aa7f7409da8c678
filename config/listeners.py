"""Where a process listens and what it tells clients, from `listeners`, `controller.listener.names`,
`advertised.listeners` and their short forms.

Place: asked once when a process is composed.
Invariant: one listener for clients, and at most one for controllers, which clients are never told of.
What cannot be offered (TLS, SASL, a second client listener) is refused by name, and so is an address that no client
could connect to. No state.
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
    """A listener's name and the address that it binds; port 0 picks a free one."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Listeners:
    """`controller` None: controllers are reached through the client listener and the metastore only."""

    client: Endpoint
    controller: Endpoint | None
    advertised: Endpoint
    """What clients are told. Port 0: the one that the listener was bound to."""


def roles(settings: Settings) -> frozenset[str]:
    """process.roles as a set."""
    return frozenset(settings.process_roles.split(","))


def listeners(settings: Settings) -> Listeners:
    """What to listen on and to advertise. ConfigError, naming the setting, for what does not fit together."""
    client, controller = _bound(settings)
    return Listeners(client, controller, _advertised(settings, client))


def _bound(settings: Settings) -> tuple[Endpoint, Endpoint | None]:
    """For clients, and for controllers."""
    plain = Endpoint("PLAINTEXT", settings.kafka_host, settings.kafka_port)
    names = [name.strip() for name in settings.controller_listener_names.split(",") if name.strip()]
    if not settings.listeners:
        if names:
            raise ConfigError("controller.listener.names: names no listener, as listeners is not set")
        return plain, None
    found = _parse("listeners", settings.listeners)
    if len({endpoint.name for endpoint in found}) < len(found):
        raise ConfigError(f"listeners: a name stands twice: {settings.listeners}")
    if unknown := set(names) - {endpoint.name for endpoint in found}:
        raise ConfigError(f"controller.listener.names: not in listeners: {', '.join(sorted(unknown))}")
    for_controllers = [endpoint for endpoint in found if endpoint.name in names]
    for_clients = [endpoint for endpoint in found if endpoint.name not in names]
    if len(for_clients) > 1 or len(for_controllers) > 1:
        raise ConfigError(f"listeners: one for clients and one for controllers at the most: {settings.listeners}")
    if for_controllers and CONTROLLER not in roles(settings):
        raise ConfigError("controller.listener.names: process.roles has no controller")
    if not for_clients and BROKER in roles(settings):
        raise ConfigError("listeners: none is left for clients, and process.roles has broker")
    return for_clients[0] if for_clients else plain, for_controllers[0] if for_controllers else None


def _advertised(settings: Settings, client: Endpoint) -> Endpoint:
    if not settings.advertised_listeners:
        if client.host in _EVERY_ADDRESS and settings.advertised_host is None and BROKER in roles(settings):
            raise ConfigError(f"advertised.host: clients cannot connect to {client.host}: name what they reach this by")
        return Endpoint(client.name, settings.advertised_host or client.host, settings.advertised_port or 0)
    if settings.advertised_host is not None or settings.advertised_port is not None:
        raise ConfigError("advertised.listeners: set it, or advertised.host and advertised.port, not both")
    found = _parse("advertised.listeners", settings.advertised_listeners)
    if len(found) > 1:
        told = "one at the most, as clients have one listener and are told of no other"
        raise ConfigError(f"advertised.listeners: {told}: {settings.advertised_listeners}")
    if found[0].name != client.name:
        raise ConfigError(f"advertised.listeners: the listener for clients is {client.name}, not {found[0].name}")
    if found[0].host in _EVERY_ADDRESS:
        raise ConfigError(f"advertised.listeners: no address to connect to: {settings.advertised_listeners}")
    return found[0]


def _parse(setting: str, value: str) -> list[Endpoint]:
    return [_endpoint(setting, text.strip()) for text in value.split(",")]


def _endpoint(setting: str, text: str) -> Endpoint:
    match = _LISTENER.fullmatch(text)
    if match is None or int(match[3]) > 65_535:
        raise ConfigError(f"{setting}: not of the form NAME://host:port: {text!r}")
    if match[1].upper() in _OTHER_PROTOCOLS:
        raise ConfigError(f"{setting}: only PLAINTEXT is offered, put TLS in front of it: {text}")
    return Endpoint(match[1].upper(), match[2].strip("[]") or "0.0.0.0", int(match[3]))
