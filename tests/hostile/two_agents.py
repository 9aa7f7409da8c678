"""W14 with a shared cache: hostile producers on two agents of one zone: `python -m tests.hostile.two_agents`.

Two `headrace dev` agents in one zone; half of the producers are connected to each, every request has one record per
batch for each partition, and a consumer (librdkafka) reads each partition from its leader. So an agent needs files
that the other one wrote, and requests them. Two loads take turns: with idempotence, and the same without. It prints
the age of records when the consumer's poll returns them, the requests between the agents, and both bars.
Figures are of the machine that runs them; the ratio is of one run, by the median round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.bench.orders import percentile
from load.dev_server import AgentAddress, DevServer
from load.machine_state import machine_state
from load.workloads import producer as hostile_producer
from load.workloads import reader as hostile_reader

PARTITIONS = 8
AGE_P99_BAR_S = 2.0
RPC_RATIO_BAR = 1.1
FIRST_ID = 1_000_000
IDS_PER_LOAD = 10_000
SETTINGS: dict[str, object] = {"broker.rack": "zone-a", "flush.early.per.second": 0}
"""No file is closed before its linger ends: at 800 requests/s a file has 40 batches of each partition."""
COUNTERS = {
    "rpcs": "headrace_zone_cache_rpcs_total",
    "fallbacks": "headrace_zone_cache_fallbacks_total",
    "files": "headrace_produce_flushes_total",
}
"""Counters of both agents. A request between them is counted twice: where it is sent, and where it is served."""


@dataclass(frozen=True, slots=True)
class ZoneLoad:
    """One load of one round: records' ages in seconds, requests between the agents, flushed files."""

    batches: int
    ages: list[float]
    rpcs: float
    fallbacks: float
    files: float

    @property
    def batches_per_partition_and_file(self) -> float:
        return self.batches / self.files / PARTITIONS


class Zone:
    """Two agents, and what is sent to them. Producer ids are never used twice."""

    def __init__(self, server: DevServer, args: argparse.Namespace) -> None:
        self._server, self._args = server, args
        self._loads = 0

    async def load(self, *, idempotent: bool) -> ZoneLoad:
        """One load, to a new topic; RuntimeError if the agents answer errors or the consumer misses a record."""
        self._loads += 1
        topic = f"zone-{self._loads}"
        await self._server.create_topic(topic, PARTITIONS)
        reader = await _start(hostile_reader, self._port(self._server.agents[0]), topic, PARTITIONS, reads=True)
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert await reader.stdout.readline() == b"ready\n"
        before = await self._counters()
        sent = await asyncio.gather(
            *(self._produce(n, agent, topic, idempotent) for n, agent in enumerate(self._server.agents))
        )
        batches = sum(summary["batches"] for summary in sent)
        await asyncio.sleep(1)  # the last records reach the consumer
        reader.stdin.close()
        output, _ = await reader.communicate()
        after = await self._counters()
        ages: list[float] = json.loads(output)
        if len(ages) != batches:
            raise RuntimeError(f"the consumer read {len(ages)} of {batches} records")
        return ZoneLoad(batches, ages, **{name: after[name] - before[name] for name in COUNTERS})

    async def _produce(self, number: int, agent: AgentAddress, topic: str, idempotent: bool) -> dict[str, Any]:
        args, count = self._args, len(self._server.agents)
        first = FIRST_ID + (self._loads * count + number) * IDS_PER_LOAD if idempotent else -1
        flags = {
            "port": self._port(agent),
            "topic": topic,
            "partitions": PARTITIONS,
            "producers": args.producers // count,
            "rate": args.rate / count,
            "seconds": args.seconds,
            "first-producer-id": first,
        }
        process = await _start(hostile_producer, *(f"--{name}={value}" for name, value in flags.items()))
        output, _ = await process.communicate()
        summary: dict[str, Any] = json.loads(output)
        if summary["errors"]:
            raise RuntimeError(f"agent {agent.node_id} answered with errors: {summary['errors']}")
        return summary

    async def _counters(self) -> dict[str, float]:
        return {name: await asyncio.to_thread(self._server.metric, counter) for name, counter in COUNTERS.items()}

    def _port(self, agent: AgentAddress) -> str:
        return agent.kafka.rpartition(":")[2]


async def _start(module: Any, *arguments: object, reads: bool = False) -> asyncio.subprocess.Process:
    """A module as a separate process, so that its CPU is not counted with that of the agents."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module.__name__, *map(str, arguments),
        stdin=asyncio.subprocess.PIPE if reads else asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        limit=1 << 28,
    )  # fmt: skip


async def run(server: DevServer, args: argparse.Namespace) -> list[tuple[ZoneLoad, ZoneLoad]]:
    """(with idempotence, without) of each round; the loads take turns in being first."""
    zone, rounds = Zone(server, args), []
    await zone.load(idempotent=False)  # connections and caches are warm afterwards
    for number in range(args.rounds):
        first_is_idempotent = number % 2 == 0
        found = [await zone.load(idempotent=first_is_idempotent), await zone.load(idempotent=not first_is_idempotent)]
        hostile, plain = found if first_is_idempotent else reversed(found)
        rounds.append((hostile, plain))
        print_load("idempotent", hostile)
        print_load("plain", plain)
    return rounds


def print_load(name: str, load: ZoneLoad) -> None:
    """One line."""
    p50, p99 = (percentile(load.ages, percent) * 1000 for percent in (50, 99))
    print(
        f"{name:10} end to end p50/p99 {p50:.0f}/{p99:.0f} ms  {load.rpcs / 2:.0f} requests between agents"
        f"  {load.fallbacks:.0f} fallbacks  {load.files:.0f} files"
        f"  {load.batches_per_partition_and_file:.0f} batches per partition and file",
        flush=True,
    )


def print_bars(rounds: Sequence[tuple[ZoneLoad, ZoneLoad]]) -> bool:
    """Both bars of W14; whether they are met."""
    age = percentile([age for hostile, _ in rounds for age in hostile.ages], 99)
    ratios = [hostile.rpcs / plain.rpcs for hostile, plain in rounds]
    ratio = statistics.median(ratios)
    shown = " ".join(f"{each:.2f}" for each in ratios)
    bars = (
        ("end to end p99, idempotent", f"{age * 1000:.0f} ms", f"{AGE_P99_BAR_S * 1000:.0f} ms", age < AGE_P99_BAR_S),
        (
            "requests between agents, idempotent / plain",
            f"{ratio:.2f} (rounds {shown})",
            f"{RPC_RATIO_BAR}",
            ratio <= RPC_RATIO_BAR,
        ),
    )
    for what, found, wanted, met in bars:
        print(f"{'met ' if met else 'MISS'} {what}: {found} (bar {wanted})")
    return all(met for *_, met in bars)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, parsed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="about 20 s each")
    parser.add_argument("--seconds", type=float, default=8, help="of each load")
    parser.add_argument("--producers", type=int, default=240, help="on both agents together")
    parser.add_argument("--rate", type=float, default=800, help="requests per second, one batch per partition in each")
    return parser.parse_args(given)


def main() -> int:
    """Start two agents, run all rounds, print the bars; 1 if one is missed."""
    args = arguments()
    print(machine_state(), flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-zone-", ignore_cleanup_errors=True) as place:
        directory = Path(place)
        directory.chmod(0o711)  # started by root, Postgres runs as another user and must get through
        with DevServer(directory / "data", agents=2, settings=SETTINGS) as server:
            return 0 if print_bars(asyncio.run(run(server, args))) else 1


if __name__ == "__main__":
    sys.exit(main())
