"""The settings in which the agents of one command differ: node id, ports, and who does the background work.

Place: pure; supervise.py passes them to each agent as flags.
Invariant: no two agents get the same node id or the same address. Process 0 has exactly the addresses that were
configured, so the first port of a range is the one to bootstrap from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headrace.config.errors import ConfigError
from headrace.config.listeners import BROKER, COMPACTOR, Endpoint, listeners, listeners_text, roles
from headrace.config.node_ids import NODE_ID_MAX
from headrace.config.settings import Settings

PORT_MAX = 65_535


def places(settings: Settings, count: int) -> list[dict[str, str]]:
    """Names and values for each of `count` agents. ConfigError if they do not fit next to each other."""
    if BROKER not in roles(settings):
        raise ConfigError("--processes: process.roles does not include broker")
    if settings.node_id is not None and settings.node_id + count - 1 > NODE_ID_MAX:
        raise ConfigError(f"--processes: node ids would exceed {NODE_ID_MAX}")
    found = listeners(settings)
    bound = [*found.serving, *([found.controller] if found.controller else [])]
    _refuse_shared_ports([e.port + index for index in range(count) for e in bound if e.port], bound)
    return [_place(settings, bound, found.advertised, found.inter_broker, index) for index in range(count)]


def _place(
    settings: Settings, bound: list[Endpoint], advertised: Iterable[Endpoint], between: str | None, index: int
) -> dict[str, str]:
    place = {"listeners": listeners_text(moved(endpoint, index) for endpoint in bound)}
    if settings.advertised_listeners:
        # A balancer's address is the same for all; agents connect to each other directly.
        place["advertised.listeners"] = listeners_text(
            endpoint if settings.advertised_shared and endpoint.name != between else moved(endpoint, index)
            for endpoint in advertised
        )
    if settings.node_id is not None:
        place["node.id"] = str(settings.node_id + index)
    if index:
        place["process.roles"] = ",".join(sorted(roles(settings) - {COMPACTOR}))
    return place


def moved(endpoint: Endpoint, index: int) -> Endpoint:
    """Return agent `index`'s endpoint. Port 0 stays: it picks a free one, or advertises the bound one."""
    return replace(endpoint, port=endpoint.port + index) if endpoint.port else endpoint


def _refuse_shared_ports(ports: list[int], bound: list[Endpoint]) -> None:
    if len(set(ports)) < len(ports):
        raise ConfigError(
            f"--processes: the ports of two listeners overlap, each needs one per process: {listeners_text(bound)}"
        )
    if ports and max(ports) > PORT_MAX:
        raise ConfigError(f"--processes: ports would exceed {PORT_MAX}: {listeners_text(bound)}")
