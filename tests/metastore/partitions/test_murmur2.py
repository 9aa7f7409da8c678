"""The hash is Kafka's: its own test values, and two other libraries."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_aiokafka
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

from headrace.metastore.partitions.placement import key_hash, murmur2

OF_KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""org.apache.kafka.common.utils.UtilsTest.testMurmur2"""


@pytest.mark.parametrize(("data", "signed"), OF_KAFKA.items())
def test_kafkas_own_values(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32
    assert key_hash(data) == signed % 2**31


@given(st.binary(max_size=200))
def test_other_libraries_agree(data: bytes) -> None:
    assert murmur2(data) == murmur2_of_aiokafka(data) % 2**32 == murmur2_of_kafka_python(data) % 2**32
