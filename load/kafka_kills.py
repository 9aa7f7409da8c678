"""The writers of `make torture` against three nodes of Apache Kafka that are killed: what correct producers meet there.

    python -m load.kafka_kills --seconds 120 --seed 7 --gap 15

Place: compared with `python -m load.torture --kinds kill --gap 15 --clients confluent,java`, which kills agents at
the same times.
Three nodes in one process each (broker and controller), replication factor 3, min.insync.replicas 2.
Invariant: only what a client or the log says is counted; nothing is judged by this program's own expectations.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.bench.kafka_target import JVM, find_jars, find_java
from headrace.storage.cluster_properties import random_cluster_id
from load.tools import KAFKA_JARS
from load.torture.checker import check
from load.torture.faults import AGENT_NAMES, Fault, schedule
from load.torture.reading import read_with_confluent
from load.torture.servers import free_port
from load.torture.writers import DELIVERY_MS, Report, Writer, installed

TOPIC, PARTITIONS, NODES = "torture", 6, 3
CLIENTS = ("confluent", "java")


class KafkaNode:
    """One node; `start` returns when its port takes connections."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.port = port
        self._command, self._log = command, log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return

    async def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


async def open_nodes(folder: Path, leaving: AsyncExitStack) -> list[KafkaNode]:
    """Formatted and started; killed when `leaving` closes."""
    jars, java = find_jars(KAFKA_JARS), find_java()
    ports = [free_port() for _ in range(2 * NODES)]
    voters = ",".join(f"{number + 1}@127.0.0.1:{port}" for number, port in enumerate(ports[NODES:]))
    cluster_id = random_cluster_id(random.SystemRandom())
    nodes = []
    for number in range(NODES):
        config = folder / f"node-{number}.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(number + 1),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{ports[number]},CONTROLLER://127.0.0.1:{ports[NODES + number]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(folder / f"logs-{number}"),
            "default.replication.factor": str(NODES),
            "min.insync.replicas": "2",
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        run_class = [java, "-cp", f"{jars}/*"]
        formatting = [*run_class, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        done = await asyncio.create_subprocess_exec(*formatting, stdout=asyncio.subprocess.DEVNULL)
        if await done.wait():
            raise RuntimeError("Apache Kafka's storage tool failed")
        command = [*run_class[:1], *JVM, *run_class[1:], "kafka.Kafka", str(config)]
        nodes.append(KafkaNode(command, ports[number], folder / f"node-{number}.log"))
    for node in nodes:
        leaving.push_async_callback(node.kill)
    await asyncio.gather(*(node.start() for node in nodes))
    return nodes


async def strike(nodes: Sequence[KafkaNode], faults: Sequence[Fault]) -> None:
    """Kill nodes at the schedule's times, and start each again after its fault's seconds."""
    started = asyncio.get_running_loop().time()

    async def kill(fault: Fault) -> None:
        node = nodes[AGENT_NAMES.index(fault.target)]
        await node.kill()
        await asyncio.sleep(fault.seconds)
        await node.start()

    busy: dict[str, asyncio.Task[None]] = {}
    for fault in faults:
        await asyncio.sleep(started + fault.at_s - asyncio.get_running_loop().time())
        if fault.target in busy and not busy[fault.target].done():
            continue  # a JVM starts more slowly than the schedule's pause
        busy[fault.target] = asyncio.create_task(kill(fault))
    await asyncio.gather(*busy.values())


async def run(seed: int, seconds: float, gap_s: float, rate: int) -> None:
    """Write under kills, read everything, print what was found."""
    commands, _ = installed()
    async with AsyncExitStack() as leaving:
        folder = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="headrace-kafka-kills-")))
        nodes = await open_nodes(folder, leaving)
        bootstrap = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, NODES)])[TOPIC].result(120)
        writers = [Writer(name, commands[name], folder / f"{name}.log") for name in CLIENTS]
        for writer in writers:
            leaving.push_async_callback(writer.stop)
            await writer.start(bootstrap, TOPIC, PARTITIONS, rate, DELIVERY_MS)
        await asyncio.gather(*(writer.answered.wait() for writer in writers))
        faults = schedule(seed, seconds, ["kill"], gap_s=gap_s)
        await strike(nodes, faults)
        reports = await asyncio.gather(*(writer.finish(DELIVERY_MS / 1000 + 300) for writer in writers))
        acknowledged = {name: offset for report in reports for name, offset in report.acknowledged.items()}
        read = await asyncio.to_thread(read_with_confluent, bootstrap, TOPIC, PARTITIONS)
    verdict = check(acknowledged, read)
    bumps = sum(len(report.started_over) for report in reports)
    print(f"kills {len(faults)}  other epochs {bumps}  acknowledged {len(acknowledged):,}  read {verdict.read:,}")
    for report in reports:
        _print_report(report)
    print(f"lost {len(verdict.lost)}  duplicated {len(verdict.duplicated)}  out of order {len(verdict.disordered)}")


def _print_report(report: Report) -> None:
    print(f"  {report.producer}: sent {report.sent:,}  given up {len(report.failed)}  retries {report.retries}")
    for reason, count in Counter(report.started_over).most_common(6):
        print(f"    another epoch {count:3}: {reason[:120]}")


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(prog="python -m load.kafka_kills", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of kills")
    parser.add_argument("--seed", type=int, default=7, help="of the schedule")
    parser.add_argument("--rate", type=int, default=250, help="records per second and client")
    parser.add_argument("--gap", type=float, default=15.0, help="seconds between two kills, in the mean")
    args = parser.parse_args()
    asyncio.run(run(args.seed, args.seconds, args.gap, args.rate))


if __name__ == "__main__":
    main()
