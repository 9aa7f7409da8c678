"""`headrace dev` as a child process, for the demo, the benchmarks and the tests of the whole.

Invariant: leaving the context stops everything that it started, by process id.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headrace.config.settings import Settings
from headrace.metastore.api.reports import Statistics
from headrace.metastore.postgres.installation import remove_data_dir
from headrace.metastore.postgres.store import PostgresMetastore

STOP_SECONDS = 90


@dataclass(frozen=True)
class AgentAddress:
    """Address of one agent (host:port) and its process id."""

    node_id: int
    kafka: str
    http: str
    pid: int


class DevServer:
    """Started on entry and ready for clients; `settings` are dotted names, as in a properties file."""

    def __init__(
        self,
        data_dir: Path,
        *,
        agents: int = 1,
        settings: Mapping[str, object] | None = None,
        keep_data: bool = False,
        checkout: Path | None = None,
        errors: Path | None = None,
    ) -> None:
        """`keep_data`: leave Postgres' data at the end, for another server on the same directory. `checkout`: another
        checkout with its .venv, to run its Headrace. `errors`: the file for the log lines, else stderr.
        """
        self._data_dir = data_dir
        self._keep_data = keep_data
        self._errors = errors
        self._checkout = checkout
        self._environment = dict(os.environ)
        if checkout:
            self._environment["PYTHONPATH"] = f"{checkout}/src:{checkout}"  # also if its .venv is another checkout's
        own = [sys.executable, "-m", "headrace.cli.main"]
        headrace = [str(checkout / ".venv/bin/headrace")] if checkout else own
        flags = [part for name, value in (settings or {}).items() for part in (_flag(name), str(value))]
        self._command = [
            *headrace, "dev",
            "--data-dir", str(data_dir), "--agents", str(agents),
            "--listeners", "PLAINTEXT://127.0.0.1:0", "--http-port", "0", "--log-level", "warning", *flags,
        ]  # fmt: skip
        self._count = agents
        self._remembered: dict[str, dict[str, float]] = {}
        self.agents: list[AgentAddress] = []
        self.metastore_url = ""
        self.bucket = ""

    def __enter__(self) -> DevServer:
        errors = self._errors.open("w") if self._errors else None
        self._process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            env=self._environment,
            cwd=self._checkout,
        )
        if errors is not None:
            errors.close()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.match(r"\s*ready node=(\d+) kafka=(\S+) http=(\S+) pid=(\d+)", line):
                self.agents.append(AgentAddress(int(match[1]), match[2], match[3], int(match[4])))
            elif match := re.match(r"ready bootstrap=\S+ metastore=(\S+) bucket=(\S+)", line):
                self.metastore_url, self.bucket = match[1], match[2]
                return self
        self._process.wait()
        raise RuntimeError(f"headrace dev ended with status {self._process.returncode} before it was ready")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if not self._keep_data:
            remove_data_dir(self._data_dir / "postgres")

    @property
    def environment(self) -> dict[str, str]:
        """The environment with which its Headrace, of another checkout too, is found."""
        return self._environment

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL the supervisor and all agents, as a crash of the machine does; Postgres ends without them."""
        for pid in (self.pid, *(agent.pid for agent in self.agents)):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    @property
    def bootstrap(self) -> str:
        """Every agent, as clients take it."""
        return ",".join(agent.kafka for agent in self.agents)

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str] | None = None, *, replication_factor: int = 1
    ) -> None:
        """Create a topic through the Kafka protocol."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
        await admin.start()
        try:
            topic = NewTopic(name, partitions, replication_factor, topic_configs=dict(configs or {}))
            await admin.create_topics([topic])
        finally:
            await admin.close()

    def statistics(self) -> Statistics:
        """Return what the metastore holds."""
        return asyncio.run(_statistics(self.metastore_url))

    def metric(self, name: str) -> float:
        """Sum of a metric's samples over all agents; a dead one counts as it was last remembered."""
        self.remember_metrics()
        return sum(samples.get(name, 0.0) for samples in self._remembered.values())

    def remember_metrics(self) -> None:
        """Read the /metrics of every running agent."""
        for agent in self.agents:
            try:
                with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=60) as response:
                    text = response.read().decode()
            except OSError:
                continue  # killed on purpose by the caller
            samples: dict[str, float] = {}
            for match in re.finditer(r"^([a-z_]+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
                samples[match[1]] = samples.get(match[1], 0.0) + float(match[2])
            self._remembered[agent.http] = samples


def _flag(name: str) -> str:
    return "--" + name.replace(".", "-")


async def _statistics(url: str) -> Statistics:
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=1))
    try:
        return await metastore.reports.statistics()
    finally:
        await metastore.close()
