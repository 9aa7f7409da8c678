"""Numbers that SQL and Python share: for each a SQL function without parameters that returns it.

Place: sql_files.py adds them to the functions of the .sql files; migrate installs them with those.
Invariant: Python is the only source: the enums of metastore/api/, the types of records, and a few constants. Most
numbers are stored: never change one, and never use it again for something else (tests/golden/sql_names.txt). A function
keeps its type: Postgres refuses another one.
The planner puts the number in the place of each call, so partial indexes and plans are those of the numbers.
Locks: none. Idempotent: pure. Cost: none.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

from headrace.metastore.api.bulk import BulkOutcome
from headrace.metastore.api.commit import BatchOutcome, BatchTransaction, FileStatus, MovedKeys
from headrace.metastore.api.compaction import SwapOutcome
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.read import FeedKind, OffsetKind
from headrace.metastore.api.restoring import RestoreOutcome
from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionDeleteState
from headrace.metastore.api.segments import ReferenceState, SegmentCause, StartOutcome
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
from headrace.metastore.transactions.markers import MARKER_BYTES

INTEGERS: Mapping[str, type[enum.IntEnum]] = {
    "job": JobState,
    "file": FileState,
    "removal": RemovalOutcome,
    "batch": BatchOutcome,
    "in": BatchTransaction,
    "keys": MovedKeys,
    "offset": OffsetKind,
    "segment": RemoteLogSegmentState,
    "partition": RemotePartitionDeleteState,
    "cause": SegmentCause,
    "reference": ReferenceState,
    "restore": RestoreOutcome,
}
"""By the prefix of the names: enums with functions that return int."""
SMALL_INTEGERS: Mapping[str, type[enum.IntEnum]] = {
    "state": PartitionState,
    "merge": MergePhase,
    "commit": FileStatus,
    "bulk": BulkOutcome,
    "feed": FeedKind,
    "swap": SwapOutcome,
    "start": StartOutcome,
}
"""The same for smallint."""
SINGLE: Mapping[str, int] = {
    "marker_bytes": MARKER_BYTES,
    "topic_resource": TOPIC_RESOURCE,
    "broker_resource": BROKER_RESOURCE,
    "record_unregister_broker": UnregisterBrokerRecord.record_type,
    "record_fence_broker": FenceBrokerRecord.record_type,
    "record_unfence_broker": UnfenceBrokerRecord.record_type,
    "record_controlled_shutdown": ControlledShutdownRecord.record_type,
    "record_hide_broker": HideBrokerRecord.record_type,
    "record_show_broker": ShowBrokerRecord.record_type,
}
"""Numbers without an enum, that return int."""


def named_numbers() -> Iterator[tuple[str, str, int]]:
    """Name, type and number of each function."""
    for kind, enums in (("int", INTEGERS), ("smallint", SMALL_INTEGERS)):
        for prefix, members in enums.items():
            for member in members:
                yield f"{prefix}_{_suffix(prefix, member)}", kind, int(member)
    yield "transaction_ongoing", "smallint", int(TransactionState.ONGOING)
    for name, number in SINGLE.items():
        yield name, "int", number


def names_sql() -> str:
    """The functions' definitions."""
    return "".join(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS {kind}\n"
        f"LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN {number}{'' if kind == 'int' else '::smallint'};\n"
        for name, kind, number in named_numbers()
    )


def _suffix(prefix: str, member: enum.IntEnum) -> str:
    """The member's name; of Kafka's names, which contain the prefix, the rest."""
    return member.name.lower().replace(f"_{prefix}", "") if prefix in ("segment", "partition") else member.name.lower()
