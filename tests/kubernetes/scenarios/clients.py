"""Clients that run while a scenario changes something: in a pod of the cluster, or outside it.

Place: scenarios enter one of the contexts; at its end the clients stop and their summary is checked.
Invariant: leaving the context without an error means that nothing was lost, doubled, reordered or refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.scenarios.release import NAME, Json, Release

MODULE = "tests.kubernetes.scenarios.client"


@dataclass
class Watched:
    """`summary` is there after the context."""

    topic: str
    summary: Json | None = None

    @property
    def group(self) -> str:
        """Group of its consumer; client.py names it."""
        return f"group-of-{self.topic}"

    def __str__(self) -> str:
        assert self.summary is not None
        told = self.summary
        return (
            f"{told['acknowledged']} records acknowledged and read once, in order; no client error; "
            f"longest pause of a partition's acknowledgements {told['longest_silence_s']} s"
        )


@contextmanager
def inside(release: Release) -> Iterator[Watched]:
    """Yield clients in a pod, by the name of the Service."""
    number = int(time.time())
    name, watched = f"client-{number}", Watched(f"inside-{number}")
    arguments = ["-m", MODULE, f"{NAME}:9092", watched.topic]
    container = {"name": "client", "image": "headrace-test-client", "args": arguments}
    spec = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 180,
        "containers": [container],
    }
    spec["nodeSelector"] = {"kubernetes.io/hostname": "node-a"}  # no scenario drains it
    labels = {"app.kubernetes.io/component": "test-client"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    release.kubectl("apply", "-f", "-", text=json.dumps(pod))
    try:
        release.wait_for("clients inside the cluster run", lambda: _is_running(release, name))
        yield watched
    finally:
        release.kubectl("delete", "pod", name, "--wait=true", "--timeout=200s")
    watched.summary = _checked(release.log(name))


def _is_running(release: Release, name: str) -> bool:
    pod = release.get("pods", name)
    assert pod.get("status", {}).get("phase") not in ("Failed", "Succeeded"), release.log(name)[-2000:]
    return "running" in release.log(name)


@contextmanager
def outside(release: Release, bootstrap: str) -> Iterator[Watched]:
    """Yield clients in a network namespace that has no route to pods and Services."""
    watched = Watched(f"outside-{int(time.time())}")
    command = ["ip", "netns", "exec", "outside", sys.executable, "-u", "-m", MODULE, bootstrap, watched.topic]
    log = release.folder / f"{watched.topic}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        release.wait_for("clients outside the cluster run", lambda: _has_started(process, log))
        yield watched
    finally:
        process.terminate()
        process.wait(200)
    watched.summary = _checked(log.read_text())


def _has_started(process: subprocess.Popen[bytes], log: Any) -> bool:
    assert process.poll() is None, log.read_text()[-2000:]
    return "running" in log.read_text()


def _checked(text: str) -> Json:
    """The summary, if all is as it must be."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    assert lines, f"the clients ended without a summary: {text[-2000:]}"
    found: Json = json.loads(lines[-1])
    assert found["acknowledged"] > 0, found
    assert not found["errors"], found
    assert not found["offences"], found
    assert not found["group_missed"], found
    return found
