"""Every pair of states: legal changes, repeated writes, and refusals by name."""

from __future__ import annotations

import itertools
import uuid

import pytest

from headrace.metastore.api.segment_states import (
    Latest,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemoteSegmentKey,
    partition_transition,
    segment_transition,
)
from headrace.storage.errors import IllegalTransitionError

pytestmark = pytest.mark.requirement("R2")
KEY = RemoteSegmentKey(uuid.UUID(int=5), 0, 1000, 3)
A, B = uuid.UUID(int=0xA), uuid.UUID(int=0xB)
S = RemoteLogSegmentState
LEGAL = {
    (None, S.COPY_SEGMENT_STARTED),
    (None, S.DELETE_SEGMENT_STARTED),
    (S.COPY_SEGMENT_STARTED, S.COPY_SEGMENT_FINISHED),
    (S.COPY_SEGMENT_STARTED, S.DELETE_SEGMENT_STARTED),
    (S.COPY_SEGMENT_FINISHED, S.DELETE_SEGMENT_STARTED),
    (S.DELETE_SEGMENT_STARTED, S.DELETE_SEGMENT_FINISHED),
}


def test_the_numbers_are_kafkas() -> None:
    assert [(state.value, state.name) for state in S] == [
        (0, "COPY_SEGMENT_STARTED"),
        (1, "COPY_SEGMENT_FINISHED"),
        (2, "DELETE_SEGMENT_STARTED"),
        (3, "DELETE_SEGMENT_FINISHED"),
    ]


@pytest.mark.parametrize(("before", "after"), list(itertools.product([None, *S], S)))
def test_every_pair_with_one_uuid(before: RemoteLogSegmentState | None, after: RemoteLogSegmentState) -> None:
    latest = None if before is None else Latest(before, A)
    if before is after:
        assert segment_transition(KEY, latest, Latest(after, A)) is False
    elif (before, after) in LEGAL:
        assert segment_transition(KEY, latest, Latest(after, A)) is True
    else:
        with pytest.raises(IllegalTransitionError, match=f"key={KEY} from=.*to={after.name} uuid={A}"):
            segment_transition(KEY, latest, Latest(after, A))


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
def test_only_a_started_upload_changes_its_uuid(before: RemoteLogSegmentState, after: RemoteLogSegmentState) -> None:
    if before is after is S.COPY_SEGMENT_STARTED:
        assert segment_transition(KEY, Latest(before, A), Latest(after, B))
    else:
        with pytest.raises(IllegalTransitionError, match=f"{before.name} of uuid={A} to={after.name} uuid={B}"):
            segment_transition(KEY, Latest(before, A), Latest(after, B))


def test_the_marker_of_a_partition() -> None:
    marked, started, finished = RemotePartitionDeleteState
    assert partition_transition(KEY.of_partition, None, started)
    assert partition_transition(KEY.of_partition, marked, started)
    assert partition_transition(KEY.of_partition, started, finished)
    assert not partition_transition(KEY.of_partition, finished, finished)
    for before, after in ((None, finished), (finished, started), (started, marked)):
        with pytest.raises(IllegalTransitionError, match=after.name):
            partition_transition(KEY.of_partition, before, after)
