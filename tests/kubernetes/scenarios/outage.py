"""Postgres is unreachable for longer than a lease: the chart's probes take out no agent and restart no pod."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request

from tests.kubernetes.kubelet.network import run
from tests.kubernetes.programs import program
from tests.kubernetes.scenarios import clients
from tests.kubernetes.scenarios.release import Release

LEASE_LOST = "its lease ran out"
SECONDS = 25.0
"""Five periods of the readiness probe, of which two that fail are enough."""


def outage(release: Release) -> str:
    """Connections to Postgres are reset until each agent's lease ran out, and for SECONDS more."""
    pods = release.ready_agents()
    before = {pod["metadata"]["name"]: _restarts(pod) for pod in pods}
    seen: list[int] = []
    ended = threading.Event()
    watcher = threading.Thread(target=_count_ready, args=(release, seen, ended))
    with clients.inside(release) as watched:
        watcher.start()
        rule = [
            "-p",
            "tcp",
            "--dport",
            str(release.state["postgres_port"]),
            "-j",
            "REJECT",
            "--reject-with",
            "tcp-reset",
        ]
        run(program("iptables"), "-I", "INPUT", *rule)
        try:
            release.wait_for("every lease ran out", lambda: all(LEASE_LOST in _readyz(pod) for pod in pods), 120)
            time.sleep(SECONDS)
        finally:
            run(program("iptables"), "-D", "INPUT", *rule)
        release.wait_for("every lease is renewed", lambda: not any("details" in _readyz(pod) for pod in pods), 120)
        time.sleep(SECONDS / 2)
        ended.set()
        watcher.join()
    after = {pod["metadata"]["name"]: _restarts(pod) for pod in release.ready_agents()}
    assert after == before, f"restarts: {before} -> {after}"
    assert min(seen) == len(before), f"ready agents: {sorted(set(seen))}"
    return (
        f"never fewer than {min(seen)} ready agents, no restart, {SECONDS:.0f} s after the leases had ended; {watched}"
    )


def _count_ready(release: Release, seen: list[int], ended: threading.Event) -> None:
    while not ended.wait(0.5):
        seen.append(len(release.ready_agents()))


def _restarts(pod: dict[str, dict[str, list[dict[str, int]]]]) -> int:
    return sum(status["restartCount"] for status in pod["status"]["containerStatuses"])


def _readyz(pod: dict[str, dict[str, str]]) -> str:
    try:
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9644/readyz", timeout=10) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
