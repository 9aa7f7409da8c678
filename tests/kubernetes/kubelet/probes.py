"""Startup, readiness and liveness of one container, as a state machine.

Place: container.py runs the checks and reports each result here. Pure.
Invariant: a container without a startup probe is started at once; liveness and readiness are checked only after it is
started; without a readiness probe it is ready when it is started. `failureThreshold` failures in a row change the
answer, `successThreshold` successes in a row change it back (Kubernetes: pkg/kubelet/prober/worker.go).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

STARTUP, READINESS, LIVENESS = "startup", "readiness", "liveness"
KINDS = (STARTUP, READINESS, LIVENESS)


@dataclass(frozen=True, slots=True)
class Probe:
    """Times in seconds, with Kubernetes' defaults."""

    initial_delay: float
    period: float
    timeout: float
    successes: int
    failures: int
    action: dict[str, Any]
    """`httpGet`, `tcpSocket` or `exec`, as in the spec."""

    @classmethod
    def of(cls, spec: dict[str, Any]) -> Probe:
        """From a container's spec."""
        return cls(
            spec.get("initialDelaySeconds", 0),
            spec.get("periodSeconds", 10),
            spec.get("timeoutSeconds", 1),
            spec.get("successThreshold", 1),
            spec.get("failureThreshold", 3),
            {name: spec[name] for name in ("httpGet", "tcpSocket", "exec") if name in spec},
        )


@dataclass(slots=True)
class _Streak:
    success: bool = False
    count: int = 0

    def add(self, success: bool) -> None:
        self.count = self.count + 1 if success == self.success else 1
        self.success = success


class ProbeStates:
    """Probe states of one run of a container; a restart makes new ones."""

    def __init__(self, container: dict[str, Any]) -> None:
        self.probes = {kind: Probe.of(container[f"{kind}Probe"]) for kind in KINDS if f"{kind}Probe" in container}
        self._streaks = {kind: _Streak() for kind in self.probes}
        self.started = STARTUP not in self.probes
        self._ready = False
        self.must_end: str | None = None
        """The probe because of which the container must be ended."""

    @property
    def ready(self) -> bool:
        """It should get connections."""
        return self.started and (self._ready or READINESS not in self.probes)

    def active(self) -> Iterator[tuple[str, Probe]]:
        """The probes that are checked now."""
        for kind, probe in self.probes.items():
            if (kind == STARTUP) != self.started:
                yield kind, probe

    def report(self, kind: str, success: bool) -> bool:
        """One result; True if `started`, `ready` or `must_end` changed."""
        before = (self.started, self.ready, self.must_end)
        probe, streak = self.probes[kind], self._streaks[kind]
        streak.add(success)
        if success and streak.count >= probe.successes:
            if kind == STARTUP:
                self.started = True
            elif kind == READINESS:
                self._ready = True
        elif not success and streak.count >= probe.failures:
            if kind == READINESS:
                self._ready = False
            else:
                self.must_end = kind
        return before != (self.started, self.ready, self.must_end)
