"""The probe state machine, and how containers end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kubernetes.kubelet.endings import BackOff, Run, grace_after_hook, grace_of, phase, starts_again
from tests.kubernetes.kubelet.probes import LIVENESS, READINESS, STARTUP, ProbeStates

HTTP = {"httpGet": {"path": "/", "port": 1}}


def _states(**probes: dict[str, object]) -> ProbeStates:
    return ProbeStates({f"{kind}Probe": HTTP | spec for kind, spec in probes.items()})


def _active(states: ProbeStates) -> list[str]:
    return [kind for kind, _ in states.active()]


def test_without_probes_a_container_is_ready_at_once() -> None:
    states = _states()
    assert (states.started, states.ready, states.must_end) == (True, True, None)


def test_liveness_and_readiness_wait_for_the_start() -> None:
    states = _states(startup={}, readiness={}, liveness={})
    assert _active(states) == [STARTUP]
    assert states.report(STARTUP, True)
    assert _active(states) == [READINESS, LIVENESS]
    assert not states.ready
    assert states.report(READINESS, True)
    assert states.ready


def test_a_start_that_takes_too_long_ends_the_container() -> None:
    states = _states(startup={"failureThreshold": 3})
    assert not states.report(STARTUP, False)
    assert not states.report(STARTUP, False)
    assert states.report(STARTUP, False)
    assert states.must_end == STARTUP


def test_readiness_returns_after_its_successes_and_never_ends_the_container() -> None:
    states = _states(readiness={"failureThreshold": 2, "successThreshold": 2})
    told = []
    for success in (True, True, False, True, False, False, False, False, True, True):
        states.report(READINESS, success)
        told.append(states.ready)
    assert told == [False, True, True, True, True, False, False, False, False, True]
    assert states.must_end is None


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 5))
def test_liveness_ends_the_container_after_so_many_failures_in_a_row(results: list[bool], threshold: int) -> None:
    states = _states(liveness={"failureThreshold": threshold})
    for success in results:
        states.report(LIVENESS, success)
    in_a_row = max((len(run) for run in "".join("x" if not each else " " for each in results).split()), default=0)
    assert (states.must_end == LIVENESS) == (in_a_row >= threshold)


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_restart_policies(policy: str, code: int, again: bool) -> None:
    assert starts_again(policy, code) is again


def test_the_back_off_doubles_and_is_forgotten_after_ten_calm_minutes() -> None:
    back_off = BackOff()
    assert [back_off.pause_after(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert back_off.pause_after(600) == 0
    assert back_off.pause_after(1) == 10


def test_the_grace_period_covers_the_hook() -> None:
    assert grace_after_hook(30, 5) == 25
    assert grace_after_hook(30, 40) == 2
    assert grace_after_hook(0, 0) == 0


def test_a_deletion_may_shorten_the_grace_period() -> None:
    pod: dict[str, dict[str, object]] = {"metadata": {}, "spec": {"terminationGracePeriodSeconds": 40}}
    assert grace_of(pod) == 40
    pod["metadata"]["deletionGracePeriodSeconds"] = 0
    assert grace_of(pod) == 0
    assert grace_of({"metadata": {}, "spec": {}}) == 30


def test_phases() -> None:
    waits, runs, done, failed = Run(False, None), Run(True, None), Run(True, 0), Run(True, 1)
    assert phase(False, [waits]) == "Pending"
    assert phase(True, [waits]) == "Pending"
    assert phase(True, [runs, waits]) == "Running"
    assert phase(True, [runs, failed]) == "Running"
    assert phase(True, [done, done]) == "Succeeded"
    assert phase(True, [done, failed]) == "Failed"
    assert phase(False, [waits], deleting=True) == "Failed"
