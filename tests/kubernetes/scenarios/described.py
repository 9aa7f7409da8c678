"""The chart's `topics`, `users` and `acls`: the Job that applies them, drift that `helm test` shows, its repair."""

from __future__ import annotations

from pathlib import Path

from tests.kubernetes.scenarios.administration import NEW_PASSWORD
from tests.kubernetes.scenarios.commands import exec_in, must_be_denied, run_as
from tests.kubernetes.scenarios.install import ROLLOUT, secret
from tests.kubernetes.scenarios.release import NAME, CommandError, Release
from tests.kubernetes.scenarios.secured import CLIENT, failed_test

TOPIC, USER, PASSWORD = "orders", "billing", "of-billing"
DRIFT = f"{NAME}-test-drift"


def cluster_file(release: Release) -> str:
    """After `admin-listener`: a topic, a user and its ACL by the values; then a change by hand is found and mended."""
    secret(release, "billing-password", {"password": PASSWORD})
    described = {
        "topics": [{"name": TOPIC, "partitions": 3, "configs": {"retention.ms": 604_800_000}}],
        "users": [{"name": USER, "existingSecret": "billing-password"}],
        "acls": [
            *release.values["acls"],
            {
                "principal": f"User:{USER}",
                "resource": {"type": "topic", "name": TOPIC},
                "operations": ["Read", "Write", "Describe"],
            },
        ],
    }
    release.upgrade(described, timeout=ROLLOUT)
    _passes(release)
    produced = _billing(release)
    _by_hand(release, "topics", "alter", TOPIC, "--set", "retention.ms=1000")
    _by_hand(release, "acls", "delete", "--topic", TOPIC, "--principal", f"User:{USER}", "--yes")
    told = failed_test(release, DRIFT)
    assert "retention.ms" in told, told
    assert f"User:{USER}" in told, told
    release.upgrade(timeout=ROLLOUT)
    _passes(release)
    _refuses(release)
    release.helm("uninstall", NAME, "--wait", "--timeout", "3m")
    return f"applied by the Job; {produced}; drift of a topic and of ACLs failed helm test, an upgrade mended it"


def _passes(release: Release) -> None:
    output = release.helm("test", NAME, "--timeout", "2m")
    assert "Succeeded" in output, output
    told = release.log(DRIFT)
    assert "no difference" in told, told


def _billing(release: Release) -> str:
    """The user of the values logs in and may do what its ACL allows, and no more."""
    pod = release.ready_agents()[0]
    _authority(release)
    client = CLIENT.format(user=USER, password=PASSWORD).replace("/etc/headrace-client/", "/tmp/")
    run_as(release, pod, client, "records", "produce", TOPIC, text="of-billing\n")
    must_be_denied("a deletion", lambda: run_as(release, pod, client, "topics", "delete", TOPIC, "--yes"))
    return f"{USER} logs in, writes a record, and may not delete the topic"


def _by_hand(release: Release, *command: str) -> None:
    _authority(release)
    client = CLIENT.format(user="admin", password=NEW_PASSWORD).replace("/etc/headrace-client/", "/tmp/")
    run_as(release, release.ready_agents()[0], client, *command)


def _authority(release: Release) -> None:
    pod = release.ready_agents()[0]
    exec_in(release, pod, "sh", "-c", "cat > /tmp/ca.pem", text=release.state["authority"])


def _refuses(release: Release) -> None:
    """A description that the cluster refuses ends the upgrade, and the Job's log names why."""
    before = release.values["topics"]
    try:
        release.upgrade({"topics": [{**before[0], "partitions": 1}], "clusterFile/timeoutSeconds": 30}, timeout=ROLLOUT)
    except CommandError:
        pass
    else:
        raise AssertionError("fewer partitions were applied without a flag")
    told = "".join(release.log(path.name.partition("_")[2]) for path in _job_folders(release))
    assert "partitions" in told, told
    release.upgrade(timeout=ROLLOUT)


def _job_folders(release: Release) -> list[Path]:
    return sorted((release.folder / "pods").glob(f"*_{NAME}-cluster-file-*"))
