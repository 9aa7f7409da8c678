"""The CronJob's Spark driver makes executors with its own rights, on a read-only root, and compacts."""

from __future__ import annotations

import json
import re

from tests.kubernetes.scenarios import clients, spark_account
from tests.kubernetes.scenarios.commands import records_of, set_configs
from tests.kubernetes.scenarios.install import ROLLOUT
from tests.kubernetes.scenarios.release import Json, Release

DRIVER, EXECUTOR = "app.kubernetes.io/component=spark", "spark-role=executor"
PATIENCE_S = 900
SUMMARY = re.compile(r"compaction on spark ended: jobs_done=(\d+) jobs_failed=(\d+) merged_files=(\d+).*")


def spark_compaction(release: Release) -> str:
    """Every job is for Spark; the CronJob starts drivers, one at a time, until one has done a job and ended."""
    set_configs(release, "compaction.spark.min.bytes=1", "compaction.min.age.ms=0", "compaction.max.age.ms=5000")
    with clients.inside(release) as watched:
        pass
    release.upgrade(
        {
            "spark/enabled": True, "spark/image/repository": "headrace-spark", "spark/image/tag": "one",
            "spark/schedule": "* * * * *", "spark/executors/instances": 1, "spark/executors/cores": 1,
        },
        timeout=ROLLOUT,
    )  # fmt: skip
    _suspend(release, True)
    spark_account.wait_until_enforced(release)  # so that the policies judge the executors, too
    executors: dict[str, Json] = {}

    def done() -> re.Match[str] | None:
        executors.update({pod["metadata"]["name"]: pod for pod in release.pods(EXECUTOR)})
        drivers = release.pods(DRIVER)
        phases = [pod.get("status", {}).get("phase") for pod in drivers]
        _suspend(release, any(phase in (None, "Pending", "Running") for phase in phases))
        for pod in drivers:
            found = SUMMARY.search(release.log(pod["metadata"]["name"]))
            if found and int(found[1]) > 0:
                return found
            assert pod.get("status", {}).get("phase") != "Failed", release.log(pod["metadata"]["name"])[-3000:]
        return None

    found = release.wait_for("a driver that did a job and ended", done, PATIENCE_S)
    release.wait_for("the executors are gone", lambda: not release.pods(EXECUTOR))
    assert executors, "no executor pod"
    told = spark_account.check_refusals(release, next(iter(executors.values())))
    release.upgrade({"spark/enabled": False}, timeout=ROLLOUT)
    spark_account.check_removed(release)
    set_configs(release, "compaction.spark.min.bytes=0", "compaction.min.age.ms=30000", "compaction.max.age.ms=600000")
    assert int(found[2]) == 0, found[0]
    assert watched.summary is not None
    read = records_of(release, watched.topic)
    assert read == watched.summary["acknowledged"], (read, watched.summary)
    return (
        f"{found[0]}; executor pods: {len(executors)}, gone after it; all {read} records are read from merged files;"
        f" {told}"
    )


def _suspend(release: Release, wanted: bool) -> None:
    """One driver at a time is enough for this machine."""
    (cron_job,) = release.get("cronjobs")["items"]
    if cron_job["spec"].get("suspend", False) != wanted:
        patch = json.dumps({"spec": {"suspend": wanted}})
        release.kubectl("patch", "cronjob", cron_job["metadata"]["name"], "--type=merge", "-p", patch)
