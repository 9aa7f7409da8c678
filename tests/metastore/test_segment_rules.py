"""SQL and Python agree on the lifecycle of segments: which state may follow which, and the metadata partitions."""

from __future__ import annotations

import random
import uuid

import psycopg
import pytest

from headrace.metastore.api.segment_states import Latest, RemoteLogSegmentState, RemoteSegmentKey, segment_transition
from headrace.metastore.segment_logs.records import metadata_partition
from headrace.storage.errors import IllegalTransitionError

KEY = RemoteSegmentKey(uuid.UUID(int=1), 0, 5, 1)


def in_python(before: int | None, after: int) -> bool:
    """Decide in Python, under another uuid only where that is another attempt."""
    old, new = uuid.UUID(int=1), uuid.UUID(int=2)
    again = new if before == after == RemoteLogSegmentState.COPY_SEGMENT_STARTED else old
    latest = None if before is None else Latest(RemoteLogSegmentState(before), old)
    try:
        return segment_transition(KEY, latest, Latest(RemoteLogSegmentState(after), again))
    except IllegalTransitionError:
        return False


@pytest.mark.requirement("R2")
def test_the_same_transitions_are_legal(metastore_url: str) -> None:
    with psycopg.connect(metastore_url) as connection:
        for before in (None, 0, 1, 2, 3):
            for after in (0, 1, 2, 3):
                (allowed,) = connection.execute("SELECT segment_may_become(%s, %s)", (before, after)).fetchone() or ()
                assert allowed == in_python(before, after), (before, after)


@pytest.mark.requirement("R12")
def test_both_partitioners_agree(metastore_url: str) -> None:
    rng = random.Random(12)
    with psycopg.connect(metastore_url) as connection:
        for _ in range(300):
            topic_id, index = uuid.UUID(int=rng.getrandbits(128)), rng.choice((0, 1, 7, 1 << 20, (1 << 31) - 1))
            (part,) = connection.execute("SELECT metadata_partition(%s, %s)", (topic_id, index)).fetchone() or ()
            assert part == metadata_partition(topic_id, index), (topic_id, index)
