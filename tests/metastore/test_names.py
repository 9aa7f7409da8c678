"""Numbers have names in SQL: the names agree with Python, and plans are those of the bare numbers."""

from __future__ import annotations

import enum
import re

import psycopg
import pytest

from headrace.metastore.api.bulk import BulkOutcome
from headrace.metastore.api.commit import ALIAS_CODES, BatchOutcome, BatchTransaction, FileStatus, MovedKeys
from headrace.metastore.api.compaction import SwapOutcome
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.read import FeedKind, OffsetKind
from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionDeleteState
from headrace.metastore.api.segments import (
    ReferenceState,
    SegmentCause,
    StartOutcome,
)
from headrace.metastore.api.topics import PartitionState, RemovalOutcome
from headrace.metastore.api.transaction_state import TransactionState
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.kip631_records import (
    TOPIC_RESOURCE,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.own_records import ControlledShutdownRecord, HideBrokerRecord, ShowBrokerRecord
from headrace.metastore.partitions.merging import MergePhase
from headrace.metastore.postgres.sql_files import function_files
from headrace.metastore.transactions.markers import MARKER_BYTES

ENUMS: dict[str, type[enum.IntEnum]] = {
    "job": JobState,
    "file": FileState,
    "commit": FileStatus,
    "batch": BatchOutcome,
    "bulk": BulkOutcome,
    "feed": FeedKind,
    "swap": SwapOutcome,
    "offset": OffsetKind,
    "cause": SegmentCause,
    "reference": ReferenceState,
    "start": StartOutcome,
    "state": PartitionState,
    "removal": RemovalOutcome,
    "keys": MovedKeys,
    "merge": MergePhase,
    "in": BatchTransaction,
}
NAMES = {f"{prefix}_{member.name.lower()}": int(member) for prefix, kind in ENUMS.items() for member in kind} | {
    "alias_codes": ALIAS_CODES,
    "marker_bytes": MARKER_BYTES,
    "transaction_ongoing": TransactionState.ONGOING,
    "topic_resource": TOPIC_RESOURCE,
    "broker_resource": BROKER_RESOURCE,
    "record_unregister_broker": UnregisterBrokerRecord.record_type,
    "record_fence_broker": FenceBrokerRecord.record_type,
    "record_unfence_broker": UnfenceBrokerRecord.record_type,
    "record_controlled_shutdown": ControlledShutdownRecord.record_type,
    "record_hide_broker": HideBrokerRecord.record_type,
    "record_show_broker": ShowBrokerRecord.record_type,
}
NAMES |= {f"segment_{state.name.lower().replace('_segment', '')}": int(state) for state in RemoteLogSegmentState}
NAMES |= {
    f"partition_{state.name.lower().replace('_partition', '')}": int(state) for state in RemotePartitionDeleteState
}
CALL = re.compile(r"\b(\w+)\(\)")
QUESTIONS = [
    "SELECT * FROM jobs WHERE state IN (job_waiting(), job_leased()) AND kind = 'a' AND key = 'b'",
    "SELECT * FROM jobs WHERE state IN (job_done(), job_given_up()) ORDER BY ended_at LIMIT 10",
    "SELECT * FROM segment_files WHERE state IN (file_condemned(), file_deleting()) ORDER BY dead_at LIMIT 10",
    "SELECT * FROM segment_files WHERE state = file_live() AND dead_at IS NULL ORDER BY level, file_id LIMIT 10",
    "SELECT * FROM configs WHERE resource_type = topic_resource() AND resource_name = 'a'",
    "INSERT INTO jobs (kind, key, payload, priority, state, due_at, created_at)"
    " VALUES ('a', 'b', '', 0, job_waiting(), now(), now())"
    " ON CONFLICT (kind, key) WHERE state IN (job_waiting(), job_leased()) DO NOTHING",
]
"""Each needs an index with a number in its condition or key."""


def test_every_name_is_pythons_and_every_python_number_has_a_name(metastore_url: str) -> None:
    (names,) = [file for file in function_files() if file.name == "names"]
    assert {signature.name for signature in names.signatures} == NAMES.keys()
    with psycopg.connect(metastore_url) as connection:
        for name, number in NAMES.items():
            assert connection.execute(f"SELECT {name}()".encode()).fetchone() == (number,), name


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_named_number_is_planned_as_the_number(question: str, metastore_url: str) -> None:
    bare = CALL.sub(lambda match: str(NAMES.get(match[1], match[0])), question)
    assert bare != question
    with psycopg.connect(metastore_url) as connection:
        connection.execute("SET enable_seqscan = off")

        def plan(sql: str) -> list[tuple[str]]:
            return connection.execute(f"EXPLAIN (VERBOSE) {sql}".encode()).fetchall()

        assert plan(question) == plan(bare)
        indexed = any("Index" in line or "Arbiter" in line for (line,) in plan(question))
        assert indexed, plan(question)


def test_no_state_is_compared_with_a_bare_number() -> None:
    bare = re.compile(r"\b(state|outcome\[[^\]]*\]|resource_type) *(=|<>|:=|IN \() *-?\d")
    guilty = [
        f"{file.name}: {line.strip()}"
        for file in function_files()
        for line in file.text.splitlines()
        if bare.search(line.partition("--")[0])
    ]
    assert not guilty, guilty
