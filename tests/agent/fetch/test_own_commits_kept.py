"""What this agent committed lately is known for the list of what a failover lost."""

from __future__ import annotations

import uuid

from headrace.agent.fetch.index.own_commits import KEEP_SECONDS, OwnCommits
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, FileAnswer, FileCommit, FileStatus, StagedBatch

KEY = 77


def one(number: int, outcome: BatchOutcome = BatchOutcome.APPENDED) -> tuple[list[FileCommit], list[FileAnswer]]:
    file_id = uuid.UUID(int=number)
    batch = StagedBatch(KEY, 0, 100, 1, 0, leader_epoch=0)
    answer = BatchAnswer(outcome, number if outcome is BatchOutcome.APPENDED else -1, 0)
    return [FileCommit(file_id, 100, [batch])], [FileAnswer(file_id, FileStatus.COMMITTED, [answer])]


def offsets(own: OwnCommits) -> list[int]:
    return [extent.base_offset for extent in own.extents(())]


def test_a_commit_is_kept_for_a_while_after_a_complete_poll_that_began_later() -> None:
    own = OwnCommits()
    own.note(*one(0))
    own.begin_poll()
    own.note(*one(1))
    own.end_poll(100.0, is_complete=True)
    own.begin_poll()
    own.end_poll(100.0 + KEEP_SECONDS, is_complete=False)
    assert offsets(own) == [0, 1]
    own.begin_poll()
    own.end_poll(101.0 + KEEP_SECONDS, is_complete=True)
    assert offsets(own) == [1], "no poll had brought the second one until now"


def test_polls_that_fail_or_are_not_complete_end_nothing() -> None:
    own = OwnCommits()
    own.note(*one(0))
    for second in range(1_000):
        own.begin_poll()
        own.end_poll(float(second), is_complete=False)
    assert offsets(own) == [0]


def test_what_was_not_appended_and_what_is_known_already_is_left_out() -> None:
    own = OwnCommits()
    own.note(*one(0))
    own.note(*one(1, BatchOutcome.DUPLICATE_SEQUENCE))
    own.note(*one(2))
    (first, _) = own.extents(())
    assert [extent.base_offset for extent in own.extents([first])] == [2]


def test_at_most_so_many_batches_are_kept() -> None:
    own = OwnCommits(batches_max=3)
    for number in range(5):
        own.note(*one(number))
        own.begin_poll()
        own.note(*one(10 + number))
        own.end_poll(0.0, is_complete=number == 1)
    assert offsets(own) == [13, 4, 14]
    own.begin_poll()
    own.end_poll(0.0, is_complete=True)
    own.forget()
    assert offsets(own) == []
