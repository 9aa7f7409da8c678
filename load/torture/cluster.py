"""Postgres (fsync on), an S3 API and three agents, each behind a fault proxy.

Invariant: every part works again after its fault is over; leaving the context ends every
process that was started here.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import uuid
from base64 import urlsafe_b64encode
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

import psycopg

from headrace.metastore.postgres.embedded import EmbeddedPostgres
from load.torture.agents import ProxiedAgent, flags
from load.torture.faults import AGENT_NAMES, LINK_FAULTS, Fault
from load.torture.proxy import FaultProxy
from load.torture.servers import BUCKET, CREDENTIALS, S3Server

SETTINGS: dict[str, object] = {
    "s3.region": "us-east-1",
    "s3.path.style": True,
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


class TortureCluster:
    """Entered with everything up. `injected` counts faults by kind."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._rng = random.Random(seed)
        self.postgres = EmbeddedPostgres(directory / "postgres", fsync=True, tcp=True)
        self.s3 = S3Server(directory)
        self.proxies = {name: FaultProxy(self._rng) for name in ("postgres", "s3", *AGENT_NAMES)}
        self.agents: dict[str, ProxiedAgent] = {}
        self._busy = {name: asyncio.Lock() for name in self.proxies}
        self.injected: Counter[str] = Counter()

    async def __aenter__(self) -> TortureCluster:
        async with AsyncExitStack() as started:
            started.callback(self.postgres.stop)
            await asyncio.to_thread(self.postgres.start)
            started.enter_context(self.s3)
            for proxy in self.proxies.values():
                await proxy.start()
                started.push_async_callback(proxy.close)
            self.proxies["postgres"].target = self.postgres.port
            self.proxies["s3"].target = self.s3.port
            settings = SETTINGS | {
                "metastore.url": self.postgres.tcp_url(port=self.proxies["postgres"].port),
                "bucket": f"s3://{BUCKET}/run",
                "s3.endpoint": f"http://127.0.0.1:{self.proxies['s3'].port}",
            }
            await self._format(settings)
            for name, agent in self._make_agents(settings).items():
                started.push_async_callback(agent.stop)
                self.agents[name] = agent
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

    async def watch_metrics(self) -> None:
        """Read the agents' counters every second, so that a kill forgets little; until cancelled."""
        while True:
            for agent in self.agents.values():
                await asyncio.to_thread(agent.read_metrics)
            await asyncio.sleep(1)

    def producers_of_metastore(self) -> tuple[int, int]:
        """How many producer ids have written, and the highest epoch among them."""
        with psycopg.connect(self.postgres.url()) as connection:
            query = "SELECT count(DISTINCT producer_id), coalesce(max(epoch), 0) FROM producer_state"
            row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    def files_of_metastore(self) -> set[uuid.UUID]:
        """The segment files that the metastore names."""
        with psycopg.connect(self.postgres.url()) as connection:
            return {row[0] for row in connection.execute("SELECT file_id FROM segment_files WHERE state = 0")}

    async def _strike(self, fault: Fault) -> None:
        kind = fault.kind if fault.kind not in LINK_FAULTS else f"{fault.kind} {_side(fault.target)}"
        self.injected[kind] += 1
        if fault.kind in LINK_FAULTS:
            await self.proxies[fault.target].strike(fault.kind, fault.seconds)
            return
        async with self._busy[fault.target]:  # on a busy machine a restart may outlast the schedule's pause
            await self._strike_process(fault)

    async def _strike_process(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                await self.agents[fault.target].kill()
                await asyncio.sleep(fault.seconds)
                await self.agents[fault.target].start()
            case "pause":
                self.agents[fault.target].signal(signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                self.agents[fault.target].signal(signal.SIGCONT)
            case "restart":
                self.proxies["postgres"].target = 0
                await asyncio.to_thread(self.postgres.stop)
                await asyncio.sleep(min(fault.seconds, 2.0))
                await asyncio.to_thread(self.postgres.start)
                self.proxies["postgres"].target = self.postgres.port
            case unknown:
                raise ValueError(f"unknown fault: {unknown}")

    def _make_agents(self, settings: dict[str, object]) -> dict[str, ProxiedAgent]:
        return {
            name: ProxiedAgent(name, self.proxies[name], settings, self._directory / f"{name}.log")
            for name in AGENT_NAMES
        }

    async def _format(self, settings: dict[str, object]) -> None:
        cluster_id = urlsafe_b64encode(self._rng.randbytes(16)).decode().rstrip("=").replace("-", "A")
        wanted = ("metastore.url", "bucket", "s3.endpoint", "s3.region", "s3.path.style")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace.cli.main", "storage", "format", "-t", cluster_id,
            *flags({name: settings[name] for name in wanted}),
            env=os.environ | CREDENTIALS, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        if await process.wait():
            raise RuntimeError("formatting the storage failed")


def _side(target: str) -> str:
    """Agents count together: which of them had the fault says little."""
    return "clients-agent" if target.startswith("agent") else f"agents-{target}"
