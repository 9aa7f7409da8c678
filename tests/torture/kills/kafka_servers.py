"""Three nodes of Apache Kafka (KRaft, broker and controller in one), each of which can be killed and started again.

Place: the counterpart of tests/torture/cluster.py, for runs with kills only. Settings are those of `headrace bench`,
with Headrace's session timeout.
Invariant: leaving the context ends every process that was started here. A killed node keeps its ports: they are below
the ports that the kernel gives to connections, else a client that connects to a dead node could get the node's port.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from headrace.cli.bench.headrace_target import accepts
from headrace.cli.bench.kafka_target import JVM, cluster_properties, find_jars, find_java, has_brokers
from headrace.cli.children import die_with_parent
from headrace.storage.cluster_properties import random_cluster_id
from tests.tools import KAFKA_JARS
from tests.torture.kills.strikes import NODES, SESSION_MS

PORTS = range(20_000, 32_000)
START_SECONDS = 240.0
PAUSE_SECONDS = 0.2
SETTINGS = {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}


class KafkaNode:
    """One node, formatted. `address`: of clients."""

    def __init__(self, command: list[str], address: str, log: Path) -> None:
        self.address = address
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        """Start it, and return at once."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    async def start(self) -> None:
        """Return once it says that all nodes serve; RuntimeError if it does not for a good while."""
        await self.begin()
        await self.until_ready()

    async def until_ready(self) -> None:
        """Wait for what `start` waits for."""
        assert self._process is not None
        port = int(self.address.rpartition(":")[2])
        until = asyncio.get_running_loop().time() + START_SECONDS
        while asyncio.get_running_loop().time() < until and self._process.returncode is None:
            if accepts(port) and await asyncio.to_thread(has_brokers, self.address, NODES):
                return
            await asyncio.sleep(PAUSE_SECONDS)
        raise RuntimeError(f"a node does not start: {self._log.read_text(errors='replace')[-2000:]}")

    async def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)


class KafkaServers:
    """Use it with `async with`: on entry all nodes serve. Logs and data are in `directory`."""

    def __init__(self, directory: Path) -> None:
        jars, java = find_jars(KAFKA_JARS), find_java()
        self.name = f"Apache Kafka {next(jars.glob('kafka_2*.jar')).stem.rpartition('-')[2]}"
        run_class = [java, "-cp", f"{jars}/*"]
        ports = lasting_ports(2 * NODES)
        cluster_id = random_cluster_id(random.SystemRandom())
        self.nodes = []
        for index, properties in enumerate(cluster_properties(directory, ports[:NODES], ports[NODES:])):
            config, log = directory / f"kafka-{index}.properties", directory / f"kafka-{index}.log"
            config.write_text("".join(f"{name}={value}\n" for name, value in (properties | SETTINGS).items()))
            formatting = [*run_class, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
            with log.open("ab") as output:
                subprocess.run(formatting, stdout=output, stderr=output, check=True)
            command = [java, *JVM, *run_class[1:], "kafka.Kafka", str(config)]
            self.nodes.append(KafkaNode(command, f"127.0.0.1:{ports[index]}", log))

    @property
    def bootstrap(self) -> str:
        """All nodes."""
        return ",".join(node.address for node in self.nodes)

    async def __aenter__(self) -> KafkaServers:
        async with AsyncExitStack() as started:
            for node in self.nodes:
                started.push_async_callback(node.kill)  # asked politely, the last ones would wait for a quorum
                await node.begin()
            for node in self.nodes:
                await node.until_ready()
            self._started = started.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._started.aclose()


def lasting_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens now, and that no connection gets as its own."""
    ports = random.SystemRandom().sample(PORTS, len(PORTS))
    free = (port for port in ports if not accepts(port))
    return [next(free) for _ in range(count)]
