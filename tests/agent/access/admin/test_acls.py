"""ACLs over the protocol: what filters mean, what is refused, what the log holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.agent.access.admin.acls import ANY, FILTERS_MAX, LITERAL, MATCH, PREFIXED, AclFilter
from headrace.metastore.log.kip631_records import AccessControlRecord
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.access.acls import an_acl
from tests.agent.access.admin.access_world import World
from tests.agent.client_calls import versions_of

TOPIC, GROUP, CLUSTER = 2, 3, 4
READ, WRITE = 3, 4
DENY, ALLOW = 2, 3


def a_filter(**fields: Any) -> AclFilter:
    everything = AclFilter(ANY, None, ANY, None, None, ANY, ANY)
    return everything._replace(**fields)


async def create(world: World, *acls: AccessControlRecord, version: int = 3) -> list[int]:
    creations = [
        (
            "AclCreation",
            {
                "resource_type": acl.resource_type,
                "resource_name": acl.resource_name,
                "resource_pattern_type": acl.pattern_type,
                "principal": acl.principal,
                "host": acl.host,
                "operation": acl.operation,
                "permission_type": acl.permission_type,
            },
        )
        for acl in acls
    ]
    answer = await world.ask(ApiKey.CREATE_ACLS, version, creations=creations)
    return [int(result.error_code) for result in answer.results]


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission_type,
    }


async def describe(world: World, wanted: AclFilter, version: int = 3) -> list[AccessControlRecord]:
    answer = await world.ask(ApiKey.DESCRIBE_ACLS, version, **_filter_fields(wanted))
    assert answer.error_code == ErrorCode.none, answer.error_message
    return [
        AccessControlRecord(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            pattern_type=resource.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    ]


async def delete(world: World, *filters: AclFilter, version: int = 3) -> list[tuple[int, list[str]]]:
    answer = await world.ask(
        ApiKey.DELETE_ACLS, version, filters=[("DeleteAclsFilter", _filter_fields(wanted)) for wanted in filters]
    )
    return [
        (int(result.error_code), [acl.resource_name for acl in result.matching_acls])
        for result in answer.filter_results
    ]


@pytest.mark.requirement("C13.1")
@pytest.mark.parametrize("version", versions_of(ApiKey.CREATE_ACLS))
async def test_what_is_created_is_described_until_it_is_deleted(world: World, version: int) -> None:
    acls = [
        an_acl("orders"),
        an_acl("orders", operation=WRITE),
        an_acl("ord", pattern_type=PREFIXED, permission_type=DENY),
        an_acl("*"),
    ]
    assert await create(world, *acls, version=version) == [0, 0, 0, 0]
    assert set(await describe(world, a_filter(), version)) == set(acls) == (await world.image()).access_controls
    assert await delete(world, a_filter(resource_name="orders"), version=version) == [(0, ["orders", "orders"])]
    assert set(await describe(world, a_filter(), version)) == set(acls[2:])


async def test_creating_and_deleting_again_changes_nothing(world: World) -> None:
    await create(world, an_acl("orders"))
    head = len(world.api.log)
    assert await create(world, an_acl("orders"), an_acl("orders")) == [0, 0]
    assert await delete(world, a_filter(resource_name="nope")) == [(0, [])]
    assert len(world.api.log) == head


async def test_acls_of_one_pattern_are_answered_together(world: World) -> None:
    await create(
        world, an_acl("orders"), an_acl("b"), an_acl("orders", operation=WRITE), an_acl("orders", pattern_type=PREFIXED)
    )
    answer = await world.ask(ApiKey.DESCRIBE_ACLS, 3, **_filter_fields(a_filter()))
    assert [(r.resource_name, r.pattern_type, len(r.acls)) for r in answer.resources] == [
        ("b", LITERAL, 1),
        ("orders", LITERAL, 2),
        ("orders", PREFIXED, 1),
    ]


async def test_each_creation_is_judged_for_itself(world: World) -> None:
    bad = [
        an_acl("orders", resource_type=1),
        an_acl("orders", resource_type=9),
        an_acl("orders", pattern_type=MATCH),
        an_acl("orders", operation=1),
        an_acl("orders", operation=0),
        an_acl("orders", permission_type=1),
        an_acl(""),
        an_acl("some-cluster", resource_type=CLUSTER),
        an_acl("orders", principal="ann"),
    ]
    good = an_acl("kafka-cluster", resource_type=CLUSTER)
    assert await create(world, *bad, good) == [ErrorCode.invalid_request] * len(bad) + [0]
    assert (await world.image()).access_controls == {good}


async def test_each_filter_is_judged_for_itself_and_all_that_match_go_at_once(world: World) -> None:
    await create(world, an_acl("a"), an_acl("b"), an_acl("c"))
    answers = await delete(world, a_filter(resource_name="a"), a_filter(operation=0), a_filter(principal="User:alice"))
    assert answers == [(0, ["a"]), (ErrorCode.invalid_request, []), (0, ["a", "b", "c"])]
    assert (await world.image()).access_controls == frozenset()


@pytest.mark.parametrize("field", ["resource_type", "pattern_type", "operation", "permission_type"])
async def test_a_filter_with_something_unknown_is_refused(world: World, field: str) -> None:
    for unknown in (0, 100):
        answer = await world.ask(ApiKey.DESCRIBE_ACLS, 3, **_filter_fields(a_filter(**{field: unknown})))
        assert answer.error_code == ErrorCode.invalid_request
        assert str(unknown) in answer.error_message


async def test_the_metastore_away_is_answered_for_every_part(world: World) -> None:
    await create(world, an_acl("orders"))
    world.api.fail_before["append_records"] += [UnavailableError("gone"), UnavailableError("gone")]
    assert await create(world, an_acl("b"), an_acl("")) == [ErrorCode.request_timed_out, ErrorCode.invalid_request]
    assert await delete(world, a_filter()) == [(ErrorCode.request_timed_out, [])]
    world.api.fail_before["read_metadata"].append(UnavailableError("gone"))
    answer = await world.ask(ApiKey.DESCRIBE_ACLS, 3, **_filter_fields(a_filter()))
    assert (answer.error_code, answer.resources) == (ErrorCode.request_timed_out, ())


async def test_a_deletion_is_held_against_so_many_filters_and_no_more(world: World) -> None:
    """They are gone through on the listener's loop."""
    filters = [a_filter(resource_name=f"t{number}") for number in range(FILTERS_MAX + 1)]
    answers = await delete(world, *filters, filters[0])
    assert [code for code, _ in answers] == [0] * FILTERS_MAX + [ErrorCode.invalid_request, 0]


async def test_a_lost_answer_is_looked_up_so_that_the_deleted_are_named(world: World) -> None:
    await create(world, an_acl("orders"))
    world.api.fail_after["append_records"].append(OutcomeUnknownError("lost"))
    assert await delete(world, a_filter()) == [(0, ["orders"])]
    await create(world, an_acl("orders"))
    world.api.fail_before["append_records"].append(OutcomeUnknownError("lost"))
    assert await delete(world, a_filter()) == [(0, ["orders"])]
    assert (await world.image()).access_controls == frozenset()


async def test_a_log_that_changes_is_judged_again_and_one_that_keeps_changing_is_given_up(world: World) -> None:
    await create(world, an_acl("orders"))

    def another_is_quicker() -> None:
        world.api.append(an_acl("b"))
        world.api.before_append = None

    world.api.before_append = another_is_quicker
    assert await delete(world, a_filter()) == [(0, ["b", "orders"])]

    def a_bit_later() -> None:
        world.api.append(an_acl("never-ends"))
        world.api.before_append = a_bit_later
        world.clock.jump(1.0)

    world.api.before_append = a_bit_later
    assert await world.clock.run(create(world, an_acl("c"))) == [ErrorCode.request_timed_out]


NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "c"])
ACLS = st.builds(
    an_acl, NAMES, pattern_type=st.sampled_from([LITERAL, PREFIXED]), resource_type=st.sampled_from([TOPIC, GROUP])
)


@given(ACLS, st.one_of(st.none(), NAMES), st.sampled_from([ANY, MATCH, LITERAL, PREFIXED]))
def test_pattern_types_mean_what_kafka_says(acl: AccessControlRecord, name: str | None, pattern_type: int) -> None:
    """Kafka's ResourcePatternFilter.matches, told the other way round."""
    wanted = a_filter(resource_name=name, pattern_type=pattern_type)
    own = acl.resource_name or ""
    by_type = {
        ANY: name == own,
        LITERAL: acl.pattern_type == LITERAL and name == own,
        PREFIXED: acl.pattern_type == PREFIXED and name == own,
        MATCH: (acl.pattern_type == LITERAL and own in (name, "*"))
        or (acl.pattern_type == PREFIXED and (name or "").startswith(own)),
    }
    unnamed = pattern_type in (ANY, MATCH, acl.pattern_type)
    assert wanted.matches(acl) == (unnamed if name is None else by_type[pattern_type])
    assert a_filter(resource_type=GROUP).matches(acl) == (acl.resource_type == GROUP)
    assert not a_filter(principal="User:bob").matches(acl)
    assert not a_filter(host="10.0.0.1").matches(acl)
    assert not a_filter(permission_type=DENY).matches(acl)
