"""The status of a pod, from what its containers do.

Place: pod_worker.py writes it to the API server. Pure but for the clock of ContainerState's times.
Invariant: a pod is ready if it runs, is not being deleted and all its containers are ready.
"""

from __future__ import annotations

import datetime
from typing import Any

from tests.kubernetes.kubelet.container import Container
from tests.kubernetes.kubelet.endings import Run, phase
from tests.kubernetes.kubelet.environment import Json


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ContainerState:
    """One container of a pod, across its restarts."""

    def __init__(self, spec: Json) -> None:
        self.spec = spec
        self.container: Container | None = None
        """While it runs."""
        self.exit_code: int | None = None
        """After its last run."""
        self.restarts = 0
        self.waiting = "ContainerCreating"
        self._started_at = ""
        self._last: Json = {}
        self._identity = ""

    def running(self, container: Container) -> None:
        """It started."""
        self.container = container
        self._started_at = _now()
        self._identity = f"process://{container.pid}"

    def ended(self, code: int, reason: str | None, again: bool) -> None:
        """It ended; `again`: it will be started again."""
        self.container = None
        self._last = {"terminated": {
            "exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": self._started_at, "finishedAt": _now(), "containerID": self._identity,
        }}  # fmt: skip
        if again:
            self.restarts += 1
        else:
            self.exit_code = code

    @property
    def ready(self) -> bool:
        """Whether it is ready by its probes."""
        return self.container is not None and self.container.probes.ready

    def as_run(self) -> Run:
        """Return the containers as the pod's phase counts them."""
        return Run(self.container is not None or bool(self._last), self.exit_code)

    def status(self) -> Json:
        """An entry of containerStatuses."""
        state: dict[str, Any]
        if self.container is not None:
            state = {"running": {"startedAt": self._started_at}, "waiting": None, "terminated": None}
        elif self.exit_code is not None and self._last:
            state = self._last | {"running": None, "waiting": None}
        else:
            state = {"waiting": {"reason": self.waiting}, "running": None, "terminated": None}
        return {
            "name": self.spec["name"], "image": self.spec["image"], "imageID": self.spec["image"],
            "containerID": self._identity, "restartCount": self.restarts, "ready": self.ready or self._completed_init(),
            "started": self.container is not None and self.container.probes.started,
            "state": state, "lastState": self._last if self.restarts else {},
        }  # fmt: skip

    def _completed_init(self) -> bool:
        return self.exit_code == 0


def pod_status(
    pod: Json,
    init: list[ContainerState],
    main: list[ContainerState],
    initialised: bool,
    address: str | None,
    host: str,
    message: str,
    deleting: bool,
) -> Json:
    """A strategic merge patch of `status`."""
    current = phase(initialised, [state.as_run() for state in main], deleting)
    ready = current == "Running" and not deleting and all(state.ready for state in main)
    status = {
        "phase": current,
        "hostIP": host,
        "conditions": [
            _condition(pod, "Initialized", initialised),
            _condition(pod, "ContainersReady", ready),
            _condition(pod, "Ready", ready),
        ],
        "containerStatuses": [state.status() for state in main],
        "startTime": pod.get("status", {}).get("startTime") or _now(),
        "message": message or None,
    }
    if init:
        status["initContainerStatuses"] = [state.status() for state in init]
    if address:
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return status


def _condition(pod: Json, kind: str, value: bool) -> Json:
    text = str(value)
    for each in pod.get("status", {}).get("conditions", ()):
        if each["type"] == kind and each["status"] == text:
            return {"type": kind, "status": text, "lastTransitionTime": each["lastTransitionTime"]}
    return {"type": kind, "status": text, "lastTransitionTime": _now()}
