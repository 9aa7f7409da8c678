"""Headrace's own commands, each in a pod as an operator would run it.

Place: used by scenarios.
Invariant: a command that fails raises with its output; its pod is removed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.kubernetes.kubelet.checking import enter
from tests.kubernetes.scenarios.release import NAME, NAMESPACE, CommandError, Json, Release

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


def exec_in(release: Release, pod: Json, *command: str, text: str = "") -> str:
    """Run a command in the first container of a pod, as `kubectl exec -i` does, as its user."""
    name = pod["spec"]["containers"][0]["name"]
    folder = f"{NAMESPACE}_{pod['metadata']['name']}-{pod['metadata']['uid'][:8]}"
    runs = (release.folder / "memory" / "pods" / folder / "containers").glob(f"{name}-*/pid")
    pid = max(runs, key=lambda path: path.stat().st_mtime).read_text()
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    done = subprocess.run(
        [*enter(int(pid)), *command],
        env=dict(entry.split("=", 1) for entry in entries if "=" in entry),
        input=text, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    if done.returncode:
        raise CommandError(f"{' '.join(command)}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def run_as(release: Release, pod: Json, client: str, *command: str, text: str = "") -> str:
    """Run one of Headrace's commands in a pod, with this properties file of a client, which it finds in /tmp."""
    exec_in(release, pod, "sh", "-c", "cat > /tmp/client.properties", text=client)
    server = ("-b", f"{NAME}:9092", "--command-config", "/tmp/client.properties")
    return exec_in(release, pod, "headrace", *command, *server, text=text)


def must_be_denied(what: str, command: Callable[[], str]) -> None:
    """Fail unless the cluster refuses the command for lack of rights."""
    try:
        command()
    except CommandError as error:
        if "authoriz" in str(error).lower():
            return
        raise
    raise AssertionError(f"not refused: {what}")
