"""Which clients could still add to the open file."""

from __future__ import annotations

from headrace.agent.produce.client_activity import ClientActivity
from headrace.protocol.request import ClientConnection


def _connections(count: int) -> list[ClientConnection]:
    return [ClientConnection(number, f"127.0.0.1:{number}") for number in range(count)]


def test_all_clients_wait_once_each_has_an_unanswered_request() -> None:
    clients = ClientActivity(0.1)
    first, second = _connections(2)
    assert not clients.all_wait(0.0)
    clients.sent(first, 0.0)
    assert clients.all_wait(0.0)
    clients.sent(second, 0.01)
    clients.sent(second, 0.01)
    assert clients.all_wait(0.01)
    clients.answered(second)
    assert clients.all_wait(0.01)
    clients.answered(second)
    assert not clients.all_wait(0.01)
    clients.sent(second, 0.02)
    assert clients.all_wait(0.02)


def test_a_client_that_was_silent_for_the_window_is_not_waited_for() -> None:
    clients = ClientActivity(0.1)
    silent, busy = _connections(2)
    clients.sent(silent, 0.0)
    clients.answered(silent)
    clients.sent(busy, 0.05)
    assert not clients.all_wait(0.1)
    assert clients.all_wait(0.11)
    clients.sent(silent, 0.12)
    assert clients.all_wait(0.12)
    clients.answered(silent)
    assert not clients.all_wait(0.12)


def test_a_client_that_is_gone_is_not_waited_for() -> None:
    clients = ClientActivity(0.1)
    gone, busy = _connections(2)
    clients.sent(gone, 0.0)
    clients.answered(gone)
    clients.sent(busy, 0.0)
    gone.closed = True
    assert clients.all_wait(0.0)


def test_an_answer_after_the_window_changes_nothing() -> None:
    clients = ClientActivity(0.1)
    slow, busy = _connections(2)
    clients.sent(slow, 0.0)
    clients.sent(busy, 0.3)
    assert clients.all_wait(0.3)
    clients.answered(slow)
    assert clients.all_wait(0.3)
    clients.answered(busy)
    assert not clients.all_wait(0.3)
