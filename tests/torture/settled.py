"""What an agent still has to end after the clients of a run are gone.

Place: at the end of both torture runs.
Invariant: each count comes to 0 within SETTLE_SECONDS, or is an offence: a file in flight has no definite end, and a
request that is neither answered nor ended with its connection makes a client wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from tests.torture.agents import ProxiedAgent

SETTLE_SECONDS = 300
COUNTS: dict[str, Callable[[Mapping[str, float]], float]] = {
    "files in flight": lambda metrics: metrics["headrace_produce_files_in_flight"],
    "requests without an answer": lambda metrics: (
        metrics["headrace_kafka_requests_total"]
        - metrics["headrace_kafka_request_seconds_count"]
        - metrics.get("headrace_kafka_requests_unanswered_total", 0.0)
    ),
}


def unsettled(agent: ProxiedAgent) -> Iterator[str]:
    """Yield what the agent does not end. Blocks for SETTLE_SECONDS at most for each of COUNTS."""
    for name, count in COUNTS.items():
        left = _settled(agent, count)
        if left != 0:
            yield f"{agent.name} still has {name}: {left}"


def _settled(agent: ProxiedAgent, count: Callable[[Mapping[str, float]], float]) -> float | None:
    """The last count, None if the agent gave none."""
    until, left = time.monotonic() + SETTLE_SECONDS, None
    while left != 0 and time.monotonic() < until:
        metrics = agent.read_metrics()
        left = count(metrics) if metrics else left
        if left != 0:
            time.sleep(0.2)
    return left
