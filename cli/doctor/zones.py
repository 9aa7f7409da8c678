"""Judges the zones of agents: names that do not fit together, zones without agents, a machine in two zones.

Place: one part of the area cluster of `headrace doctor`.
Invariant: pure. A zone is what an agent registered as broker.rack; clients name theirs as client.rack, or in client.id.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator, Sequence

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.settings import Settings
from headrace.metastore.log.image import AgentImage, MetadataImage

AREA = Area("cluster")
_ACROSS = "clients of that zone read from other zones, and pay for it"


def judge_zones(image: MetadataImage, settings: Settings) -> Iterator[Finding]:
    """Return a line for each trouble; one for all if there is none; none without live agents or zones.

    `settings`: of this machine; broker.rack and node.id are compared with what is registered.
    """
    live = image.live_agents()
    zones = sorted({agent.rack for agent in live if agent.rack})
    if not live or not (zones or settings.broker_rack):
        return
    found = [*_unnamed(live), *_alike(live, zones), *_in_two_zones(live), *_left(image, zones)]
    found += _of_this_machine(image, settings, zones)
    yield from found
    if not found:
        yield AREA.ok("zones", f"each live agent is in one of: {', '.join(zones)}")


def _unnamed(live: Sequence[AgentImage]) -> Iterator[Finding]:
    unnamed = [agent.node_id for agent in live if not agent.rack]
    if unnamed and len(unnamed) < len(live):
        found = f"agents without a zone: {_ids(unnamed)}; the others have one"
        yield AREA.warn("zones", found, "set broker.rack (--zone) on each agent")


def _alike(live: Sequence[AgentImage], zones: Sequence[str]) -> Iterator[Finding]:
    """Names that differ in case and punctuation only."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for zone in zones:
        spellings["".join(c for c in zone.casefold() if c.isalnum())].append(zone)
    for same in spellings.values():
        if len(same) > 1:
            agents = [f"{zone}: {_ids([a.node_id for a in live if a.rack == zone])}" for zone in same]
            found = f"names of zones that may be one: {'; '.join(agents)}"
            yield AREA.warn("zones", found, "use the name of the cloud's zone in each broker.rack and client.rack")


def _in_two_zones(live: Sequence[AgentImage]) -> Iterator[Finding]:
    by_host: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for agent in live:
        if agent.rack and not _is_loopback(agent.host):
            by_host[agent.host][agent.rack].append(agent.node_id)
    for host, by_zone in by_host.items():
        if len(by_zone) > 1:
            agents = "; ".join(f"{zone}: {_ids(ids)}" for zone, ids in sorted(by_zone.items()))
            found = f"agents at one host, {host}, name different zones: {agents}"
            yield AREA.warn("zones", found, "correct broker.rack of one of them, or advertised.listeners")


def _left(image: MetadataImage, zones: Sequence[str]) -> Iterator[Finding]:
    gone: dict[str, list[int]] = defaultdict(list)
    for agent in image.agents.values():
        if agent.rack and agent.rack not in zones:
            gone[agent.rack].append(agent.node_id)
    for zone, ids in sorted(gone.items()):
        found = f"no agent of zone {zone} is live (gone: {_ids(ids)}): {_ACROSS}"
        yield AREA.warn("zones", found, "start one there, or unregister them: headrace cluster unregister -i ID")


def _of_this_machine(image: MetadataImage, settings: Settings, zones: Sequence[str]) -> Iterator[Finding]:
    own = settings.broker_rack
    agent = None if settings.node_id is None else image.agents.get(settings.node_id)
    if agent is not None and agent.live and (agent.rack or "") != (own or ""):
        found = (
            f"these settings say node.id={agent.node_id} broker.rack={own or 'unset'}, and it runs in zone {agent.rack}"
        )
        yield AREA.warn("zones", found, "restart it if broker.rack was changed, else correct node.id or broker.rack")
    elif own and own not in zones:
        found = f"these settings say broker.rack={own}, and no live agent is in that zone: {_ACROSS}"
        yield AREA.warn("zones", found, f"start an agent there, or correct broker.rack (live: {', '.join(zones)})")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _ids(node_ids: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(node_ids)))
