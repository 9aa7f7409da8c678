"""The CronJob's Spark driver makes executors with its own rights, and compacts."""

from __future__ import annotations

import json
import re

from tests.kubernetes.scenarios import clients
from tests.kubernetes.scenarios.install import ROLLOUT
from tests.kubernetes.scenarios.release import NAME, Release

DRIVER, EXECUTOR = "app.kubernetes.io/component=spark", "spark-role=executor"
SUMMARY = re.compile(r"compaction on spark ended: jobs_done=(\d+) jobs_failed=(\d+) merged_files=(\d+).*")


def spark_compaction(release: Release) -> str:
    """Every job is for Spark; the CronJob starts a driver each minute until one has done a job."""
    with clients.inside(release) as watched:
        _set_for_spark(release)
        release.upgrade(
            {
                "spark/enabled": True, "spark/image/repository": "headrace-spark", "spark/image/tag": "one",
                "spark/schedule": "* * * * *", "spark/executors/instances": 1, "spark/executors/cores": 1,
            },
            timeout=ROLLOUT,
        )  # fmt: skip
        executors: set[str] = set()

        def done() -> re.Match[str] | None:
            executors.update(pod["metadata"]["name"] for pod in release.pods(EXECUTOR))
            drivers = release.pods(DRIVER)
            _suspend(
                release, any(pod.get("status", {}).get("phase") in (None, "Pending", "Running") for pod in drivers)
            )
            for pod in drivers:
                found = SUMMARY.search(release.log(pod["metadata"]["name"]))
                if found and int(found[1]) > 0:
                    return found
                assert pod.get("status", {}).get("phase") != "Failed", release.log(pod["metadata"]["name"])[-3000:]
            return None

        found = release.wait_for("a driver that did a job", done, 420)
    release.upgrade({"spark/enabled": False}, timeout=ROLLOUT)
    assert executors, "no executor pod"
    assert int(found[2]) == 0, found[0]
    return f"{found[0]}; executor pods: {len(executors)}; {watched}"


def _suspend(release: Release, wanted: bool) -> None:
    """One driver at a time is enough for this machine."""
    (cron_job,) = release.get("cronjobs")["items"]
    if cron_job["spec"].get("suspend", False) != wanted:
        patch = json.dumps({"spec": {"suspend": wanted}})
        release.kubectl("patch", "cronjob", cron_job["metadata"]["name"], "--type=merge", "-p", patch)


def _set_for_spark(release: Release) -> None:
    """Through the cluster's own command, in a pod as an operator would."""
    settings = (
        "compaction.spark.min.bytes=1",
        "compaction.min.age.ms=0",
        "compaction.max.age.ms=5000",
        "compaction.interval.ms=2000",
    )
    image = f"{release.values['image/repository']}:{release.values['image/tag']}"
    release.kubectl(
        "run", "configs", f"--image={image}", "--restart=Never", "--override-type=merge",
        '--overrides={"spec": {"enableServiceLinks": false}}',
        "--command", "--", "headrace", "configs", "set", *settings, "--brokers", "--bootstrap-server", f"{NAME}:9092",
    )  # fmt: skip
    release.wait_for("the settings are stored", lambda: _phase(release) in ("Succeeded", "Failed"))
    assert _phase(release) == "Succeeded", release.log("configs")
    release.kubectl("delete", "pod", "configs")


def _phase(release: Release) -> str:
    return str(release.get("pods", "configs").get("status", {}).get("phase"))
