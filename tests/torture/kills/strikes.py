"""The schedule of kills and pauses, a pure function of the seed and the same for both targets; and how it is done.

Invariant: one server at a time. A strike that is due while the one before is not over yet is late, and that is counted.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from headrace.storage.clock import Clock

NODES = 3
KILLED_S = 1.0, 6.0
"""Time from a kill until the server is started again."""
PAUSED_S = 4.0, 10.0
"""Longer than SESSION_MS, so that leaders move."""
REST_S = {"kill": (14.0, 22.0), "pause": (6.0, 12.0)}
"""After a strike, so that the server starts, and its replicas catch up. A killed node of Kafka starts in 6 to 16 s."""
SESSION_MS = 3_000
"""How long both targets wait for a silent server."""
LATE_S = 0.5


class Strike(NamedTuple):
    """`kind`: kill or pause; `node`: from 0."""

    at_s: float
    kind: str
    node: int
    seconds: float


class StruckNode(Protocol):
    """A server that can be killed and paused."""

    async def start(self) -> None:
        """Return once it serves clients."""

    async def kill(self) -> None:
        """End it by SIGKILL."""

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""


def strikes(seed: int, seconds: float, nodes: int = NODES) -> list[Strike]:
    """Return them in order of time, all over before `seconds`."""
    rng = random.Random(seed)
    found: list[Strike] = []
    at_s = 2.0
    while True:
        kind, node = rng.choice(("kill", "pause")), rng.randrange(nodes)
        length_s = rng.uniform(*(KILLED_S if kind == "kill" else PAUSED_S))
        if at_s + length_s >= seconds:
            return found
        found.append(Strike(round(at_s, 3), kind, node, round(length_s, 3)))
        at_s += length_s + rng.uniform(*REST_S[kind])


@dataclass
class Striking:
    """Carries strikes out. `say` gets a line for each."""

    nodes: Sequence[StruckNode]
    say: Callable[[str], None]
    clock: Clock
    injected: Counter[str] = field(default_factory=Counter)
    late: int = 0
    latest_s: float = 0.0

    async def run(self, due: Sequence[Strike]) -> None:
        """Return when the last one is over and every server serves clients."""
        began = self.clock.monotonic()
        for strike in due:
            await self.clock.sleep(began + strike.at_s - self.clock.monotonic())
            behind_s = self.clock.monotonic() - began - strike.at_s
            self.late += behind_s > LATE_S
            self.latest_s = max(self.latest_s, behind_s)
            self.injected[strike.kind] += 1
            await self._carry_out(strike)

    async def _carry_out(self, strike: Strike) -> None:
        node = self.nodes[strike.node]
        self.say(f"{strike.kind} of server {strike.node} for {strike.seconds:.1f} s")
        if strike.kind == "pause":
            node.signal(signal.SIGSTOP)
            await self.clock.sleep(strike.seconds)
            node.signal(signal.SIGCONT)
        else:
            await node.kill()
            await self.clock.sleep(strike.seconds)
            await node.start()
        self.say(f"server {strike.node} is back")
