"""Headrace's own commands, each in a pod as an operator would run it.

Place: used by scenarios.
Invariant: a command that fails raises with its output; its pod is removed.
"""

from __future__ import annotations

import json

from tests.kubernetes.scenarios.release import NAME, Release

POD = "command"
PATIENCE_S = 180


def run_command(release: Release, *command: str) -> str:
    """Its output."""
    image = f"{release.values['image/repository']}:{release.values['image/tag']}"
    container = {"name": POD, "image": image, "args": [*command, "--bootstrap-server", f"{NAME}:9092"]}
    spec = {"restartPolicy": "Never", "enableServiceLinks": False, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD}, "spec": spec}
    release.kubectl("apply", "-f", "-", text=json.dumps(pod))

    def phase() -> str | None:
        found = release.get("pods", POD).get("status", {}).get("phase")
        return found if found in ("Succeeded", "Failed") else None

    ended = release.wait_for(f"headrace {' '.join(command)} ends", phase, PATIENCE_S)
    text = release.log(POD)
    release.kubectl("delete", "pod", POD)
    assert ended == "Succeeded", text[-2000:]
    return text


def set_configs(release: Release, *settings: str) -> None:
    """Settings of the cluster."""
    run_command(release, "configs", "set", *settings, "--brokers")


def records_of(release: Release, topic: str) -> int:
    """Return how many records of clients the topic has."""
    lines = run_command(release, "records", "consume", topic).splitlines()
    return len([line for line in lines if line.startswith("p/")])
