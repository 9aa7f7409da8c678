"""The name of a table needs a right to a topic of that name."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS
from tests.agent.access.authorization.gated import Gated


def named(*values: str | None, legacy: bool = False) -> dict[str, Any]:
    """A change that gives the topic `My.topic` these names of tables."""
    configs = [{"name": "table.name", "value": value} | ({} if legacy else {"config_operation": 0}) for value in values]
    return {"resources": [{"resource_type": 2, "resource_name": "My.topic", "configs": configs}]}


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("api_key", [ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS])
async def test_the_name_of_a_table_needs_the_right_for_a_topic_of_that_name(api_key: ApiKey) -> None:
    gated, legacy = Gated(api_key), api_key is ApiKey.ALTER_CONFIGS
    alter, version = AclOperation.ALTER_CONFIGS, APIS[api_key].max_version
    gated.grant((alter, "My.topic"))

    async def code(*values: str | None) -> int:
        answer = await gated.ask(version, **named(*values, legacy=legacy))
        return answer.responses[0].error_code if answer.responses else 0

    failed = int(ErrorCode.topic_authorization_failed)
    for own in ("my_topic", "", None, " my_topic "):
        assert await code(own) == 0, "its own, or none"
    for other in ("orders", "MY_TOPIC", "my_topic_2"):
        assert await code(other) == failed
    assert await code("my_topic", "orders") == failed, "the handler may take either"
    gated.grant((alter, "My.topic"), (alter, "orders"))
    assert await code("orders") == 0
    gated.grant((alter, "orders"))
    assert await code("orders") == failed, "the topic itself counts, too"
    gated.grant((alter, "My.topic"))
    gated.view.image = replace(
        gated.view.image, configs=MappingProxyType({(2, "My.topic"): MappingProxyType({"table.name": "orders"})})
    )
    assert await code("orders") == 0, "what is set already can stay"


async def test_a_new_topic_needs_the_right_to_the_name_of_its_table() -> None:
    gated = Gated(ApiKey.CREATE_TOPICS)
    wanted = {"name": "new", "num_partitions": 1, "configs": [{"name": "table.name", "value": "orders"}]}
    gated.grant((AclOperation.CREATE, "new"))
    answer = await gated.ask(7, topics=[wanted])
    assert [each.error_code for each in answer.topics] == [ErrorCode.topic_authorization_failed]
    for grants, of in (
        ([(AclOperation.CREATE, "new"), (AclOperation.CREATE, "orders")], AclResource.TOPIC),
        ([(AclOperation.CREATE, "kafka-cluster")], AclResource.CLUSTER),
    ):
        gated.grant(*grants, of=of)
        assert (await gated.ask(7, topics=[wanted])).topics == ()
    assert len(gated.seen) == 2
