"""Client quotas over the protocol: entities, filters, and whole entities or nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import UnavailableError
from tests.agent.access.admin.access_world import World
from tests.agent.client_calls import versions_of

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
Quotas = dict[tuple[tuple[str, str | None], ...], dict[str, float]]


def entry(entity: dict[str, str | None], **ops: float | None) -> tuple[str, dict[str, Any]]:
    """None removes."""
    parts = [("EntityData", {"entity_type": kind, "entity_name": name}) for kind, name in entity.items()]
    values = [("OpData", {"key": key, "value": value or 0.0, "remove": value is None}) for key, value in ops.items()]
    return "EntryData", {"entity": parts, "ops": values}


async def alter(world: World, *entries: Any, version: int = 1, validate_only: bool = False) -> list[int]:
    answer = await world.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, entries=list(entries), validate_only=validate_only)
    return [int(found.error_code) for found in answer.entries]


async def describe(
    world: World, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Quotas | int:
    asked = [
        ("ComponentData", {"entity_type": kind, "match_type": how, "match": name}) for kind, how, name in components
    ]
    answer = await world.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, components=asked, strict=strict)
    if answer.error_code != ErrorCode.none:
        assert answer.entries is None
        return int(answer.error_code)
    return {
        tuple((part.entity_type, part.entity_name) for part in found.entity): {v.key: v.value for v in found.values}
        for found in answer.entries
    }


ANN, BOB = (("user", "ann"),), (("user", "bob"),)
ANYBODY, APP, ADDRESS = (("user", None),), (("client-id", "app"),), (("ip", "10.0.0.1"),)
ANNS_APP, ANNS_ANY = (("client-id", "app"), ("user", "ann")), (("client-id", None), ("user", "ann"))


@pytest.fixture
async def stocked(world: World) -> World:
    for entity in (ANN, BOB, ANYBODY, APP, ANNS_APP, ANNS_ANY):
        assert await alter(world, entry(dict(entity), producer_byte_rate=1024.0)) == [0]
    assert await alter(world, entry(dict(ADDRESS), connection_creation_rate=5.0)) == [0]
    return world


@pytest.mark.requirement("C13.1")
@pytest.mark.parametrize("version", versions_of(ApiKey.ALTER_CLIENT_QUOTAS))
async def test_quotas_are_set_changed_and_removed(world: World, version: int) -> None:
    first = entry({"user": "ann", "client-id": None}, producer_byte_rate=1e6, request_percentage=12.5)
    assert await alter(world, first, version=version) == [0]
    assert await describe(world, version=version) == {ANNS_ANY: {"producer_byte_rate": 1e6, "request_percentage": 12.5}}
    second = entry({"client-id": None, "user": "ann"}, producer_byte_rate=None, consumer_byte_rate=7.0)
    assert await alter(world, second, version=version) == [0]
    assert await describe(world) == {ANNS_ANY: {"consumer_byte_rate": 7.0, "request_percentage": 12.5}}
    assert await alter(world, entry(dict(ANNS_ANY), consumer_byte_rate=None, request_percentage=None)) == [0]
    assert await describe(world) == {}
    assert (await world.image()).quotas == {}


async def test_an_existing_value_is_not_written_again(stocked: World) -> None:
    head = len(stocked.api.log)
    assert await alter(stocked, entry(dict(ANN), producer_byte_rate=1024.0, request_percentage=None)) == [0]
    assert len(stocked.api.log) == head


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ((), False, {ANN, BOB, ANYBODY, APP, ANNS_APP, ANNS_ANY, ADDRESS}),
        ((("user", EXACT, "ann"),), False, {ANN, ANNS_APP, ANNS_ANY}),
        ((("user", EXACT, "ann"),), True, {ANN}),
        ((("user", DEFAULT, None),), False, {ANYBODY}),
        ((("user", SPECIFIED, None),), True, {ANN, BOB, ANYBODY}),
        ((("user", SPECIFIED, None), ("client-id", EXACT, "app")), True, {ANNS_APP}),
        ((("user", EXACT, "ann"), ("client-id", DEFAULT, None)), False, {ANNS_ANY}),
        ((("ip", SPECIFIED, None),), True, {ADDRESS}),
        ((("user", EXACT, "zoe"),), False, set()),
        ((), True, set()),
    ],
)
async def test_filters(stocked: World, components: Any, strict: bool, found: set[Any]) -> None:
    answer = await describe(stocked, *components, strict=strict)
    assert not isinstance(answer, int)
    assert set(answer) == found


@pytest.mark.parametrize(
    "components",
    [
        (("user", EXACT, "a"), ("user", EXACT, "b")),
        (("ip", SPECIFIED, None), ("user", SPECIFIED, None)),
        (("group", SPECIFIED, None),),
        (("", SPECIFIED, None),),
        (("user", 3, None),),
        (("user", EXACT, None),),
        (("user", DEFAULT, "a"),),
        (("user", SPECIFIED, "a"),),
    ],
)
async def test_filters_that_make_no_sense_are_refused(stocked: World, components: Any) -> None:
    assert await describe(stocked, *components) == ErrorCode.invalid_request


@pytest.mark.parametrize(
    "bad",
    [
        entry({}, producer_byte_rate=1.0),
        entry({"group": "g"}, producer_byte_rate=1.0),
        entry({"user": ""}, producer_byte_rate=1.0),
        entry({"ip": "10.0.0.1", "user": "ann"}, connection_creation_rate=1.0),
        entry({"ip": "not an address"}, connection_creation_rate=1.0),
        entry({"ip": "10.0.0.1"}, producer_byte_rate=1.0),
        entry({"user": "cid"}, connection_creation_rate=1.0),
        entry({"user": "cid"}, consumer_byte_rate=1.0, producer_byte_rate=1.5),
        entry({"user": "cid"}, producer_byte_rate=0.0),
        entry({"user": "cid"}, producer_byte_rate=-1.0),
        entry({"user": "cid"}, producer_byte_rate=math.nan),
        entry({"user": "cid"}, producer_byte_rate=1e30),
    ],
)
async def test_an_entity_is_changed_whole_or_not_at_all(world: World, bad: Any) -> None:
    good = entry({"user": "ann"}, request_percentage=0.5)
    assert await alter(world, bad, good) == [ErrorCode.invalid_request, 0]
    assert (await world.image()).quotas.keys() == (await _only_ann(world)).keys()


async def test_a_removed_quota_may_have_any_name(world: World) -> None:
    """As in Kafka: what is not there is gone."""
    assert await alter(world, entry({"user": "cid"}, nonsense=None)) == [0]
    assert not (await world.image()).quotas


async def _only_ann(world: World) -> Any:
    return {entity: None for entity in (await world.image()).quotas if entity[0].entity_name == "ann"}


async def test_one_key_or_one_entity_twice_is_refused(world: World) -> None:
    twice = entry({"user": "ann"}, producer_byte_rate=1.0)
    twice[1]["ops"] *= 2
    assert await alter(world, twice) == [ErrorCode.invalid_request]
    same = [entry({"user": "bob"}, producer_byte_rate=rate) for rate in (1.0, 2.0)]
    assert await alter(world, *same) == [ErrorCode.invalid_request] * 2
    assert (await world.image()).quotas == {}


async def test_validating_changes_nothing(world: World) -> None:
    assert await alter(
        world, entry({"user": "ann"}, producer_byte_rate=1.0), entry({"user": ""}), validate_only=True
    ) == [0, ErrorCode.invalid_request]
    assert world.api.calls["append_records"] == 0


async def test_the_metastore_away(stocked: World) -> None:
    stocked.api.fail_before["append_records"].append(UnavailableError("gone"))
    assert await alter(stocked, entry(dict(ANN), producer_byte_rate=1.0)) == [ErrorCode.request_timed_out]
    stocked.api.fail_before["read_metadata"].append(UnavailableError("gone"))
    assert await describe(stocked) == ErrorCode.request_timed_out
