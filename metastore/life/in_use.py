"""Whether agents use the metastore that the bucket names, asked before an operator's command makes another one of it.

Place: `headrace migrate --restored` and `headrace audit --rebuild-index`.
Invariant: reads the bucket only. Each cluster with an active controller replaces the position of its life every few
seconds, on any server; agents that have just begun a life do it within that time. Agents without an active controller
are not noticed.
"""

from __future__ import annotations

from headrace.metastore.life.bucket import newest_life, position_changed_ms
from headrace.metastore.life.watch import CHECK_SECONDS, POSITION_CHECKS
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError
from headrace.storage.objects.store import ObjectStore

WATCH_SECONDS = 2 * CHECK_SECONDS * POSITION_CHECKS + 1
"""Two positions are written meanwhile."""
LOOK_SECONDS = 0.5
LONG_AGO_MS = 600_000
"""An agent that runs replaces a position long before it has this age, also if the clocks differ by minutes."""


async def require_unused(store: ObjectStore, clock: Clock) -> None:
    """InvalidError if agents use the newest life. Waits WATCH_SECONDS, unless they stopped long ago."""
    newest = await newest_life(store, None)
    if newest is None:
        return
    before = await position_changed_ms(store, newest.life)
    if clock.wall_ms() - before > LONG_AGO_MS:
        return
    until = clock.monotonic() + WATCH_SECONDS
    while clock.monotonic() < until:
        await clock.sleep(LOOK_SECONDS)
        if await position_changed_ms(store, newest.life) != before:
            raise InvalidError(
                f"agents are running on the metastore that the bucket names: life={newest.life}"
                f" server={newest.system_identifier}/{newest.timeline}/{newest.database}: correct metastore.url if this"
                " is another one; else stop all agents first. With --force, what they acknowledge from now on is lost;"
                " nothing was changed"
            )
