"""Postgres (fsync on), an S3 API and three agents, each behind a fault proxy; Postgres behind one for each agent.

Invariant: every part works again after its fault is over; leaving the context ends every
process that was started here.
"""

from __future__ import annotations

import asyncio
import random
import signal
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType

import psycopg

from headrace.metastore.postgres.formatted import formatted_cluster_id
from load.postgres_servers import Servers
from tests.torture.agents import ProxiedAgent
from tests.torture.commands import Commands
from tests.torture.drills import PostgresDrills, drills
from tests.torture.faults import AGENT_NAMES, BUCKET_FAULTS, LINK_FAULTS, Fault
from tests.torture.held_snapshot import HeldSnapshot
from tests.torture.proxy import FaultProxy
from tests.torture.servers import STORES
from tests.torture.small_disk import SmallDisk

SETTINGS: dict[str, object] = {
    "s3.request.timeout.ms": 3_000,
    "metastore.pool.size": 4,
    "metastore.statement.timeout.ms": 3_000,
    "metastore.lock.timeout.ms": 2_000,
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
    "linger.ms": 50,
    "log.level": "warning",
    # files are merged about as fast as they come: every fault meets a compaction
    "process.roles": "broker,controller,compactor",
    "compaction.interval.ms": 500,
    "compaction.min.age.ms": 0,
    "compaction.max.age.ms": 500,
}

LOW_LATENCY: dict[str, object] = {
    "low.latency.enable": True,
    # some files go into the metastore, and some into the bucket: each stream is in both
    "low.latency.max.bytes.per.second": 200_000,
    "low.latency.move.ms": 1_000,
}

PRIMARY = "primary"
DRILL_GAP_SECONDS = 3.0
"""Seconds between two drills, so that clients get something acknowledged."""


class TortureCluster:
    """Entered with everything up. `injected` counts faults by kind; `snapshot` is held while it is not None.

    `fills_disk`: Postgres gets a small disk. `holds_snapshot`: a transaction keeps the oldest snapshot it can have.
    `settings`: of the agents, besides SETTINGS. `zones`: of the agents, in their order; empty: none.
    `store`: of STORES; its proxy is called s3 for each.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        fills_disk: bool = False,
        holds_snapshot: bool = False,
        settings: Mapping[str, object] = MappingProxyType({}),
        zones: Sequence[str] = (),
        store: str = "s3",
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._zones = zones or [""] * len(AGENT_NAMES)
        self.operator_settings: dict[str, object] = {}
        """Of a command on the first agent's machine: it reaches what that agent reaches."""
        self._seed = seed
        self._rng = random.Random(seed)
        self._fills_disk = fills_disk
        self._holds_snapshot = holds_snapshot
        self.snapshot: HeldSnapshot | None = None
        self.s3 = STORES[store](directory)
        self.links = [FaultProxy(self._rng) for _ in AGENT_NAMES]
        """To Postgres, in the order of the agents."""
        self.proxies = {name: [FaultProxy(self._rng)] for name in ("s3", *AGENT_NAMES)} | {"postgres": self.links}
        self.agents: dict[str, ProxiedAgent] = {}
        self._busy = {name: asyncio.Lock() for name in self.proxies}
        self.injected: Counter[str] = Counter()
        self.kills: list[float] = []
        """When an agent was killed, of the loop's clock."""

    async def __aenter__(self) -> TortureCluster:
        async with AsyncExitStack() as started:
            disk = started.enter_context(SmallDisk(self._directory)) if self._fills_disk else None
            home = (self._directory if disk is None else disk.path) / "postgres"
            home.mkdir()
            servers = await asyncio.to_thread(started.enter_context, Servers(home, fsync=True, tcp=True))
            started.enter_context(self.s3)
            for proxy in (proxy for proxies in self.proxies.values() for proxy in proxies):
                await proxy.start()
                started.push_async_callback(proxy.close)
            self.proxies["s3"][0].target = self.s3.port
            self.commands = Commands(self.s3.settings(self.s3.port), self._directory)
            self.drills = PostgresDrills(servers, self.links, self.commands, disk, random.Random(self._seed))
            self.drills.connect()
            cluster_id = formatted_cluster_id(self.drills.url)
            assert cluster_id is not None
            await self.commands.format(self.drills.url, cluster_id)
            if self._holds_snapshot:
                self.snapshot = HeldSnapshot(lambda: self.drills.url_if_running)
                holding = asyncio.create_task(self.snapshot.hold())
                started.callback(holding.cancel)
            bucket = self.s3.settings(self.proxies["s3"][0].port)
            settings = SETTINGS | dict(self._settings) | bucket
            url = servers.tcp_url(PRIMARY, self.links[0].port)
            self.operator_settings = {"metastore.url": url, **bucket}
            for name, agent in self._make_agents(settings, servers).items():
                started.push_async_callback(agent.stop)
                self.agents[name] = agent
            self.drills.starts = lambda: [agent.starts for agent in self.agents.values()]
            await asyncio.gather(*(agent.start() for agent in self.agents.values()))
            self._started = started.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._started.aclose()

    @property
    def bootstrap(self) -> str:
        """All agents, by way of their proxies."""
        return ",".join(agent.address for agent in self.agents.values())

    async def run(self, faults: list[Fault]) -> None:
        """Inject them at their times; returns when the last one is over and everything is up again."""
        started = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as striking:
            for fault in faults:
                await asyncio.sleep(started + fault.at_s - asyncio.get_running_loop().time())
                striking.create_task(self._strike(fault))

    async def run_drills(self, seconds: float, kinds: Sequence[str]) -> None:
        """One after another, until the time is over and each kind had its turn."""
        until = asyncio.get_running_loop().time() + seconds
        for number, drill in enumerate(drills(self._seed, kinds)):
            if number >= len(kinds) and asyncio.get_running_loop().time() >= until:
                return
            self.injected[drill.kind] += 1
            async with self._busy["postgres"]:
                await self.drills.strike(drill)
            await asyncio.sleep(DRILL_GAP_SECONDS)

    async def watch_metrics(self) -> None:
        """Read the agents' counters every second, so that a kill forgets little; until cancelled."""
        while True:
            for agent in self.agents.values():
                await asyncio.to_thread(agent.read_metrics)
            await asyncio.sleep(1)

    def producers_of_metastore(self) -> tuple[int, int]:
        """Return how many producer ids have written, and the highest epoch among them."""
        with psycopg.connect(self.drills.url) as connection:
            query = "SELECT count(DISTINCT producer_id), coalesce(max(epoch), 0) FROM producer_state"
            row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def files_of_metastore(self) -> set[uuid.UUID]:
        """The segment files that the metastore names."""
        with psycopg.connect(self.drills.url) as connection:
            return {
                row[0]
                for row in connection.execute(
                    "SELECT file_id FROM segment_files WHERE state = 0 AND NOT is_inline(file_id)"
                )
            }

    async def _strike(self, fault: Fault) -> None:
        if fault.target == "postgres" and self._busy["postgres"].locked():
            if fault.kind not in LINK_FAULTS:
                return  # a drill is under way: restarts that wait for it would leave clients no time
            if self.drills.counts_connections:
                return
        kind = fault.kind if fault.kind not in LINK_FAULTS else f"{fault.kind} {_side(fault.target)}"
        self.injected[kind] += 1
        if fault.kind in (*LINK_FAULTS, *BUCKET_FAULTS):
            await asyncio.gather(*(proxy.strike(fault.kind, fault.seconds) for proxy in self.proxies[fault.target]))
            return
        async with self._busy[fault.target]:  # on a busy machine a restart may outlast the schedule's pause
            await self._strike_process(fault)

    async def _strike_process(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                self.kills.append(asyncio.get_running_loop().time())
                await self.agents[fault.target].kill()
                await asyncio.sleep(fault.seconds)
                await self.agents[fault.target].start()
            case "pause":
                self.agents[fault.target].signal(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                self.agents[fault.target].signal(signal.SIGCONT)
            case "restart":
                await self.drills.restart(min(fault.seconds, 2.0))
            case unknown:
                raise ValueError(f"unknown fault: {unknown}")

    def _make_agents(self, settings: dict[str, object], servers: Servers) -> dict[str, ProxiedAgent]:
        return {
            name: ProxiedAgent(
                name,
                self.proxies[name][0],
                settings
                | {"metastore.url": servers.tcp_url(PRIMARY, link.port)}
                | ({"broker.rack": zone} if zone else {}),
                self._directory / f"{name}.log",
            )
            for name, link, zone in zip(AGENT_NAMES, self.links, self._zones, strict=True)
        }


def _side(target: str) -> str:
    """Agents count together: which of them had the fault says little."""
    return "clients-agent" if target.startswith("agent") else f"agents-{target}"
