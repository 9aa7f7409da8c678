"""What an operator does or suffers while clients produce and consume: upgrade, crash, drain, a migration that fails."""

from __future__ import annotations

import subprocess
import threading
import time

from tests.kubernetes.cluster.stores import metastore_url
from tests.kubernetes.kubelet.container import kill
from tests.kubernetes.programs import program
from tests.kubernetes.scenarios import clients
from tests.kubernetes.scenarios.install import PARTS, ROLLOUT, secret, zones_of_agents
from tests.kubernetes.scenarios.release import AGENTS, NAME, CommandError, Release, is_ready

DRAINED, OTHERS = "node-b", ("node-a", "node-c")


def rolling_upgrade(release: Release) -> str:
    """Another image tag replaces every agent and the compactor.

    From now on an init container reads the node's zone, and the metastore's whole address is in one key of the Secret.
    """
    before = {pod["metadata"]["uid"] for pod in release.ready_agents()}
    fewest = len(before)
    with clients.inside(release) as watched:
        ended = threading.Event()
        seen: list[int] = []
        watcher = threading.Thread(target=_count_ready, args=(release, seen, ended))
        watcher.start()
        whole = {f"metastore/parts/{part}": "" for part in PARTS}
        release.upgrade({"image/tag": "two", "zone/from": "nodeLabel", **whole}, timeout=ROLLOUT)
        release.wait_for_agents(
            fewest, 180
        )  # helm returns when the new agents are ready, before the last old one ended
        ended.set()
        watcher.join()
    after = release.ready_agents()
    assert not before & {pod["metadata"]["uid"] for pod in after}, "an agent was not replaced"
    assert min(seen) >= fewest, f"fewer ready agents than {fewest}: {seen}"
    zones = zones_of_agents(release)
    return f"never fewer than {min(seen)} ready agents; zones {' and '.join(zones)} from the nodes; {watched}"


def _count_ready(release: Release, seen: list[int], ended: threading.Event) -> None:
    while not ended.wait(0.3):
        seen.append(len(release.ready_agents()))


def pod_killed(release: Release) -> str:
    """SIGKILL to an agent's process 1: the kubelet starts it again in the same pod."""
    with clients.inside(release) as watched:
        victim = release.ready_agents()[0]
        name = victim["metadata"]["name"]
        (status,) = victim["status"]["containerStatuses"]
        began = time.monotonic()
        kill(int(status["containerID"].removeprefix("process://")))

        def is_back() -> bool:
            pod = release.get("pods", name)
            return is_ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"] == status["restartCount"] + 1

        release.wait_for("the killed agent is ready again", is_back, 120)
        took = time.monotonic() - began
        time.sleep(2)
    return f"ready again after {took:.0f} s; {watched}"


def node_drained(release: Release) -> str:
    """Drain a node: at least two agents on the drained node; the PodDisruptionBudget allows one at a time."""
    release.run(program("kubectl"), "cordon", *OTHERS)
    release.set_metrics(None)
    release.upgrade({"autoscaling/enabled": False, "agents/replicas": 4}, timeout=ROLLOUT)
    release.wait_for_agents(4)
    release.run(program("kubectl"), "uncordon", *OTHERS)
    there = [pod for pod in release.pods(AGENTS) if pod["spec"]["nodeName"] == DRAINED]
    assert len(there) >= 2, f"agents on {DRAINED}: {len(there)}"
    with clients.inside(release) as watched:
        ended = threading.Event()
        seen: list[int] = []
        watcher = threading.Thread(target=_count_ready, args=(release, seen, ended))
        watcher.start()
        told = _drain(release)
        ended.set()
        watcher.join()
        release.wait_for_agents(4)
    release.run(program("kubectl"), "uncordon", DRAINED)
    assert "would violate the pod's disruption budget" in told, told
    assert min(seen) >= 3, seen
    assert not [pod for pod in release.pods(AGENTS) if pod["spec"]["nodeName"] == DRAINED]
    release.upgrade({"agents/replicas": 2}, timeout=ROLLOUT)
    release.wait_for_agents(2)
    refusals = told.count("would violate the pod's disruption budget")
    moved = f"{len(there)} agents moved, {refusals} evictions refused by the budget"
    return f"{moved}, never fewer than {min(seen)} ready agents of 4; {watched}"


def _drain(release: Release) -> str:
    command = [program("kubectl"), "drain", DRAINED, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s"]
    environment = {"KUBECONFIG": release.state["kubeconfig"], "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def failed_migration(release: Release) -> str:
    """The migration Job cannot connect: the upgrade ends, and the agents are the same as before."""
    parts = release.state["metastore"] | {"password": "wrong"}
    secret(release, "wrong", {"metastore-url": metastore_url("wrong"), **parts})
    before = {pod["metadata"]["uid"] for pod in release.ready_agents()}
    revision = release.get("deployments", f"{NAME}-agent")["metadata"]["generation"]
    values = {"metastore/existingSecret": "wrong", "migration/backoffLimit": 0, "migration/timeoutSeconds": 60}
    with clients.inside(release) as watched:
        try:
            release.upgrade(values, timeout="2m")
        except CommandError as error:
            reason = str(error)
        else:
            raise AssertionError("the upgrade went on after a failed migration")
    assert "pre-upgrade hooks failed" in reason, reason
    assert release.get("deployments", f"{NAME}-agent")["metadata"]["generation"] == revision
    assert {pod["metadata"]["uid"] for pod in release.ready_agents()} == before
    (job,) = release.pods("app.kubernetes.io/component=migrate")
    line = release.log(job["metadata"]["name"]).strip().splitlines()[-1]
    release.upgrade(timeout=ROLLOUT)  # with the right values it continues
    return f"`pre-upgrade hooks failed`, agents unchanged; the Job's last line: {line[:160]}; {watched}"
