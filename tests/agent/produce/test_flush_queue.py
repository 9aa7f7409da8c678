"""The order rule: same stream in flush order, everything else as soon as it is stored."""

from __future__ import annotations

import uuid

import pytest

from headrace.agent.produce.files import (
    SHARES_CALL_S,
    ClosedFile,
    CommittingFile,
    DoubtfulFile,
    FileTrace,
    FlushedFile,
    FlushQueue,
    StoredFile,
    WaitingRequests,
)
from headrace.agent.produce.requests import Stream

NOW = 10.0


def _file(*streams: Stream, image: int = 1) -> FlushedFile:
    trace = FileTrace(0.0, put_started_at=NOW)
    return FlushedFile(ClosedFile({}), set(streams), WaitingRequests(), trace, (image, image))


def _flushed(*files: FlushedFile) -> FlushQueue:
    queue = FlushQueue()
    for file in files:
        queue.append(file)
    return queue


def _store(*files: FlushedFile) -> None:
    for file in files:
        file.stage = StoredFile(uuid.UUID(int=1), 1, [])


def _send(file: FlushedFile) -> CommittingFile:
    assert isinstance(file.stage, StoredFile | DoubtfulFile)
    file.stage = file.stage.send()
    return file.stage


def _doubt(file: FlushedFile) -> None:
    """Do the same as after a call with a lost response, when the file may be committed again."""
    file.stage = _send(file).doubted().put_back()


def _group(queue: FlushQueue, files_max: int = 64, now: float = NOW) -> list[FlushedFile]:
    return queue.next_group(files_max, 1000, 1 << 20, now)


@pytest.mark.requirement("W4")
def test_a_slow_upload_holds_up_only_its_own_streams() -> None:
    slow, same, other = _file((1, 1)), _file((1, 1), (2, 1)), _file((1, 2), (3, 1))
    queue = _flushed(slow, same, other)
    _store(same, other)
    assert _group(queue) == [other]
    _store(slow)
    assert _group(queue) == [slow, same, other]


@pytest.mark.requirement("W4")
def test_waiting_is_passed_on() -> None:
    first, second, third = _file((1, 1)), _file((1, 1), (2, 2)), _file((2, 2))
    queue = _flushed(first, second, third)
    _store(second, third)
    assert _group(queue) == []
    queue.settle(first)
    assert _group(queue) == [second, third]


def test_a_predecessor_in_another_call_is_waited_for() -> None:
    first, second = _file((1, 1)), _file((1, 1))
    queue = _flushed(first, second)
    _store(first, second)
    _send(first)
    assert _group(queue) == []
    queue.settle(first)
    assert _group(queue) == [second]
    assert not second.predecessors


def test_a_predecessor_that_may_fail_alone_is_not_followed_in_the_same_call() -> None:
    first, second = _file((1, 1)), _file((1, 1))
    queue = _flushed(first, second)
    _store(first, second)
    assert _group(queue) == [first, second]
    _doubt(first)
    assert _group(queue) == [first]
    _doubt(second)
    assert _group(queue) == [first, second]
    assert _group(queue, now=NOW + SHARES_CALL_S) == [first]


def test_other_leader_epochs_are_not_mixed_in_one_call() -> None:
    before, after = _file((1, 1), image=4), _file((1, 1), image=4)
    queue = _flushed(before, after)
    _store(before, after)
    after.last_image = 5
    assert _group(queue) == [before]


def test_groups_are_bounded_but_never_empty() -> None:
    files = [_file((n, 1)) for n in range(5)]
    queue = _flushed(*files)
    _store(*files)
    assert _group(queue, files_max=2) == files[:2]
    assert _group(queue, files_max=1) == files[:1]


def test_a_settled_file_leaves_nothing_behind() -> None:
    files = [_file((1, 1), (2, n)) for n in range(4)]
    queue = _flushed(*files)
    assert queue.behind(files[1]) == files[2:]
    for file in files:
        queue.settle(file)
    assert not queue.files
    assert not queue._last
    assert not any(file.predecessors for file in files)


@pytest.mark.requirement("W4")
def test_a_file_that_fails_before_its_predecessor_passes_on_whom_to_wait_for() -> None:
    first, failed, third = _file((1, 1), (1, 2)), _file((1, 1), (1, 2)), _file((1, 1))
    queue = _flushed(first, failed, third)
    queue.settle(failed)
    later = _file((1, 2))
    queue.append(later)
    _store(third, later)
    assert _group(queue) == []
    _store(first)
    assert _group(queue) == [first, third, later]


def test_a_file_in_doubt_is_sent_again_exactly_as_it_was() -> None:
    file = _file((1, 1))
    _store(file)
    sent = _send(file).doubted()
    assert sent.in_doubt
    again = sent.put_back()
    assert isinstance(again, DoubtfulFile)
    assert again.send() == sent
    assert file.drop({(1, 1)}) == []


def test_a_call_that_did_nothing_leaves_a_stored_file() -> None:
    file = _file((1, 1))
    _store(file)
    back = _send(file).put_back()
    assert isinstance(back, StoredFile)


def test_the_queue_is_idle_once_every_file_is_settled() -> None:
    settled: list[FlushedFile] = []
    files = [_file((n, 1)) for n in range(2)]
    queue = FlushQueue(settled.append)
    assert queue.is_idle.is_set()
    for file in files:
        queue.append(file)
    queue.settle(files[1])
    assert not queue.is_idle.is_set()
    queue.settle(files[0])
    assert queue.is_idle.is_set()
    assert settled == [files[1], files[0]]


def test_the_page_of_metrics_may_count_bytes_while_files_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = _file((1, 1)), _file((2, 1))
    _store(first, second)
    queue = _flushed(first, second)

    def settles_meanwhile(file: FlushedFile) -> int:
        if file is first:  # what the loop does while the other thread counts
            queue.settle(second)
            queue.append(_file((3, 1)))
            queue.append(_file((4, 1)))
        return 7

    monkeypatch.setattr(FlushedFile, "inline_bytes", property(settles_meanwhile))
    assert queue.inline_bytes == 14
