"""The order rule: same stream in flush order, everything else as soon as it is stored."""

from __future__ import annotations

import pytest

from headrace.agent.produce.order import SHARES_CALL_S, FlushOrder
from headrace.agent.produce.staged_file import FileState, StagedFile, Stream

NOW = 10.0


def _file(*streams: Stream, image: int = 1) -> StagedFile:
    file = StagedFile(0.0, image)
    file.state = FileState.CLOSED
    file.streams = set(streams)
    file.trace.put_started_at = NOW
    return file


def _flushed(*files: StagedFile) -> FlushOrder:
    order = FlushOrder()
    for file in files:
        order.append(file)
    return order


def _store(*files: StagedFile) -> None:
    for file in files:
        file.state = FileState.STORED


def _group(order: FlushOrder, files_max: int = 64, now: float = NOW) -> list[StagedFile]:
    return order.next_group(files_max, 1000, now)


@pytest.mark.requirement("W4")
def test_a_slow_upload_holds_up_only_its_own_streams() -> None:
    slow, same, other = _file((1, 1)), _file((1, 1), (2, 1)), _file((1, 2), (3, 1))
    order = _flushed(slow, same, other)
    _store(same, other)
    assert _group(order) == [other]
    _store(slow)
    assert _group(order) == [slow, same, other]


@pytest.mark.requirement("W4")
def test_waiting_is_passed_on() -> None:
    first, second, third = _file((1, 1)), _file((1, 1), (2, 2)), _file((2, 2))
    order = _flushed(first, second, third)
    _store(second, third)
    assert _group(order) == []
    order.settle(first)
    assert _group(order) == [second, third]


def test_a_predecessor_in_another_call_is_waited_for() -> None:
    first, second = _file((1, 1)), _file((1, 1))
    order = _flushed(first, second)
    _store(first, second)
    first.state = FileState.COMMITTING
    assert _group(order) == []
    order.settle(first)
    assert _group(order) == [second]
    assert not second.predecessors


def test_a_predecessor_that_may_fail_alone_is_not_followed_in_the_same_call() -> None:
    first, second = _file((1, 1)), _file((1, 1))
    order = _flushed(first, second)
    _store(first, second)
    assert _group(order) == [first, second]
    first.is_in_doubt = True
    assert _group(order) == [first]
    second.is_in_doubt = True
    assert _group(order) == [first, second]
    assert _group(order, now=NOW + SHARES_CALL_S) == [first]


def test_other_leader_epochs_are_not_mixed_in_one_call() -> None:
    before, after = _file((1, 1), image=4), _file((1, 1), image=4)
    order = _flushed(before, after)
    _store(before, after)
    after.last_image = 5
    assert _group(order) == [before]


def test_groups_are_bounded_but_never_empty() -> None:
    files = [_file((n, 1)) for n in range(5)]
    order = _flushed(*files)
    _store(*files)
    assert _group(order, files_max=2) == files[:2]
    assert _group(order, files_max=1) == files[:1]


def test_a_settled_file_leaves_nothing_behind() -> None:
    files = [_file((1, 1), (2, n)) for n in range(4)]
    order = _flushed(*files)
    assert order.behind(files[1]) == files[2:]
    for file in files:
        order.settle(file)
    assert len(order) == 0
    assert not order._last
    assert not any(file.predecessors for file in files)


@pytest.mark.requirement("W4")
def test_a_file_that_fails_before_its_predecessor_passes_on_whom_to_wait_for() -> None:
    first, failed, third = _file((1, 1), (1, 2)), _file((1, 1), (1, 2)), _file((1, 1))
    order = _flushed(first, failed, third)
    order.settle(failed)
    later = _file((1, 2))
    order.append(later)
    _store(third, later)
    assert _group(order) == []
    _store(first)
    assert _group(order) == [first, third, later]
