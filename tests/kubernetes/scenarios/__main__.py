"""Run scenarios on a cluster that is up: `python -m tests.kubernetes.scenarios FOLDER [NAME ...]`.

Place: cluster/host.py runs it inside the namespaces. One line for each scenario: what, seconds, result.
Invariant: later scenarios use what earlier ones left, so that a failed `install` ends the run; the exit status is 1 if
any failed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.kubernetes.scenarios import (
    administration,
    changes,
    described,
    install,
    outage,
    removal,
    scaling,
    secured,
    spark,
)
from tests.kubernetes.scenarios.release import Release

SCENARIOS: dict[str, Callable[[Release], str]] = {
    "install": install.install,
    "helm-test": install.helm_test,
    "inside": install.inside,
    "spark": spark.spark_compaction,
    "scale": scaling.scale,
    "rolling-upgrade": changes.rolling_upgrade,
    "pod-killed": changes.pod_killed,
    "node-drained": changes.node_drained,
    "failed-migration": changes.failed_migration,
    "outage": outage.outage,
    "outside": install.outside,
    "proxied": install.proxied,
    "uninstall": removal.uninstall,
    "secured": secured.secured,
    "admin-listener": administration.admin_listener,
    "cluster-file": described.cluster_file,
}


def main() -> int:
    """The number of failures, at most 1."""
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(SCENARIOS)
    release = Release(folder)
    remembered = folder / "release.json"  # for scenarios that are run one by one
    if remembered.exists():
        release.values = json.loads(remembered.read_text())
    failed = []
    for name in names:
        began = time.monotonic()
        try:
            result = f"passed: {SCENARIOS[name](release)}"
        except Exception as error:
            failed.append(name)
            result = f"FAILED: {type(error).__name__}: {error}\n{release.tails()}"
        remembered.write_text(json.dumps(release.values))
        print(f"{name:17} {time.monotonic() - began:5.0f} s  {result}", flush=True)
        if failed == ["install"]:
            break
    print(
        f"{len(names) - len(failed)} of {len(names)} scenarios passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return min(1, len(failed))


if __name__ == "__main__":
    sys.exit(main())
