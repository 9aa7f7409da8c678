"""Apache Kafka for the bench: one node (KRaft, broker and controller) with its defaults, from a folder of jars.

Place: opened by targets.py. The jars come from Maven: `make tools` of a checkout.
Invariant: settings, heap and collector are those of Kafka's own start scripts; only addresses and folders are ours,
and the replication of internal topics, which one node cannot give.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.cli.bench.server_process import START_SECONDS, ServerProcess
from headrace.cli.bench.target_spec import TargetSpec
from headrace.cli.bench.targets import MeasuredTarget
from headrace.cli.bench.topic_admin import open_admin
from headrace.config.errors import ConfigError
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


@asynccontextmanager
async def open_kafka(spec: TargetSpec, folder: Path, jars: Path | None) -> AsyncIterator[MeasuredTarget]:
    """Started on an empty log directory in `folder`. ConfigError without Java or jars."""
    path = find_jars(Path(spec.where) if spec.where else jars)
    java = find_java()
    port, controller_port = _free_ports(2)
    config = folder / "server.properties"
    lines = server_properties(folder / "logs", port, controller_port) | spec.settings
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
    log, run_class = folder / "kafka.log", [java, "-cp", f"{path}/*"]
    cluster_id = random_cluster_id(random.SystemRandom())
    formatting = [*run_class, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
    async with ServerProcess(formatting, log) as process:
        await process.output()
    async with ServerProcess([java, *JVM, *run_class[1:], "kafka.Kafka", str(config)], log) as process:
        bootstrap = lines["advertised.listeners"].partition(",")[0].partition("://")[2]
        await _until_ready(process, bootstrap, SystemClock())
        yield MeasuredTarget(spec.name, bootstrap, _version(path), roots={"kafka": process.pid})


def server_properties(logs: Path, port: int, controller_port: int) -> dict[str, str]:
    """config/server.properties of Kafka's distribution, with our addresses and log directory."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
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
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
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


async def _until_ready(process: ServerProcess, bootstrap: str, clock: Clock) -> None:
    until = clock.monotonic() + START_SECONDS
    while clock.monotonic() < until:
        if process.ended():
            raise process.failure()
        if await asyncio.to_thread(_has_brokers, bootstrap):
            return
        await clock.sleep(PAUSE_SECONDS)
    raise UnavailableError(f"Apache Kafka was not ready within {START_SECONDS} s")


def _has_brokers(bootstrap: str) -> bool:
    try:
        with open_admin(bootstrap) as cluster:
            return bool(cluster.nodes())
    except UnavailableError:
        return False


def _version(jars: Path) -> str:
    (server,) = sorted(jars.glob("kafka_2*.jar"))[:1]
    return f"Apache Kafka {server.stem.rpartition('-')[2]}"


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
