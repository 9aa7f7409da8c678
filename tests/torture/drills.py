"""What happens to Postgres in a torture run: killed, full, replaced by a standby, restored, or there twice.

Place: during the schedule of tests/torture/faults.py, one drill after another. Each agent reaches Postgres through its
proxy here, so that one of them can stay with an old primary.
Invariant: when a drill is over, all agents are connected to the server `current`, and no other one accepts writes.
A drill of LOSES may lose what was committed since its standby or backup stopped; no other drill may, and a promotion
after synchronous replication is compared with what the old primary had.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from load.postgres_servers import Servers, ask
from tests.torture.commands import Commands
from tests.torture.moved_address import move_address
from tests.torture.proxy import FaultProxy
from tests.torture.small_disk import SmallDisk
from tests.torture.unlistable import Loss

LOSES = ("promote_async", "split", "moved_address", "same_timeline", "restore_base", "restore_volume", "restore_dump")
KEEPS = ("postgres_kill", "terminate", "disk_full", "promote_sync")
DRILLS = (*KEEPS, *LOSES)
LAG_SECONDS = (0.3, 1.5)
"""Seconds of commits that an asynchronous standby does not get."""
STORM_SECONDS = 0.2
"""Seconds between two rounds that end every connection."""


class Drill(NamedTuple):
    """`seconds`: how long its state lasts, what the servers need for it not counted."""

    kind: str
    seconds: float


def drills(seed: int, kinds: Sequence[str]) -> Iterator[Drill]:
    """Yield the drills without end, a function of the seed: each kind once in random order, then each again."""
    rng = random.Random(seed)
    while kinds:
        for kind in rng.sample(kinds, len(kinds)):
            yield Drill(kind, round(rng.uniform(1.0, 5.0), 3))


class PostgresDrills:
    """`current`: the server that is the metastore. `offences`: what a drill itself found wrong."""

    def __init__(
        self,
        servers: Servers,
        links: Sequence[FaultProxy],
        commands: Commands,
        disk: SmallDisk | None,
        rng: random.Random,
    ) -> None:
        self.current = "primary"
        self.offences: list[str] = []
        self.losses: list[Loss] = []
        self.starts: Callable[[], Sequence[int]] = lambda: [0] * len(links)
        """How often each agent was started."""
        self.on_behind: Callable[[], Awaitable[None]] | None = None
        """Called when a standby is behind, just before it is promoted."""
        self.counts_connections = False
        """Whether a drill counts connections to Postgres: then no other fault may end them."""
        self._servers = servers
        self._links = links
        self._commands = commands
        self._disk = disk
        self._rng = rng
        self._made = 0
        self._is_cut = True
        self._does: Mapping[str, Callable[[float], Awaitable[None]]] = {
            "postgres_kill": self._kill,
            "terminate": self._terminate,
            "disk_full": self._fill_disk,
            "promote_sync": self._promote_sync,
            "promote_async": self._promote_async,
            "split": self._split,
            "moved_address": self._move_address,
            "same_timeline": self._same_timeline,
            "restore_base": self._restore_base,
            "restore_volume": self._restore_volume,
            "restore_dump": self._restore_dump,
        }

    @property
    def url(self) -> str:
        """The URL of the metastore, past the proxies."""
        return self._servers.url(self.current)

    @property
    def url_if_running(self) -> str | None:
        """The same; None while agents are cut off, or the server is away."""
        return self.url if not self._is_cut and self._servers.is_running(self.current) else None

    async def strike(self, drill: Drill) -> None:
        """Do it; return when it is over."""
        begun = asyncio.get_running_loop().time()
        await self._does[drill.kind](drill.seconds)
        if drill.kind in LOSES:
            self.losses.append(Loss(begun, asyncio.get_running_loop().time()))

    def connect(self, links: Sequence[FaultProxy] | None = None) -> None:
        """Send agents to the current server; connections to another one are reset."""
        self._is_cut = False
        for link in self._links if links is None else links:
            link.target = self._servers.port(self.current)
            link.reset()

    def cut(self) -> None:
        """No agent reaches any server."""
        self._is_cut = True
        for link in self._links:
            link.target = 0
            link.reset()

    async def restart(self, seconds: float) -> None:
        """Stop Postgres in good order, and start it again."""
        self.cut()
        await asyncio.to_thread(self._servers.stop, self.current)
        await asyncio.sleep(seconds)
        await self._start(self.current)

    async def configure(self, lines: str) -> None:
        """Append lines to the current server's postgresql.conf, and start it again."""
        self.cut()
        await asyncio.to_thread(self._servers.configure, self.current, lines)
        self.connect()

    async def add_synchronous_standby(self) -> str:
        """Return the URL of a standby that commits wait for from now on."""
        standby = await self._standby()
        await asyncio.to_thread(self._servers.replicate_synchronously, self.current)
        return self._servers.url(standby)

    # -- drills that lose nothing

    async def outage(self, seconds: float) -> None:
        """Kill Postgres, and start it again after so long."""
        await asyncio.to_thread(self._servers.kill, self.current)
        self.cut()
        await asyncio.sleep(seconds)
        await self._start(self.current)

    async def _kill(self, seconds: float) -> None:
        await self.outage(min(seconds, 2.0))

    async def _terminate(self, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            await asyncio.to_thread(
                ask, self.url,
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
            )  # fmt: skip
            await asyncio.sleep(STORM_SECONDS)

    async def _fill_disk(self, seconds: float) -> None:
        """Postgres refuses what needs room, and stops when its log has none; once there is room, it is started again
        if it stopped."""
        assert self._disk is not None, "disk_full needs a disk that may be filled"
        self._disk.fill()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._disk.free()
        await asyncio.to_thread(self._servers.revive, self.current)
        self.connect()

    async def _promote_sync(self, seconds: float) -> None:
        standby = await self._standby()
        await asyncio.to_thread(self._servers.replicate_synchronously, self.current)
        await asyncio.sleep(seconds)
        before = await asyncio.to_thread(_ends, self.url)
        await self._replace_by(standby, crash=True)
        after = await asyncio.to_thread(_ends, self.url)
        self.offences += [
            f"a synchronous standby lacks commits: partition_key={key} had={end} has={after.get(key)}"
            for key, end in before.items()
            if after.get(key, -1) < end
        ]

    # -- drills that may lose what the report must list

    async def _promote_async(self, seconds: float) -> None:
        standby = await self._standby()
        await asyncio.sleep(seconds)
        await self._fall_behind(standby)
        await self._replace_by(standby, crash=True)

    async def _split(self, seconds: float) -> None:
        """The old primary stays up, and one agent stays connected to it."""
        standby = await self._standby()
        await self._fall_behind(standby)
        old, self.current = self.current, standby
        stays = self._rng.choice(self._links)
        await asyncio.to_thread(self._servers.promote, standby)
        self.connect([link for link in self._links if link is not stays])
        await asyncio.sleep(seconds)
        self.connect([stays])
        await asyncio.to_thread(self._servers.remove, old)

    async def _move_address(self, seconds: float) -> None:
        """The old primary stays up, and connections to it stay open."""
        standby = await self._standby()
        await self._fall_behind(standby)
        old, self.current = self.current, standby
        await asyncio.to_thread(self._servers.promote, standby)
        self.counts_connections = True
        try:
            ports = self._servers.port(old), self._servers.port(standby)
            self.offences += await move_address(*ports, self._links, self.starts, self._rng)
        finally:
            self.counts_connections = False
        await asyncio.to_thread(self._servers.remove, old)

    async def _same_timeline(self, seconds: float) -> None:
        """Two standbys of one primary are promoted one after the other: both are on the timeline after its."""
        first, second = await self._standby(), await self._standby()
        await self._replace_by(first, crash=True)
        await asyncio.sleep(seconds)
        await self._replace_by(second, crash=False)

    async def _restore_base(self, seconds: float) -> None:
        """Restore a base backup to a point in time: recovery ends on a new timeline."""
        backup = self._new_name()
        await asyncio.to_thread(self._servers.back_up, self.current, backup)
        await asyncio.sleep(seconds)
        await self._lose_current()
        await asyncio.to_thread(self._servers.start_from_backup, backup)
        self.current = backup
        self.connect()

    async def _restore_volume(self, seconds: float) -> None:
        """A copy of the directory: same identifier, same timeline."""
        copy = self._new_name()
        self.cut()
        await asyncio.to_thread(self._servers.crash, self.current)
        await asyncio.to_thread(self._servers.copy_volume, self.current, copy)
        await self._start(self.current)
        await asyncio.sleep(seconds)
        await self._lose_current()
        await asyncio.to_thread(self._servers.start, copy)
        self.current = copy
        self.connect()
        await self._commands.migrate_restored(self.url)

    async def _restore_dump(self, seconds: float) -> None:
        dumped = await asyncio.to_thread(self._servers.dump, self.current)
        await asyncio.sleep(seconds)
        self.cut()
        await asyncio.to_thread(self._servers.restore, dumped, self.current)
        self.connect()
        await self._commands.migrate_restored(self.url)

    # -- steps

    async def _start(self, name: str) -> None:
        await asyncio.to_thread(self._servers.start, name)
        self.connect()

    async def _standby(self) -> str:
        name = self._new_name()
        await asyncio.to_thread(self._servers.add_standby, name, of=self.current)
        return name

    async def _fall_behind(self, standby: str) -> None:
        await asyncio.to_thread(self._servers.cut, standby)
        await asyncio.sleep(self._rng.uniform(*LAG_SECONDS))
        if self.on_behind is not None:
            await self.on_behind()

    async def _replace_by(self, standby: str, *, crash: bool) -> None:
        """The current server is gone at once, or when its successor is there."""
        old, self.current = self.current, standby
        if crash:
            await asyncio.to_thread(self._servers.crash, old)
        self.cut()
        await asyncio.to_thread(self._servers.promote, standby)
        self.connect()
        await asyncio.to_thread(self._servers.remove, old)

    async def _lose_current(self) -> None:
        self.cut()
        await asyncio.to_thread(self._servers.remove, self.current)

    def _new_name(self) -> str:
        self._made += 1
        return f"server-{self._made}"


def _ends(url: str) -> dict[int, int]:
    """The high watermark of each partition."""
    rows: list[tuple[Any, ...]]
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT partition_key, high_watermark FROM partition_heads").fetchall()
    return {int(key): int(end) for key, end in rows}
