"""Check which new connections are accepted: no address takes them all, and this machine always gets in."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.listener.admission import FEW, LOCAL_EXTRA, Admission
from headrace.agent.listener.server import KafkaListener
from headrace.agent.listener.sockets import connections_possible, raise_descriptor_limit
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
from tests.agent.listener.listener_client import echo, limits, listening
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X7")


def _open(admission: Admission, address: str) -> str:
    reason = admission.refusal(address, draining=False)
    if not reason:
        admission.opened(address)
    return reason


def _fill(admission: Admission, address: str, tries: int = 1_000) -> int:
    return sum(not _open(admission, address) for _ in range(tries))


def test_one_address_leaves_a_tenth_to_others(fake_clock: ManualClock) -> None:
    admission = Admission(lambda: 100, fake_clock)
    assert _fill(admission, "10.0.0.1") == 90
    assert _fill(admission, "10.0.0.2") == FEW
    assert _open(admission, "10.0.0.3") == "too_many"


def test_connections_of_one_address_are_limited(fake_clock: ManualClock) -> None:
    admission = Admission(lambda: 100, fake_clock, per_ip_max=3)
    assert [_open(admission, "10.0.0.1") for _ in range(4)] == ["", "", "", "too_many_of_address"]
    admission.closed("10.0.0.1")
    assert _open(admission, "10.0.0.1") == ""


def test_the_operator_on_this_machine_gets_in_at_any_limit(fake_clock: ManualClock) -> None:
    """A remote client set max.connections=1 and took the one connection."""
    admission = Admission(lambda: 1, fake_clock, local_extra=LOCAL_EXTRA)
    assert _fill(admission, "10.0.0.1") == 1
    assert _fill(admission, "127.0.0.1") == LOCAL_EXTRA


def test_connections_per_second_are_limited(fake_clock: ManualClock) -> None:
    admission = Admission(lambda: 1_000, fake_clock, rate_max=5)
    assert _fill(admission, "10.0.0.1", 8) == 5
    assert _open(admission, "10.0.0.2") == "too_fast"
    fake_clock.jump(0.5)
    assert _fill(admission, "10.0.0.2", 8) == 2


def test_connections_leave_descriptors_to_the_rest() -> None:
    allowed = raise_descriptor_limit()
    assert allowed > 1_024
    few, many = connections_possible(Settings()), connections_possible(Settings(http_max_connections=1))
    assert few < many < allowed


async def test_a_port_in_use_is_one_line_that_says_what_to_do() -> None:
    async with listening(echo) as first:
        with pytest.raises(
            InvalidError, match=rf"cannot listen on 127.0.0.1:{first.port}: .*; choose another port in listeners"
        ):
            await KafkaListener(echo, limits(), SystemClock(), CollectorRegistry()).start("127.0.0.1", first.port)
