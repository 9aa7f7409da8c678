"""Requests that take longer than slow.request.ms: one line with who, what, and where the time went."""

from __future__ import annotations

import struct

import pytest

from headrace.agent.listener.host import LINES, SlowRequests, asked_wait_seconds
from headrace.agent.listener.memory import MemoryBudget
from headrace.agent.listener.replies import Slot
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frames import RequestHeader
from headrace.protocol.request import ClientConnection


def _slot(api_key: int, received_at: float, made_at: float, asked: float = 0.0) -> Slot:
    slot = Slot(RequestHeader(api_key, 9, 1, "app-1", 0), received_at, 0, MemoryBudget(1))
    slot.made_at, slot.asked_wait_seconds = made_at, asked
    return slot


@pytest.fixture
def client() -> ClientConnection:
    client = ClientConnection(1, "10.0.0.9:4711", listener="EXTERNAL")
    client.principal = "User:ann"
    return client


def test_a_line_says_who_and_where_the_time_went(client: ClientConnection, caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests(5_000)
    slow.report(client, _slot(ApiKey.PRODUCE, 10.0, 16.0), 18.5)
    assert caplog.messages == [
        "slow request: api=Produce seconds=8.5 handled_seconds=6.0 waited_for_earlier_replies_seconds=2.5"
        " client_id='app-1' principal=User:ann peer=10.0.0.9:4711 listener=EXTERNAL left_out=0"
    ]


def test_what_a_client_asked_to_wait_for_is_not_slow(
    client: ClientConnection, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowRequests(5_000)
    slow.report(client, _slot(ApiKey.FETCH, 0.0, 30.0, asked=29.0), 30.0)
    slow.report(client, _slot(ApiKey.JOIN_GROUP, 0.0, 300.0), 300.0)
    slow.report(client, _slot(ApiKey.SYNC_GROUP, 0.0, 300.0), 300.0)
    assert caplog.messages == []
    slow.report(client, _slot(ApiKey.FETCH, 0.0, 36.0, asked=29.0), 36.0)
    assert len(caplog.messages) == 1


def test_the_lines_of_an_outage_are_bounded_and_counted(
    client: ClientConnection, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowRequests(1_000)
    for number in range(1_000):
        slow.report(client, _slot(ApiKey.PRODUCE, 0.0, 10.0), 10.0 + number / 1_000)
    assert len(caplog.messages) == LINES
    slow.report(client, _slot(ApiKey.METADATA, 0.0, 10.0), 11.0)
    assert "api=Metadata" in caplog.messages[-1], "each API has its lines"
    slow.report(client, _slot(ApiKey.PRODUCE, 80.0, 90.0), 90.0)
    assert caplog.messages[-1].endswith(f"left_out={1_000 - LINES}")


def test_no_line_without_the_setting(client: ClientConnection, caplog: pytest.LogCaptureFixture) -> None:
    slow = SlowRequests(0)
    slow.report(client, _slot(ApiKey.PRODUCE, 0.0, 1e6), 1e6)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("version", "body", "seconds"),
    [
        (12, struct.pack(">ii", -1, 500), 0.5),
        (15, struct.pack(">i", 30_000), 30.0),
        (15, b"\x00", 0.0),
        (12, struct.pack(">ii", -1, -7), 0.0),
    ],
)
def test_a_fetch_says_how_long_it_may_wait(version: int, body: bytes, seconds: float) -> None:
    assert asked_wait_seconds(version, memoryview(body)) == seconds
