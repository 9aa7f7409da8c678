"""Long requests and answers are judged in slices: others run between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.access.authorization.rule import DENIED_UNITS
from headrace.agent.limits.work_slices import UNITS_MAX
from headrace.agent.transactions.tool_requests import DescribeTransactions
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.typed import schema
from tests.acl_matrix.case import build
from tests.agent.access.authorization.gated import Gated
from tests.agent.transactions.memory_transactions import MemoryTransactions


async def _turns_for(gated: Gated, version: int, **values: Any) -> tuple[int, Any]:
    """(turns of the event loop that others had, the answer)."""
    turns, over = 0, False

    async def others() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    answer = await gated.ask(version, **values)
    over = True
    await beside
    return turns, answer


MANY = 5_000


@pytest.mark.requirement("X7")
async def test_a_long_request_is_judged_while_others_run() -> None:
    gated = Gated(ApiKey.DESCRIBE_GROUPS)
    gated.grant((AclOperation.DESCRIBE, "g7"), of=AclResource.GROUP)
    turns, answer = await _turns_for(gated, 5, groups=[f"g{number}" for number in range(MANY)])
    assert turns > 100, "a denial has lines in two logs"
    assert [request.groups for request in gated.seen] == [("g7",)]
    assert len(answer.groups) == len(gated.denials) == MANY - 1
    turns, _ = await _turns_for(gated, 5, groups=["g7", "g8"])
    assert turns <= 4


async def _longest_stretch(gated: Gated, version: int, **values: Any) -> int:
    """Return how many denials there were at most between two turns of others."""
    longest, before, over = 0, 0, False

    async def others() -> None:
        nonlocal longest, before
        while not over:
            longest, before = max(longest, len(gated.denials) - before), len(gated.denials)
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await gated.ask(version, **values)
    longest = max(longest, len(gated.denials) - before)
    over = True
    await beside
    return longest


TOPICS = [f"t{number}" for number in range(MANY)]
_OFFSET = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
_TO_GROUP = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
_IN_TRANSACTION = {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0}
_LONG: dict[ApiKey, tuple[int, dict[str, Any]]] = {
    ApiKey.OFFSET_COMMIT: (8, {**_TO_GROUP, "topics": [{"name": name, "partitions": [_OFFSET]} for name in TOPICS]}),
    ApiKey.OFFSET_DELETE: (
        0,
        {"group_id": "g", "topics": [{"name": name, "partitions": [{"partition_index": 0}]} for name in TOPICS]},
    ),
    ApiKey.OFFSET_FETCH: (
        7,
        {"group_id": "g", "topics": [{"name": name, "partition_indexes": [0]} for name in TOPICS]},
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        3,
        {
            **_IN_TRANSACTION,
            "group_id": "g",
            "generation_id": -1,
            "member_id": "",
            "topics": [{"name": name, "partitions": [_OFFSET]} for name in TOPICS],
        },
    ),
    ApiKey.DELETE_GROUPS: (2, {"groups_names": TOPICS}),
    ApiKey.DESCRIBE_GROUPS: (5, {"groups": TOPICS}),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, {"group_ids": TOPICS}),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, {"group_ids": TOPICS}),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, {"groups": [{"group_id": name, "topics": None} for name in TOPICS]}),
    ApiKey.FIND_COORDINATOR: (4, {"key_type": 0, "coordinator_keys": TOPICS}),
    ApiKey.DELETE_RECORDS: (
        2,
        {"topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 1}]} for name in TOPICS]},
    ),
    ApiKey.DESCRIBE_CONFIGS: (
        4,
        {"resources": [{"resource_type": 2, "resource_name": n, "configuration_keys": None} for n in TOPICS]},
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        1,
        {"resources": [{"resource_type": 2, "resource_name": n, "configs": []} for n in TOPICS]},
    ),
    ApiKey.CREATE_PARTITIONS: (3, {"topics": [{"name": n, "count": 2, "assignments": None} for n in TOPICS]}),
}
"""A version of each API, and a request with thousands of names that the client has no rights for."""


@pytest.mark.requirement("X7")
@pytest.mark.parametrize("api_key", _LONG, ids=lambda api_key: api_key.name)
async def test_others_run_between_the_denials_of_a_long_request(api_key: ApiKey) -> None:
    """A denial has lines in two logs: a tenth of a millisecond each."""
    gated = Gated(api_key)
    for operation in (AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE):
        gated.grant_also((operation, "g"), of=AclResource.GROUP)
    gated.grant_also((AclOperation.WRITE, "x"), of=AclResource.TRANSACTIONAL_ID)
    version, values = _LONG[api_key]
    longest = await _longest_stretch(gated, version, **values)
    assert len(gated.denials) == MANY
    assert longest <= UNITS_MAX // DENIED_UNITS + 1


@pytest.mark.requirement("X7")
async def test_others_run_between_the_denials_of_transactional_ids() -> None:
    """Here the handler judges the names."""
    gated = Gated(ApiKey.DESCRIBE_TRANSACTIONS)
    rows: Any = MemoryTransactions()
    gated.handler = DescribeTransactions(gated.view, rows, gated.authorizer)
    assert await _longest_stretch(gated, 0, transactional_ids=TOPICS) <= UNITS_MAX // DENIED_UNITS + 1
    assert len(gated.denials) == MANY


@pytest.mark.requirement("X7")
@pytest.mark.parametrize(
    ("api_key", "version", "answered", "element", "of"),
    [
        (ApiKey.LIST_GROUPS, 5, "groups", "group_id", AclResource.GROUP),
        (ApiKey.LIST_TRANSACTIONS, 0, "transaction_states", "transactional_id", AclResource.TRANSACTIONAL_ID),
    ],
)
async def test_a_long_answer_is_changed_while_others_run(
    api_key: ApiKey, version: int, answered: str, element: str, of: AclResource
) -> None:
    gated = Gated(api_key)
    gated.grant((AclOperation.DESCRIBE, "n7"), of=of)
    elements = [{element: f"n{number}"} for number in range(MANY)]
    gated.answer = {answered: getattr(build(schema(api_key, version).response_type, {answered: elements}), answered)}
    turns, answer = await _turns_for(gated, version)
    assert turns > 8
    assert [getattr(each, element) for each in getattr(answer, answered)] == ["n7"]


async def test_offsets_of_all_topics_are_changed_while_others_run() -> None:
    gated = Gated(ApiKey.OFFSET_FETCH)
    gated.grant((AclOperation.DESCRIBE, "g"), of=AclResource.GROUP)
    topics = [{"name": f"t{number}", "partitions": []} for number in range(MANY)]
    made = build(schema(ApiKey.OFFSET_FETCH, 8).response_type, {"groups": [{"group_id": "g", "topics": topics}]})
    gated.answer = {"groups": made.groups}
    turns, answer = await _turns_for(gated, 8, groups=[{"group_id": "g", "topics": None}])
    assert turns > 8
    assert [group.topics for group in answer.groups] == [()]
