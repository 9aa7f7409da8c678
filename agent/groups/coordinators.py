"""Finds which of many groups this agent coordinates, in slices: with 1,000 agents each group takes a millisecond.

Place: under the requests that list groups, or name up to 10,000 of them.
Invariant: the groups of one answer are judged by one image, and the own ones by this agent's lease, too. Once other
tasks ran, `HeldGroups.lost` and `HeldGroups.find` have the last word.
"""

from __future__ import annotations

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.routing import Routes
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices


async def elect(routes: Routes, group_id: str, slices: WorkSlices) -> None:
    """Find the group's coordinator, which the routes remember for what is asked next."""
    await slices.did(ELEMENT_UNITS + routes.coordinator_scores(group_id))
    routes.coordinator(group_id)


async def refusals(groups: HeldGroups, group_ids: Iterable[str], slices: WorkSlices) -> dict[str, ErrorCode]:
    """Return `HeldGroups.refusal` of each group."""
    cluster = groups.cluster
    routes, found = cluster.routes, dict[str, ErrorCode]()
    for group_id in group_ids:
        await elect(routes, group_id, slices)
        leads = routes.coordinator(group_id)
        if leads is None:
            found[group_id] = ErrorCode.coordinator_not_available
        elif leads.node_id == cluster.node_id:
            found[group_id] = groups.refusal(group_id)
        else:
            found[group_id] = ErrorCode.not_coordinator
    return found
