"""The answer to a batch with records without a key names exactly these, in order; a planted bug is caught."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.produce import validate
from headrace.agent.produce.validate import KEYLESS, TopicRules
from headrace.protocol.produce_codec import RecordError
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from tests.patch import Patch
from tests.seeds import examples

COMPACTED = TopicRules(max_bytes=1 << 20, needs_keys=True, opens_records=True)


@settings(deadline=None, database=None, derandomize=True, max_examples=examples(50))
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.sampled_from([Codec.NONE, Codec.LZ4]))
def prove(has_key: list[bool], codec: Codec) -> None:
    records = [Record(at, 1_000, b"k" if keyed else None, b"v") for at, keyed in enumerate(has_key)]
    batch = memoryview(encode_batch(records, base_offset=0, codec=codec))
    refusal = asyncio.run(validate.judge_records(batch, COMPACTED, 1_000))
    wrong = [at for at, keyed in enumerate(has_key) if not keyed]
    found = () if refusal is None else refusal.record_errors
    assert found == tuple(RecordError(at, KEYLESS) for at in wrong)
    assert (refusal is None) == (not wrong)


def test_exactly_the_records_without_a_key_are_named() -> None:
    prove()


def test_a_planted_bug_is_caught(patch: Patch) -> None:
    """Errors are numbered among each other, not by their index in the batch."""
    right: Any = validate._judge_records

    def judge(*args: Any) -> Any:
        refusal = right(*args)
        numbered = (RecordError(n, e.message) for n, e in enumerate(refusal.record_errors)) if refusal else ()
        return refusal and refusal._replace(record_errors=tuple(numbered))

    patch.replace(validate, "_judge_records", judge)
    with pytest.raises(AssertionError):
        prove()
