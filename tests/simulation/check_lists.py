"""Whether what a failover lost is listed as completely as if every agent followed every commit shard.

A lost commit that some process would have listed with full following must be listed by some process as it is. Excused
is the commit of a process that was killed before the followers of its shard had time to poll it: with full following
any agent may have been faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.api.read import Extent
from tests.simulation.check_lives import lost_commits
from tests.simulation.database import Committed
from tests.simulation.problems import Kind, Problem
from tests.simulation.stored_log import StoredLog

if TYPE_CHECKING:
    from tests.simulation.world import World

POLL_SECONDS = 0.7
"""The longest pause between polls of a plan, and the way of a request."""

Ranges = defaultdict[tuple[UUID, int], list[tuple[int, int]]]


def check_lists(world: World, logs: StoredLog) -> Iterator[Problem]:
    """Compare, where the plan says so."""
    if not world.plan.compares_lists:
        return
    full = _ranges(extent for one in world.followers for extent in one.would_list)
    listed = _ranges(extent for one in world.followers for extent in one.lists)
    for committed in lost_commits(world):
        if committed.outcome is not BatchOutcome.APPENDED or not _has(full, committed):
            continue
        if _has(listed, committed):
            world.losses_listed += 1
        elif not _was_early(world, committed):
            yield Problem(Kind.UNLISTED, f"{committed.batch} at {committed.base_offset} of {committed.batch.place}")


def _ranges(extents: Iterable[Extent]) -> Ranges:
    found: Ranges = defaultdict(list)
    for extent in extents:
        found[extent.source, extent.partition_key].append((extent.base_offset, extent.last_offset))
    return found


def _has(ranges: Ranges, committed: Committed) -> bool:
    known = ranges.get((committed.file_id, committed.key), ())
    return any(first <= committed.base_offset <= last for first, last in known)


def _was_early(world: World, committed: Committed) -> bool:
    """Return whether its process was killed, or its server replaced, so soon that no follower need have it."""
    killed = [at for at, node_id in world.kills if node_id == committed.node_id and at >= committed.at]
    if not killed:
        return False
    replaced = [server.replaced_at for server in world.past if server.replaced_at >= committed.at]
    return min([*killed, *replaced]) < committed.at + POLL_SECONDS
