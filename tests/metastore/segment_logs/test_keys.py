"""Keys of lifecycle records: one text each, and every other text refused by name."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.api.segment_states import (
    INT32_MAX,
    INT64_MAX,
    RemotePartitionKey,
    RemoteSegmentKey,
    base64url,
    parse_key,
)
from headrace.storage.errors import InvalidError

pytestmark = pytest.mark.requirement("R1")
TOPIC = uuid.UUID("01020304-0506-0708-090a-0b0c0d0e0f10")
PARTITIONS = st.builds(RemotePartitionKey, st.uuids(), st.integers(0, INT32_MAX))
SEGMENTS = st.builds(
    RemoteSegmentKey, st.uuids(), st.integers(0, INT32_MAX), st.integers(0, INT64_MAX), st.integers(0, INT32_MAX)
)


def test_the_shape_of_both_keys() -> None:
    assert base64url(TOPIC) == "AQIDBAUGBwgJCgsMDQ4PEA"  # as Kafka's Uuid prints it (tests/golden/lifecycle_v0.tsv)
    assert str(RemoteSegmentKey(TOPIC, 0, 1999, 5)) == "AQIDBAUGBwgJCgsMDQ4PEA:0:1999:5"
    assert str(RemotePartitionKey(TOPIC, 7)) == "AQIDBAUGBwgJCgsMDQ4PEA:7"
    assert RemoteSegmentKey(TOPIC, 0, 1999, 5).of_partition == RemotePartitionKey(TOPIC, 0)


@given(SEGMENTS | PARTITIONS)
def test_a_key_reads_back(key: RemoteSegmentKey | RemotePartitionKey) -> None:
    assert parse_key(str(key)) == parse_key(str(key).encode()) == key


@given(st.text(alphabet="AQg:09-_=+ ", max_size=40) | st.binary(max_size=40))
def test_any_text_is_a_key_or_refused(text: str | bytes) -> None:
    try:
        key = parse_key(text)
    except InvalidError:
        return
    assert str(key) == (text if isinstance(text, str) else text.decode())


GOOD = base64url(TOPIC)


@pytest.mark.parametrize(
    ("text", "named"),
    {
        "": "1 parts",
        GOOD: "1 parts",
        f"{GOOD}:0:5": "3 parts",
        f"{GOOD}:0:5:1:": "5 parts",
        f"{GOOD[:-2]}:0": "topic id of 16 bytes",
        f"{GOOD}==:0": "topic id",
        f"{GOOD[:-1]}B:0": "surplus bits",
        f"{GOOD}:-1": "partition",
        f"{GOOD}:00": "partition",
        f"{GOOD}:{2**31}": "partition",
        f"{GOOD}:0:{2**63}:1": "end offset",
        f"{GOOD}:0: 5:1": "end offset",
        f"{GOOD}:0:5:+1": "epoch",
        f"{GOOD}:0:5:{2**31}": "epoch",
        f"{GOOD}:0:5:٣": "epoch",
    }.items(),
)
def test_the_refusal_names_the_part(text: str, named: str) -> None:
    with pytest.raises(InvalidError, match=named):
        parse_key(text)
