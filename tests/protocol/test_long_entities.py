"""Long answers are written in steps: with the bytes that kio writes, and without a step that is long."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import Awaitable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.describe_log_dirs.v5.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.errors import ErrorCode

from headrace.protocol import long_entities
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from headrace.protocol.long_entities import BLOCK, ELEMENT_UNITS, write_long
from headrace.protocol.request import ClientConnection, Request
from headrace.protocol.typed import reply, schema
from tests.patch import Patch
from tests.protocol.kio_entities import entities, kio_write
from tests.seeds import examples

LISTS = (
    ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CONFIGS, ApiKey.LIST_GROUPS,
    ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.DESCRIBE_ACLS, ApiKey.DESCRIBE_QUORUM, ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.API_VERSIONS,
)  # fmt: skip
"""With arrays in arrays, entities in entities, nothing in arrays, numbers, and tagged arrays."""


def written(entity: Any, did: Any) -> bytes:
    """Return what is written while `did` lets other tasks run."""
    body = io.BytesIO()
    asyncio.run(write_long(body, entity, did))
    return body.getvalue()


async def nothing(units: int) -> None:
    """Count nothing."""


@settings(max_examples=examples(25))
@given(data=st.data(), block=st.integers(1, 4))
def test_the_bytes_are_kios_however_few_elements_a_step_has(data: st.DataObject, block: int) -> None:
    api = APIS[data.draw(st.sampled_from(LISTS))]
    version = data.draw(st.integers(api.min_version, api.max_version))
    entity = data.draw(entities(schema(api.key, version).response_type))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_entities, "BLOCK", block)
        assert written(entity, nothing) == kio_write(entity)


def log_dirs(shape: list[int], version: int) -> Any:
    """Return an answer to DescribeLogDirs with topics of so many partitions."""
    found = schema(ApiKey.DESCRIBE_LOG_DIRS, version)
    partition = found.make(
        DescribeLogDirsPartition, partition_index=7, partition_size=9, offset_lag=0, is_future_key=False
    )
    topics = tuple(found.make(DescribeLogDirsTopic, name="t", partitions=(partition,) * count) for count in shape)
    result = found.make(
        DescribeLogDirsResult, error_code=ErrorCode.none, log_dir="d", topics=topics, total_bytes=-1, usable_bytes=-1,
        is_cordoned=False,
    )  # fmt: skip
    return found.response(error_code=ErrorCode.none, results=(result,))


SHAPES = {"a large topic": [4_000], "many topics": [1] * 2_000, "both": [3] * 300 + [1_500] + [0] * 700}
ELEMENT_BYTES_MAX = 24
"""No element of these answers takes more."""


def longest_step(entity: Any) -> tuple[int, int]:
    """Return the bytes of the longest step, and how many units were counted."""
    body, lengths, total = io.BytesIO(), [0], 0

    async def did(units: int) -> None:
        nonlocal total
        lengths.append(body.tell())
        total += units

    asyncio.run(write_long(body, entity, did))
    assert body.getvalue() == kio_write(entity)
    return max(after - before for before, after in itertools.pairwise(lengths)), total


@pytest.mark.parametrize("version", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_step_writes_many_elements(shape: str, version: int, patch: Patch) -> None:
    entity = log_dirs(SHAPES[shape], version)
    longest, units = longest_step(entity)
    assert longest <= 2 * BLOCK * ELEMENT_BYTES_MAX
    assert units >= ELEMENT_UNITS * sum(SHAPES[shape])
    patch.replace(long_entities, "size_of", lambda entity, enough: 1)
    assert longest_step(entity)[0] == len(kio_write(entity)), "planted: each answer is short"


async def test_an_answer_is_encoded_once_as_its_rules_have_changed_it() -> None:
    request = Request(ClientConnection(1, "peer"), ApiKey.DESCRIBE_LOG_DIRS, 4, 42, "c", memoryview(b""), 0.0)
    steps: list[int] = []

    async def did(units: int) -> None:
        steps.append(units)

    def encoded(response: Any) -> Awaitable[Any]:
        return response.encoded(did)  # type: ignore[no-any-return]

    response = reply(request, log_dirs([1], 4))
    response.entity = log_dirs([2_000], 4)
    first = await encoded(response)
    assert b"".join(first) == (42).to_bytes(4, "big") + b"\0" + kio_write(response.entity)
    assert len(steps) > 1
    response.entity = log_dirs([1], 4)
    assert await encoded(response) is first
    assert response.buffers is first
