"""Long requests and answers are judged in slices: others run between them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.typed import schema
from tests.acl_matrix.case import build
from tests.agent.access.authorization.gated import Gated


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
