"""Fuzz one agent with requests: `python -m tests.fuzz [--requests N] [--seconds S] [--seed N]`.

A fresh agent gets well-formed, altered and adversarial requests of every API and version on many connections, while
an ordinary producer and consumer use it. Printed every minute and at the end: requests, the agent's memory above
idle, the longest stall of its event loop, handlers that failed, tracebacks in its log, and how the ordinary clients
fared. The exit status is 1 if the agent ended, a handler failed, or the clients were not served.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field

from load.machine_state import machine_state
from tests.fuzz.frames import RequestSource
from tests.fuzz.senders import FuzzCounts, send
from tests.hostile.attacked_agent import AttackedAgent, Watch
from tests.hostile.bystanders import Bystanders

MIB = 1024 * 1024
CONNECTIONS = 64
SETTINGS = {"max.topics": 60, "max.partitions": 600, "node.id": 7_001}
"""Settings with which what well-formed requests create stays small, and that they do not name the agent:
UnregisterBroker with its node id is a valid request, after which it registers again, and the ordinary clients wait
meanwhile.
"""
REPORT_SECONDS = 60.0


@dataclass
class FuzzOutcome:
    """Outcome of a whole run."""

    counts: FuzzCounts = field(default_factory=FuzzCounts)
    seconds: float = 0.0
    grown_bytes: int = 0
    stall_seconds: float = 0.0
    failed_connections: int = 0
    """Handlers that raised what they should not."""
    tracebacks: int = 0
    is_alive: bool = True
    clients: str = ""

    def __str__(self) -> str:
        return (
            f"{self.counts}; {self.seconds:.0f} s, {self.counts.sent / max(self.seconds, 0.001):.0f} requests/s;"
            f" memory {self.grown_bytes / MIB:+.0f} MiB, stall {self.stall_seconds * 1000:.0f} ms;"
            f" {self.failed_connections} handlers failed, {self.tracebacks} tracebacks"
            f"{'' if self.is_alive else '; THE AGENT ENDED'}; ordinary clients: {self.clients or 'not judged yet'}"
        )

    @property
    def is_good(self) -> bool:
        """Whether the agent withstood it."""
        return self.is_alive and not self.failed_connections and not self.tracebacks and "FAILED" not in self.clients


async def fuzz(target: AttackedAgent, seed: int, requests: int, seconds: float) -> FuzzOutcome:
    """Against a started agent, until so many requests were sent or the time is over."""
    outcome, bystanders = FuzzOutcome(), Bystanders(target.bootstrap)
    await asyncio.to_thread(bystanders.start)
    began = time.monotonic()
    async with Watch(target) as watch:
        frames = RequestSource(seed)
        senders = [
            asyncio.create_task(send(target.kafka, frames, outcome.counts, requests)) for _ in range(CONNECTIONS)
        ]
        pending = set(senders)
        while pending and target.is_alive() and (left := seconds - (time.monotonic() - began)) > 0:
            done, pending = await asyncio.wait(pending, timeout=min(left, REPORT_SECONDS))
            for task in done:
                task.result()
            outcome.seconds = time.monotonic() - began
            await _look(outcome, target, watch)
            if pending:
                print(outcome, flush=True)
        for task in senders:
            task.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
        await _look(outcome, target, watch)
    await asyncio.to_thread(bystanders.stop)
    outcome.clients = bystanders.verdict()
    return outcome


async def _look(outcome: FuzzOutcome, target: AttackedAgent, watch: Watch) -> None:
    outcome.is_alive = target.is_alive()
    outcome.grown_bytes, outcome.stall_seconds = watch.grown_bytes, watch.stall_seconds
    outcome.tracebacks = target.log.read_text(errors="replace").count("Traceback")
    outcome.failed_connections = await asyncio.to_thread(_failed_connections, target)


def _failed_connections(target: AttackedAgent) -> int:
    host, port = target.http
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as response:
        found = re.search(rb'connections_closed_total\{reason="failed"\} ([\d.e+]+)', response.read())
    return int(float(found[1])) if found else 0


def main(argv: Sequence[str] | None = None) -> None:
    """Run until a limit is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    print(machine_state(), f"seed={args.seed}", flush=True)
    with AttackedAgent(settings=SETTINGS) as target:
        outcome = asyncio.run(fuzz(target, args.seed, args.requests, args.seconds))
        print(outcome)
        print(dict(outcome.counts.by_kind))
        if not outcome.is_good:
            print(target.log.read_text(errors="replace")[-20_000:], file=sys.stderr)
    sys.exit(not outcome.is_good)


if __name__ == "__main__":
    main()
