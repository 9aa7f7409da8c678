"""What a schedule with failovers may lose, and what it may not.

Lost are commits that a server had which is the metastore no more, and that its successors lack. An acknowledgement of
one of them is excused, unless the failover loses nothing, or it was committed after the next life began, by a process
that had time to learn of it. Nothing else is: what is acknowledged in the present life is in the log. And an offset of
one leader epoch is never handed out twice, on whichever servers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.metastore.api.commit import BatchOutcome
from tests.simulation.database import Committed
from tests.simulation.faults import Fault
from tests.simulation.messages import Batch
from tests.simulation.problems import Kind, Problem

if TYPE_CHECKING:
    from tests.simulation.world import World

HEARD_SECONDS = 1.0
"""A check that had read the bucket before the life began, the pause, and a check after it (agents.py). A check takes up
to 0.5 seconds if a request is slow."""


def lost_commits(world: World) -> list[Committed]:
    """Return the lost commits on servers of the past, and not on the present one."""
    kept = {committed.serial for committed in world.database.journal}
    found = {c.serial: c for server in world.past for c in server.journal if c.serial not in kept}
    return list(found.values())


def excused_losses(world: World) -> set[tuple[Batch, int]]:
    """(batch, base offset) of acknowledgements that may be for nothing."""
    kept = {committed.serial for committed in world.database.journal}
    excused = set()
    for server, successor in itertools.pairwise([*world.past, world.database]):
        begun = (at for at, on in world.lives_begun if at >= server.replaced_at and on is not server)
        over_at = next(begun, math.inf)
        inherited = {committed.serial for committed in successor.journal}
        for committed in server.journal:
            if committed.serial in kept or committed.serial in inherited:
                continue
            is_late = world.plan.is_prompt and committed.at > over_at + HEARD_SECONDS
            if server.lost_with is not Fault.PROMOTED and not is_late:
                excused.add((committed.batch, committed.base_offset))
    return excused


def check_offsets_of_all_servers(world: World) -> Iterator[Problem]:
    """One batch for each (partition, leader epoch, offset)."""
    handed_out: dict[tuple[object, int, int], Batch] = {}
    for committed in (*lost_commits(world), *world.database.journal):
        if committed.outcome is BatchOutcome.APPENDED:
            place = (committed.batch.place, committed.leader_epoch, committed.base_offset)
            before = handed_out.setdefault(place, committed.batch)
            if before is not committed.batch:
                yield Problem(
                    Kind.INCONSISTENT,
                    f"{committed.batch} and {before} got offset {committed.base_offset} of {committed.batch.place} in"
                    f" leader epoch {committed.leader_epoch}",
                )
