"""Agents by the HorizontalPodAutoscaler: 2 -> 5 -> 2, while clients produce and consume."""

from __future__ import annotations

import json
import time

from tests.kubernetes.scenarios import clients
from tests.kubernetes.scenarios.install import ROLLOUT
from tests.kubernetes.scenarios.release import NAME, Release

REQUEST = "500m"


def scale(release: Release) -> str:
    """Scale the agents by CPU: 90 percent of the request, then 10. The chart's pace is made faster for the test,
    and says so.
    """
    release.set_metrics("300m")  # 60 percent: as wanted
    release.upgrade(
        {
            "autoscaling/enabled": True, "autoscaling/minReplicas": 2, "autoscaling/maxReplicas": 5,
            "autoscaling/scaleDownSeconds": 5,
        },
        timeout=ROLLOUT,
    )  # fmt: skip
    behaviour = {
        "scaleUp": {"stabilizationWindowSeconds": 0},
        "scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]},
    }
    release.kubectl(
        "patch", "hpa", f"{NAME}-agent", "--type=merge", "-p", json.dumps({"spec": {"behavior": behaviour}})
    )
    with clients.inside(release) as watched:
        release.set_metrics("900m")
        began = time.monotonic()
        release.wait_for_agents(5, 180)
        up = time.monotonic() - began
        release.set_metrics("50m")
        began = time.monotonic()
        release.wait_for_agents(2, 240)
        down = time.monotonic() - began
    return f"2 to 5 in {up:.0f} s, 5 to 2 in {down:.0f} s (one agent per 15 s, set by the test); {watched}"
