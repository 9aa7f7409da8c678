"""Check which clients could still add to the open file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.agent.produce.flusher import DEPTH_REQUESTS, ClientActivity
from headrace.protocol.request import ClientConnection

WINDOW_S, REFILL_S = 0.1, 0.003


@pytest.fixture
def clients() -> ClientActivity:
    return ClientActivity(WINDOW_S, REFILL_S)


def _connections(count: int) -> list[ClientConnection]:
    return [ClientConnection(number, f"127.0.0.1:{number}") for number in range(count)]


def _send(clients: ClientActivity, connection: ClientConnection, times: int = 1) -> None:
    for _ in range(times):
        clients.sent(connection)


def _answer(clients: ClientActivity, connection: ClientConnection, now: float, times: int = 1) -> None:
    for _ in range(times):
        clients.answered(connection, now)


def test_all_clients_wait_once_each_has_an_unanswered_request(clients: ClientActivity) -> None:
    first, second = _connections(2)
    assert not clients.all_wait(0.0)
    _send(clients, first)
    assert clients.all_wait(0.0)
    _send(clients, second)
    assert clients.all_wait(0.01)
    _answer(clients, second, 0.02)
    assert not clients.all_wait(0.02)
    _send(clients, second)
    assert clients.all_wait(0.02)


def test_a_client_refills_from_an_answer_until_it_is_at_its_depth_or_a_moment_has_passed(
    clients: ClientActivity,
) -> None:
    (client,) = _connections(1)
    _send(clients, client, 5)
    assert not clients.any_refills(0.0)
    _answer(clients, client, 0.01, 2)
    assert clients.any_refills(0.01)
    assert clients.all_wait(0.01)
    _send(clients, client)
    assert clients.any_refills(0.0101)
    _send(clients, client)
    assert not clients.any_refills(0.0102)
    _answer(clients, client, 0.02)
    assert clients.any_refills(0.02 + REFILL_S)
    assert not clients.any_refills(0.0201 + REFILL_S)


def test_a_client_keeps_its_depth_however_slow_its_answers_are(clients: ClientActivity) -> None:
    (client,) = _connections(1)
    for turn in range(1, 10):
        _send(clients, client, 4)
        assert turn == 1 or clients.any_refills(float(turn))
        _send(clients, client)
        assert not clients.any_refills(float(turn))
        _answer(clients, client, turn + 1.0, 5)


def test_a_client_that_sends_one_at_a_time_after_a_burst_has_a_lower_depth_soon(clients: ClientActivity) -> None:
    (client,) = _connections(1)
    _send(clients, client, 5)
    _answer(clients, client, 0.0, 5)
    for turn in range(2 * DEPTH_REQUESTS):
        _send(clients, client)
        assert clients.any_refills(float(turn)) == (turn < DEPTH_REQUESTS - 1)
        _answer(clients, client, turn + 1.0)


@pytest.mark.parametrize(
    ("judge", "answer"),
    [
        pytest.param(ClientActivity.any_refills, False, id="it does not refill"),
        pytest.param(ClientActivity.all_wait, True, id="it is not waited for"),
    ],
)
def test_a_client_that_is_gone_does_not_count(
    clients: ClientActivity, judge: Callable[[ClientActivity, float], bool], answer: bool
) -> None:
    gone, busy = _connections(2)
    _send(clients, gone)
    _answer(clients, gone, 0.0)
    _send(clients, busy)
    gone.closed = True
    assert judge(clients, 0.0) is answer


def test_a_client_that_was_silent_for_the_window_is_not_waited_for(clients: ClientActivity) -> None:
    silent, busy = _connections(2)
    _send(clients, silent)
    _answer(clients, silent, 0.0)
    _send(clients, busy)
    assert not clients.all_wait(0.1)
    assert clients.all_wait(0.11)
    _send(clients, silent)
    assert clients.all_wait(0.12)
    _answer(clients, silent, 0.12)
    assert not clients.all_wait(0.12)


def test_a_client_is_free_after_an_answer_that_took_longer_than_the_window(clients: ClientActivity) -> None:
    slow, busy = _connections(2)
    _send(clients, slow)
    _send(clients, busy)
    assert clients.all_wait(0.3)
    _answer(clients, slow, 0.3)
    assert not clients.all_wait(0.3)
    assert clients.all_wait(0.41)


def test_no_more_than_the_clients_of_the_last_window_are_remembered(clients: ClientActivity) -> None:
    """Also when no question is asked about them, and none that are gone."""
    for number in range(1000):
        (client,) = _connections(1)
        _send(clients, client)
        client.closed = number % 2 == 0
        _answer(clients, client, number * 0.01)
    assert len(clients._free) <= 1 + WINDOW_S / 0.01
    assert len(clients._refilling) <= 1
