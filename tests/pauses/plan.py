"""Choose the steps to pause after: few that cover every await of a run without pauses, or all.

Place: between tests/pauses/world.py, which runs one schedule with one pause, and the tests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tests.pauses.sites import Site, sites_of
from tests.pauses.world import World

PATHS = (
    *(f"agent/produce/{name}.py" for name in ("pipeline", "receive", "upload", "commit")),
    *(f"agent/cluster/{name}.py" for name in ("membership", "follower", "cluster")),
    *(f"agent/cluster/controller/{name}.py" for name in ("controller", "rounds", "upkeep_steps")),
    *(
        f"agent/groups/{name}.py"
        for name in (
            *("held_groups", "classic/coordinator", "offsets/group_offsets", "consumer/coordinator"),
            "members/heartbeats",
        )
    ),
    *(f"agent/fetch/{name}.py" for name in ("handler", "service", "index/feed", "locate")),
    *(f"agent/fetch/zone_cache/{name}.py" for name in ("serving", "shared")),
    "agent/peers/connection.py",
    *(f"agent/peers/forwarding/{name}.py" for name in ("forwarding", "links", "service")),
    "agent/serve/housekeeping.py",
)
"""Receiving, laying out, uploading, committing; registration and heartbeats; the controller; Fetch, its feed
and the zone cache; groups; forwarding; housekeeping."""


class Schedule(NamedTuple):
    """Order: which agent starts first, and when agent 1 gets the signal to stop."""

    order: tuple[int, int]
    leaves_at: float
    forwards: bool = False
    """Whether each agent passes on what the other one must answer."""

    def __str__(self) -> str:
        return f"agent-{self.order[0]}-first{'-forwarding' if self.forwards else ''}"

    def world(self, pause_after: int | None = None) -> World:
        return World(pause_after, order=self.order, leaves_at=self.leaves_at, forwards=self.forwards)


SCHEDULES = (Schedule((1, 2), 2.0), Schedule((2, 1), 2.9))
"""Agent 1 as the active controller from the first, and as a standby that joins a working cluster."""
FORWARDING = tuple(schedule._replace(forwards=True) for schedule in SCHEDULES)
"""Agent 1 passes requests on in the first one, and serves those of agent 2 in the other. Tests stop it at the awaits
of agent/peers/forwarding."""


def all_sites() -> set[Site]:
    """Every place on the paths at which the code can wait."""
    return {site for path in PATHS for site in sites_of(path)}


def few_steps(watched: World, folder: str = "", without: Collection[Site] = ()) -> list[int]:
    """Steps of a run without a pause that meet all the sites, of this folder's files, that it met; but for some."""
    met = {site for sites in watched.sites.values() for site in sites} - set(without)
    wanted = {site for site in met if site.file in PATHS and site.file.startswith(folder)}
    chosen: list[int] = []
    while wanted:
        best = max(watched.sites, key=lambda step: (len(watched.sites[step] & wanted), step))
        chosen.append(best)
        wanted -= watched.sites[best]
    return sorted(chosen)
