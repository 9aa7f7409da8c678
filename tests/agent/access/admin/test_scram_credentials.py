"""SCRAM credentials over the protocol: per user, all or nothing, and no secret ever comes back."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.metastore.log.kip631_records import CredentialInfo
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.access.admin.access_world import World

SHA_256, SHA_512 = 1, 2


def upsert(user: str, mechanism: int = SHA_256, iterations: int = 4096, **secrets: bytes) -> tuple[str, dict[str, Any]]:
    fields: dict[str, Any] = {"salt": b"salt", "salted_password": b"hash", **secrets}
    return "ScramCredentialUpsertion", {"name": user, "mechanism": mechanism, "iterations": iterations, **fields}


def drop(user: str, mechanism: int = SHA_256) -> tuple[str, dict[str, Any]]:
    return "ScramCredentialDeletion", {"name": user, "mechanism": mechanism}


async def alter(world: World, *changes: tuple[str, dict[str, Any]]) -> dict[str, int]:
    answer = await world.ask(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        deletions=[change for change in changes if change[0] == "ScramCredentialDeletion"],
        upsertions=[change for change in changes if change[0] == "ScramCredentialUpsertion"],
    )
    return {result.user: int(result.error_code) for result in answer.results}


async def describe(world: World, *users: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    answer = await world.ask(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[("UserName", {"name": user}) for user in users]
    )
    assert answer.error_code == ErrorCode.none
    return {
        result.user: (int(result.error_code), [(info.mechanism, info.iterations) for info in result.credential_infos])
        for result in answer.results
    }


@pytest.mark.requirement("C13.1")
async def test_credentials_come_change_and_go(world: World) -> None:
    assert await alter(world, upsert("ann"), upsert("ann", SHA_512, 8192), upsert("bob")) == {"ann": 0, "bob": 0}
    assert await describe(world) == {
        "ann": (0, [(SHA_256, 4096), (SHA_512, 8192)]),
        "bob": (0, [(SHA_256, 4096)]),
    }
    assert await alter(world, upsert("ann", iterations=5000, salt=b"pepper"), drop("bob")) == {"ann": 0, "bob": 0}
    assert await describe(world, "ann") == {"ann": (0, [(SHA_256, 5000), (SHA_512, 8192)])}
    held = (await world.image()).scram_credentials
    assert held["ann"][0] == CredentialInfo(mechanism=SHA_256, salt=b"pepper", salted_password=b"hash", iterations=5000)
    assert "bob" not in held
    assert await alter(world, drop("ann", SHA_512)) == {"ann": 0}
    assert await describe(world) == {"ann": (0, [(SHA_256, 5000)])}


async def test_null_or_an_empty_list_asks_for_all_users(world: World) -> None:
    await alter(world, upsert("ann"))
    for nobody in (None, []):
        answer = await world.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=nobody)
        assert [result.user for result in answer.results] == ["ann"]


async def test_unknown_users_and_users_named_twice_are_answered_per_user(world: World) -> None:
    await alter(world, upsert("ann"), upsert("bob"))
    assert await describe(world, "ann", "zoe", "bob", "bob") == {
        "ann": (0, [(SHA_256, 4096)]),
        "zoe": (ErrorCode.resource_not_found, []),
        "bob": (ErrorCode.duplicate_resource, []),
    }


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsert("ann", iterations=4095), ErrorCode.unacceptable_credential),
        (upsert("ann", iterations=16385), ErrorCode.unacceptable_credential),
        (upsert("ann", salt=b""), ErrorCode.unacceptable_credential),
        (upsert("ann", salted_password=b""), ErrorCode.unacceptable_credential),
        (upsert(""), ErrorCode.unacceptable_credential),
        (drop(""), ErrorCode.unacceptable_credential),
        (upsert("ann", 0), ErrorCode.unsupported_sasl_mechanism),
        (drop("ann", 3), ErrorCode.unsupported_sasl_mechanism),
        (drop("ann", SHA_512), ErrorCode.resource_not_found),
    ],
)
async def test_one_refused_change_keeps_all_of_the_users_credentials(
    world: World, change: tuple[str, dict[str, Any]], code: int
) -> None:
    await alter(world, upsert("ann"))
    before = (await world.image()).scram_credentials["ann"]
    user = change[1]["name"]
    other = SHA_512 if change[1]["mechanism"] == SHA_256 else SHA_256
    answers = await alter(world, change, upsert("ann", other, 9000), upsert("bob"))
    assert answers == {"ann": 0, user: code, "bob": 0}
    image = await world.image()
    assert (image.scram_credentials["ann"] == before) == (user == "ann")
    assert "bob" in image.scram_credentials


async def test_bounds_themselves_are_accepted(world: World) -> None:
    assert await alter(world, upsert("ann", iterations=4096), upsert("bob", iterations=16384)) == {"ann": 0, "bob": 0}


async def test_a_credential_is_altered_once_per_request(world: World) -> None:
    await alter(world, upsert("ann"), upsert("bob"))
    answers = await alter(world, drop("ann"), upsert("ann"), upsert("bob"), upsert("bob"), upsert("cid"))
    assert answers == {"ann": ErrorCode.duplicate_resource, "bob": ErrorCode.duplicate_resource, "cid": 0}
    other = await alter(world, drop("ann"), upsert("ann", SHA_512, 9000))
    assert other == {"ann": ErrorCode.duplicate_resource}, "as in Kafka, also for another mechanism"


async def test_a_deletion_with_a_lost_response_is_not_answered_not_found(world: World) -> None:
    await alter(world, upsert("ann"))
    world.api.fail_after["append_records"].append(OutcomeUnknownError("lost"))
    assert await alter(world, drop("ann"), drop("zoe")) == {"ann": 0, "zoe": ErrorCode.resource_not_found}


async def test_librdkafka_never_sees_an_error_for_the_whole(world: World) -> None:
    """It would abort its process: with the metastore away the older image answers."""
    await alter(world, upsert("ann"))
    world.api.fail_before["read_metadata"] += [UnavailableError("gone")]
    assert await describe(world) == {"ann": (0, [(SHA_256, 4096)])}
    world.api.fail_before["append_records"] += [UnavailableError("gone")]
    assert await alter(world, upsert("bob"), drop("zoe")) == {
        "bob": ErrorCode.request_timed_out,
        "zoe": ErrorCode.resource_not_found,
    }
