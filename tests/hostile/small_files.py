"""One client floods a low-latency topic with one-record batches while an ordinary client writes little.

`python -m tests.hostile.small_files [--store STORE]`: an agent with low.latency.enable, a real Postgres with fsync, an
S3 server or an emulator of another store behind the latency proxy of `headrace bench`. The flood comes from 127.0.0.2:
hundreds of connections, one record for each partition in a request. The ordinary client, on 127.0.0.1, sends one record
at a time, first alone and then next to the flood. Judged by counts: the share of its requests that are inline, which
the extents of its topic say, and the bytes that Postgres holds. Its p99 is printed and judged too; it is of the machine
that runs this.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from headrace.cli.bench.headrace_target import PROXY, find_program, proxy_flags
from headrace.cli.bench.orders import percentile
from headrace.cli.bench.server_process import ServerProcess
from headrace.cli.bench.targets import open_target, parse_target
from headrace.cli.bench.topic_admin import create_topic
from load.dev_server import DevServer
from load.machine_state import machine_state
from load.workloads.producer import Frames, HostileWorkload
from tests.tools import why_missing
from tests.torture.servers import CREDENTIALS, NEEDS, STORES

FLOOD_ADDRESS, ORDINARY_ADDRESS = "127.0.0.2", "127.0.0.1"
FLOOD, ORDINARY = "flood", "ordinary"
FLOOD_PARTITIONS = 8
HELD_MAX_BYTES = 64 * 1024 * 1024
"""The least that the setting allows."""
BYTES_PER_SECOND = 256 * 1024
"""The rate of inline files: a part of what the flood sends."""
TARGET = (
    "low=dev bucket=s3 put-ms=45 get-ms=15 low.latency.enable=true"
    f" low.latency.held.max.bytes={HELD_MAX_BYTES} low.latency.max.bytes.per.second={BYTES_PER_SECOND}"
    " low.latency.move.ms=600000"  # so that extents name the files as they were committed
)
PAUSE_SECONDS = 0.05
"""The pause of the ordinary client after each answer."""
INLINE_SHARE_BAR, P99_RATIO_BAR = 0.99, 2.0
_STORED = """
    SELECT count(*), count(*) FILTER (WHERE is_inline(e.file_id))
      FROM extents e JOIN partitions p USING (partition_key) JOIN topics t USING (topic_id)
     WHERE t.name = %s AND e.last_offset >= %s
"""


@dataclass
class Client:
    """One connection from `address`: a request, its answer, a pause. `seconds`: what each answer took."""

    address: str
    workload: HostileWorkload
    pause: float
    seconds: list[float] = field(default_factory=list)
    refused: int = 0

    async def run(self) -> None:
        """Send until cancelled."""
        to = ("127.0.0.1", self.workload.port)
        reader, writer = await asyncio.open_connection(*to, local_addr=(self.address, 0))
        frames = Frames(self.workload, -1)
        code_at = 4 + 1 + 1 + 1 + len(self.workload.topic) + 1 + 4
        try:
            while True:
                began = time.monotonic()
                writer.write(frames.next())
                body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                self.seconds.append(time.monotonic() - began)
                self.refused += any(body[code_at : code_at + 2])
                await asyncio.sleep(self.pause)
        finally:
            writer.close()


@dataclass(frozen=True)
class Phase:
    """What the ordinary client got: `p99` in seconds; `share`: of its files that were inline."""

    records: int
    p99: float
    share: float
    refused: int


class SmallFiles:
    """The agent, the flood, and what Postgres says."""

    def __init__(self, port: int, metastore_url: str, seconds: float) -> None:
        self._port, self._url, self._seconds = port, metastore_url, seconds
        self._records = 0
        self.most_held = 0

    async def ordinary(self) -> Phase:
        """Write to the ordinary topic for the time of a phase."""
        client, first = Client(ORDINARY_ADDRESS, self._workload(ORDINARY, 1), PAUSE_SECONDS), self._records
        running = asyncio.create_task(client.run())
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            await asyncio.sleep(1)
            self.most_held = max(self.most_held, *await self._ask("SELECT held_bytes FROM inline_state()"))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        self._records += len(client.seconds)
        files, inline = await self._ask(_STORED, ORDINARY, first)
        return Phase(len(client.seconds), percentile(client.seconds, 99), inline / max(files, 1), client.refused)

    async def flooded(self, connections: int, rate: float) -> tuple[Phase, float, float]:
        """Return the same next to the flood, the flood's requests/s, and the share of its files that are inline."""
        flood = [
            Client(FLOOD_ADDRESS, self._workload(FLOOD, FLOOD_PARTITIONS), connections / rate)
            for _ in range(connections)
        ]
        tasks = [asyncio.create_task(client.run()) for client in flood]
        await asyncio.sleep(2)
        phase = await self.ordinary()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        files, inline = await self._ask(_STORED, FLOOD, 0)
        return phase, sum(len(client.seconds) for client in flood) / (self._seconds + 2), inline / max(files, 1)

    def _workload(self, topic: str, partitions: int) -> HostileWorkload:
        return HostileWorkload(self._port, topic, partitions, 1, self._seconds, 1.0, -1)

    async def _ask(self, question: str, *values: object) -> tuple[int, ...]:
        return await asyncio.to_thread(_ask, self._url, question, values)


def _ask(url: str, question: str, values: tuple[object, ...]) -> tuple[int, ...]:
    with psycopg.connect(url) as connection:
        row = connection.execute(question.encode(), values).fetchone()
    assert row is not None
    return tuple(map(int, row))


@asynccontextmanager
async def _target(folder: Path, store: str) -> AsyncIterator[tuple[str, str]]:
    """Start everything; yields where clients connect, and the metastore's URL."""
    spec = parse_target(TARGET)
    if store == "s3":
        async with open_target(spec, folder, None) as running:
            assert running.metastore_url is not None, "a target of this machine"
            yield running.bootstrap, running.metastore_url
        return
    latency = spec.options().s3
    assert latency is not None
    with STORES[store](folder) as server:
        command = [find_program(PROXY), "-upstream", f"127.0.0.1:{server.port}", *proxy_flags(latency)]
        async with ServerProcess(command, folder / "proxy.log") as proxy:
            port = int((await proxy.line(r"ready \S+:(\d+)"))[1])
            settings = spec.passed_on() | server.settings(port)
            with DevServer(folder / "data", settings=settings, errors=folder / "headrace.log") as dev:
                yield dev.bootstrap, dev.metastore_url


async def run(folder: Path, args: argparse.Namespace) -> bool:
    """Alone, then next to the flood; whether each bar is met."""
    async with _target(folder, args.store) as (bootstrap, metastore_url):
        for topic, partitions in ((FLOOD, FLOOD_PARTITIONS), (ORDINARY, 1)):
            await asyncio.to_thread(create_topic, bootstrap, topic, partitions, 1)
        files = SmallFiles(int(bootstrap.rpartition(":")[2]), metastore_url, args.seconds)
        await files.ordinary()  # the agent is warm, and has seen the slots
        alone = await files.ordinary()
        flooded, rate, share = await files.flooded(args.connections, args.rate)
    print(f"flood: {rate:.0f} requests/s of {FLOOD_PARTITIONS} batches, {share:.0%} of its extents inline")
    for name, phase in (("alone", alone), ("next to the flood", flooded)):
        print(
            f"ordinary client {name}: {phase.records} records, p99 {phase.p99 * 1e3:.0f} ms, {phase.share:.1%} inline"
        )
    return _bars(alone, flooded, files.most_held)


def _bars(alone: Phase, flooded: Phase, held: int) -> bool:
    ratio = flooded.p99 / alone.p99
    bars = (
        (f"{flooded.share:.1%} of its files inline", f">= {INLINE_SHARE_BAR:.0%}", flooded.share >= INLINE_SHARE_BAR),
        (f"p99 {ratio:.2f} x that alone", f"<= {P99_RATIO_BAR:.0f}", ratio <= P99_RATIO_BAR),
        (f"{held / 1e6:.1f} MB held", f"< {HELD_MAX_BYTES / 1e6:.1f}", held < HELD_MAX_BYTES),
        (f"{flooded.refused} of its requests refused", "0", not flooded.refused),
    )
    for found, wanted, met in bars:
        print(f"{'met ' if met else 'MISS'} {found} (bar {wanted})")
    return all(met for *_, met in bars)


def main() -> int:
    """Start everything, print the bars; 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15, help="of each of three phases")
    parser.add_argument("--connections", type=int, default=300, help="of the flood")
    parser.add_argument("--rate", type=float, default=300, help="requests per second of the flood, at most")
    parser.add_argument("--store", choices=STORES, default="s3", help="the object storage of the bucket (s3)")
    args = parser.parse_args()
    if args.store != "s3":
        if reason := why_missing(NEEDS[args.store]):
            parser.error(reason)
        os.environ.update(CREDENTIALS)
    print(machine_state(), flush=True)
    with tempfile.TemporaryDirectory(prefix="headrace-hostile-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        folder.chmod(0o711)  # started by root, Postgres runs as another user and must get through
        return 0 if asyncio.run(run(folder, args)) else 1


if __name__ == "__main__":
    sys.exit(main())
