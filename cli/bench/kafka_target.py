"""Apache Kafka for the bench: one node or several (KRaft, broker and controller in one), from a folder of jars.

Place: opened by targets.py. The jars come from Maven: `make tools` of a checkout.
Invariant: settings, heap and collector are those of Kafka's own start scripts; only addresses and folders are ours,
and replication: one node cannot give that of internal topics, three or more keep three copies of everything.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from headrace.cli.bench.server_process import START_SECONDS, ServerProcess
from headrace.cli.bench.targets import MeasuredTarget, TargetSpec
from headrace.cli.bench.topic_admin import open_admin
from headrace.config.errors import ConfigError
from headrace.config.free_ports import free_ports
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.cluster_properties import random_cluster_id
from headrace.storage.errors import UnavailableError

JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""bin/kafka-server-start.sh and bin/kafka-run-class.sh."""
PAUSE_SECONDS = 0.2
REPLICAS, IN_SYNC_REPLICAS = 3, 2


@asynccontextmanager
async def open_kafka(spec: TargetSpec, folder: Path, jars: Path | None) -> AsyncIterator[MeasuredTarget]:
    """Started on empty log directories in `folder`. ConfigError without Java or jars."""
    path, java, count = find_jars(Path(spec.where) if spec.where else jars), find_java(), spec.options().nodes
    ports = free_ports(2 * count)
    nodes = cluster_properties(folder, ports[:count], ports[count:])
    cluster_id, run_class = random_cluster_id(random.SystemRandom()), [java, "-cp", f"{path}/*"]
    async with AsyncExitStack() as stack:
        processes, addresses = [], []
        for index, node in enumerate(nodes, 1):
            lines = node | spec.passed_on()
            config, log = folder / f"server-{index}.properties", folder / f"kafka-{index}.log"
            config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
            formatting = [*run_class, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
            async with ServerProcess(formatting, log) as process:
                await process.output()
            server = ServerProcess([java, *JVM, *run_class[1:], "kafka.Kafka", str(config)], log)
            processes.append(await stack.enter_async_context(server))
            addresses.append(lines["advertised.listeners"].partition(",")[0].partition("://")[2])
        await _until_ready(processes, ",".join(addresses), SystemClock())
        yield MeasuredTarget(
            spec.name,
            ",".join(addresses),
            _version(path),
            roots={"kafka": tuple(process.pid for process in processes)},
            replication_factor=replicas(count),
        )


def replicas(nodes: int) -> int:
    """Return the replication factor of all topics of a cluster."""
    return min(REPLICAS, nodes)


def cluster_properties(folder: Path, ports: Sequence[int], controller_ports: Sequence[int]) -> list[dict[str, str]]:
    """Return the settings of each node, with its log directory in `folder`. Pure.

    Several nodes keep REPLICAS copies of each record, and acknowledge it with acks=all, as all rows ask, once
    IN_SYNC_REPLICAS have it.
    """
    count = len(ports)
    factor, in_sync = str(replicas(count)), str(min(IN_SYNC_REPLICAS, count))
    voters = ",".join(f"{index}@127.0.0.1:{port}" for index, port in enumerate(controller_ports, 1))
    own = {
        "controller.quorum.voters": voters,
        "offsets.topic.replication.factor": factor,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
    }
    if count > 1:
        own |= {"default.replication.factor": factor, "min.insync.replicas": in_sync}
    return [
        server_properties(index, folder / f"logs-{index}", port, controller_port) | own
        for index, (port, controller_port) in enumerate(zip(ports, controller_ports, strict=True), 1)
    ]


def server_properties(node: int, logs: Path, port: int, controller_port: int) -> dict[str, str]:
    """config/server.properties of Kafka's distribution, with our addresses and log directory."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "num.network.threads": "3",
        "num.io.threads": "8",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "102400",
        "socket.request.max.bytes": "104857600",
        "log.dirs": str(logs),
    }


def find_jars(folder: Path | None) -> Path:
    """The folder with the jars: `folder` or, in Kafka's home, its `libs`. ConfigError if there are none."""
    if folder is None:
        raise ConfigError("where are Apache Kafka's jars? --kafka DIR (`make tools` of a checkout brings them)")
    for path in (folder, folder / "libs"):
        if list(path.glob("kafka_2*.jar")):
            return path
    raise ConfigError(f"no jar of Apache Kafka (kafka_2*.jar) in {folder}")


def find_java() -> str:
    """The program `java`; ConfigError if it is not there."""
    if (java := shutil.which("java")) is None:
        raise ConfigError("java is not installed")
    return java


async def _until_ready(processes: Sequence[ServerProcess], bootstrap: str, clock: Clock) -> None:
    until = clock.monotonic() + START_SECONDS
    while clock.monotonic() < until:
        for process in processes:
            if process.ended():
                raise process.failure()
        if await asyncio.to_thread(has_brokers, bootstrap, len(processes)):
            return
        await clock.sleep(PAUSE_SECONDS)
    raise UnavailableError(f"Apache Kafka was not ready within {START_SECONDS} s")


def has_brokers(bootstrap: str, count: int) -> bool:
    """Say whether a server answers, and knows so many brokers."""
    try:
        with open_admin(bootstrap) as cluster:
            return len(cluster.nodes()) >= count
    except UnavailableError:
        return False


def _version(jars: Path) -> str:
    (server,) = sorted(jars.glob("kafka_2*.jar"))[:1]
    return f"Apache Kafka {server.stem.rpartition('-')[2]}"
