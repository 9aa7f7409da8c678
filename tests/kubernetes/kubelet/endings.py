"""How containers end: whether they start again, when, and what a pod's phase is.

Place: decisions of pod_worker.py. Pure.
Invariant: the grace period covers preStop and the time after SIGTERM together; a preStop hook that uses it up leaves
MIN_GRACE_S for SIGTERM, as in Kubernetes (pkg/kubelet/kuberuntime/kuberuntime_container.go).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BACK_OFF_S = 10.0
BACK_OFF_MAX_S = 300.0
CALM_S = 600.0
"""A container that ran this long starts with no back-off again."""
MIN_GRACE_S = 2.0
DEFAULT_GRACE_S = 30.0


def starts_again(policy: str, exit_code: int) -> bool:
    """Return whether it starts again, by the pod's restartPolicy."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


class BackOff:
    """The pause before each start of one container."""

    def __init__(self) -> None:
        self._next = 0.0

    def pause_after(self, ran_s: float) -> float:
        """Seconds to wait after a run of `ran_s`: 0, 10, 20, 40, ..."""
        if ran_s >= CALM_S:
            self._next = 0.0
        pause = self._next
        self._next = min(max(BACK_OFF_S, 2 * pause), BACK_OFF_MAX_S)
        return pause


def grace_after_hook(grace_s: float, hook_took_s: float) -> float:
    """Return what SIGTERM has left; 0 kills at once."""
    if grace_s <= 0:
        return 0.0
    return max(grace_s - hook_took_s, MIN_GRACE_S)


def grace_of(pod: dict[str, dict[str, object]]) -> float:
    """The deletion's own grace period overrides the spec's."""
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is None:
        given = pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    return float(str(given))


@dataclass(frozen=True, slots=True)
class Run:
    """One container: `exit_code` None while it runs, or will be started again."""

    started_once: bool
    exit_code: int | None


def phase(initialised: bool, runs: Sequence[Run], deleting: bool = False) -> str:
    """The pod's phase."""
    if not initialised:
        return "Failed" if deleting else "Pending"
    if all(run.exit_code is not None for run in runs):
        return "Failed" if any(run.exit_code for run in runs) else "Succeeded"
    return "Running" if any(run.started_once for run in runs) else "Pending"
