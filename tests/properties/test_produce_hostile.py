"""No header that a client can make up spoils a commit for the other clients of the same file."""

from __future__ import annotations

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.produce.requests import Arrival, PendingRequest, Refusal
from headrace.agent.produce.upload import lay_out
from headrace.agent.produce.validate import RECORDS_MAX, Accepted, LoopWork, TopicRules, judge, judge_transactional
from headrace.metastore.api.commit import FileCommit
from headrace.metastore.postgres.commit import commit
from headrace.protocol.produce_codec import ProducePartitionReply, ProduceRequest
from headrace.storage.records.check_records import RecordWork
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import BatchHeader
from tests.seeds import examples
from tests.storage.batches import forge, plain_batch

INT16 = st.one_of(st.sampled_from([-(2**15), -2, -1, 0, 1, 2**15 - 1]), st.integers(-(2**15), 2**15 - 1))
INT32 = st.one_of(st.sampled_from([-(2**31), -2, -1, 0, 1, 2**31 - 1]), st.integers(-(2**31), 2**31 - 1))
INT64 = st.one_of(st.sampled_from([-(2**63), -2, -1, 0, 1, 2**63 - 1]), st.integers(-(2**63), 2**63 - 1))
COUNT = st.one_of(st.sampled_from([1, RECORDS_MAX, RECORDS_MAX + 1, 2**31 - 1]), INT32)
ROOMY = plain_batch(9, b"x" * 8000)
"""Batch that by its size may unpack, if it were zstd, to more records than the metastore takes."""
RULES = TopicRules(max_bytes=1 << 20, stamps_append_time=False, needs_keys=False)


def _of_a_transaction(header: BatchHeader) -> Refusal | None:
    return judge_transactional(header, "payments", is_offered=True)


@given(
    count=COUNT,
    attributes=st.sampled_from([0, 0, Codec.ZSTD, Codec.ZSTD, Codec.GZIP, 0x10, 0x20, -1]),
    fields=st.fixed_dictionaries(
        {
            "base_offset": INT64,
            "leader_epoch": INT32,
            "base_timestamp": INT64,
            "max_timestamp": INT64,
            "producer_id": st.one_of(st.just(-1), INT64),
            "producer_epoch": INT16,
            "base_sequence": INT32,
        }
    ),
)
@settings(max_examples=examples(300))
async def test_what_passes_validation_the_metastore_takes(count: int, attributes: int, fields: dict[str, int]) -> None:
    """The metastore refuses whole calls for a number out of range (see metastore/postgres/commit/commit.py).

    The header alone is judged here: no record is read.
    """
    delta = max(count - 1, -(2**31))
    data = memoryview(forge(ROOMY, record_count=count, last_offset_delta=delta, attributes=attributes, **fields))
    verdict = judge(data, RULES, 9, 0, LoopWork(RecordWork(0, 0)), _of_a_transaction)
    if isinstance(verdict, Accepted):
        request = PendingRequest(
            ProduceRequest(None, -1, 0, []), correlation_id=0, version=9, appended_at=0.0, deadline=0.0
        )
        reply = ProducePartitionReply(0)
        arrival = Arrival(uuid.UUID(int=1), 0, 1 << 24, 0, -2, verdict.data, verdict.header, request, reply)
        body, placed = lay_out({1 << 24: [arrival]})
        commit.Staged([FileCommit(uuid.UUID(int=7), len(body), [entry.batch for entry in placed])])
