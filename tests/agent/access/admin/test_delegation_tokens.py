"""Delegation tokens: what a listener that does not authenticate answers, and the rules behind one that would."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.config.settings import Settings
from headrace.metastore.log.delegation_tokens import (
    PRINCIPAL_BYTES_MAX,
    RENEWERS_MAX,
    TokenTimes,
    ended,
    is_expired,
    issue_token,
    renewed,
    token_hmac,
)
from headrace.metastore.log.kip631_records import DelegationTokenRecord
from headrace.metastore.log.own_records import RemoveDelegationTokenRecord
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from tests.agent.access.admin.access_world import SECRET, World
from tests.agent.client_calls import versions_of
from tests.manual_clock import ManualClock

ANN, BOB, CID = "User:ann", "User:bob", "User:cid"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TIMES = TokenTimes(7 * DAY_MS, DAY_MS)


def now(world: World) -> int:
    return world.clock.wall_ms()


def ms(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def _creation(**fields: Any) -> dict[str, Any]:
    return {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [("CreatableRenewers", {"principal_type": "User", "principal_name": "bob"})],
        "max_lifetime": ms(-1),
        **fields,
    }


async def create(world: World, principal: str = ANN, *, version: int = 3, **fields: Any) -> Any:
    return await world.ask(ApiKey.CREATE_DELEGATION_TOKEN, version, principal=principal, **_creation(**fields))


async def renew(world: World, hmac: bytes, period_ms: int = -1, principal: str = ANN, version: int = 2) -> Any:
    fields = {"hmac": hmac, "renew_period": ms(period_ms)}
    return await world.ask(ApiKey.RENEW_DELEGATION_TOKEN, version, principal=principal, **fields)


async def expire(world: World, hmac: bytes, period_ms: int = -1, principal: str = ANN, version: int = 2) -> Any:
    fields = {"hmac": hmac, "expiry_time_period": ms(period_ms)}
    return await world.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, version, principal=principal, **fields)


async def refusal(
    world: World, api_key: int, principal: str | None, hmac: bytes = b"x", version: int = 2, **fields: Any
) -> int:
    """The error code, which comes first; kio does not read the time -1 that goes with it."""
    request = {"hmac": hmac, "renew_period": ms(-1), "expiry_time_period": ms(-1), **_creation(), **fields}
    body = await world.exchange(api_key, version, principal=principal, **request)
    return int.from_bytes(body[:2], "big")


async def describe(world: World, *owners: str, principal: str | None = ANN, version: int = 3) -> Any:
    """Describe the tokens of all owners when none is named."""
    named = [
        ("DescribeDelegationTokenOwner", {"principal_type": kind, "principal_name": name})
        for kind, _, name in (owner.partition(":") for owner in owners)
    ]
    return await world.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, principal=principal, owners=named or None)


def at(timestamp: Any) -> int:
    return round(timestamp.timestamp() * 1000)


CHANGES = (ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN)


@pytest.mark.requirement("X2")
@pytest.mark.parametrize(("principal", "is_by_token"), [("User:ANONYMOUS", False), (ANN, True)])
@pytest.mark.parametrize("api_key", CHANGES)
async def test_clients_without_a_certificate_and_tokens_themselves_are_refused(
    fake_clock: ManualClock, api_key: int, principal: str, *, is_by_token: bool
) -> None:
    """A token could prolong itself."""
    world = World(fake_clock, Settings(delegation_token_secret_key="configured"))
    code = await refusal(world, api_key, principal, is_by_token=is_by_token)
    assert code == ErrorCode.delegation_token_request_not_allowed
    assert world.api.log == []


@pytest.mark.requirement("C13.1")
@pytest.mark.parametrize("secret", [None, "configured"])
async def test_a_listener_that_does_not_authenticate_refuses_as_kafka_does(
    fake_clock: ManualClock, secret: str | None
) -> None:
    """KafkaApis.allowTokenRequests: before any other check, with every configuration."""
    world = World(fake_clock, Settings(delegation_token_secret_key=secret))
    for version in versions_of(ApiKey.DESCRIBE_DELEGATION_TOKEN):
        answer = await describe(world, principal=None, version=version)
        assert (answer.error_code, answer.tokens) == (ErrorCode.delegation_token_request_not_allowed, ())
    for api_key in CHANGES:
        for version in versions_of(api_key):
            code = await refusal(world, api_key, None, version=version)
            assert code == ErrorCode.delegation_token_request_not_allowed
    assert world.api.log == []


async def test_a_refusal_is_kafkas_to_the_last_byte(world: World) -> None:
    """CreateDelegationTokenResponse.prepareResponse(3, 0, error, ANONYMOUS, ANONYMOUS)."""
    body = await world.exchange(ApiKey.CREATE_DELEGATION_TOKEN, 3, **_creation())
    anonymous = b"\x05User\x0aANONYMOUS"
    assert body == b"\x00\x40" + 2 * anonymous + 24 * b"\xff" + b"\x01" + b"\x01" + 4 * b"\0" + b"\0"
    assert await world.exchange(ApiKey.RENEW_DELEGATION_TOKEN, 2, hmac=b"", renew_period=ms(0)) == (
        b"\x00\x40" + 8 * b"\xff" + 4 * b"\0" + b"\0"
    )


async def test_without_a_secret_key_there_are_no_tokens(fake_clock: ManualClock) -> None:
    world = World(fake_clock, Settings())
    assert (await describe(world)).error_code == ErrorCode.delegation_token_auth_disabled
    for api_key in CHANGES:
        assert await refusal(world, api_key, ANN) == ErrorCode.delegation_token_auth_disabled


@pytest.mark.requirement("C13.1")
async def test_a_token_is_issued_renewed_and_ended(world: World) -> None:
    now = world.clock.wall_ms()
    made = await create(world)
    assert (made.error_code, made.principal_type, made.principal_name) == (0, "User", "ann")
    assert (made.token_requester_principal_type, made.token_requester_principal_name) == ("User", "ann")
    assert [at(t) - now for t in (made.issue_timestamp, made.expiry_timestamp, made.max_timestamp)] == [
        0,
        DAY_MS,
        7 * DAY_MS,
    ]
    assert len(made.hmac) == 64
    assert made.hmac not in b"".join(world.api.log)

    world.clock.jump(3600)
    renewal = await renew(world, made.hmac, 2 * HOUR_MS, BOB)
    assert (renewal.error_code, at(renewal.expiry_timestamp) - now) == (0, 3 * HOUR_MS)
    (told,) = (await describe(world)).tokens
    assert (told.token_id, told.hmac, told.expiry_timestamp - now) == (made.token_id, made.hmac, 3 * HOUR_MS)
    assert [(r.principal_type, r.principal_name) for r in told.renewers] == [("User", "bob")]

    later = await expire(world, made.hmac, HOUR_MS)
    assert (later.error_code, at(later.expiry_timestamp) - now) == (0, 2 * HOUR_MS)
    gone = await expire(world, made.hmac)
    assert (gone.error_code, at(gone.expiry_timestamp) - now) == (0, HOUR_MS)
    assert (await describe(world)).tokens == ()
    assert await refusal(world, ApiKey.RENEW_DELEGATION_TOKEN, ANN, made.hmac) == ErrorCode.delegation_token_not_found


async def test_an_expired_token_can_only_be_dropped(world: World) -> None:
    made = await create(world, max_lifetime=ms(HOUR_MS))
    assert at(made.max_timestamp) == at(made.expiry_timestamp)
    world.clock.jump(3601)
    for api_key, period in ((ApiKey.RENEW_DELEGATION_TOKEN, -1), (ApiKey.EXPIRE_DELEGATION_TOKEN, 5)):
        code = await refusal(world, api_key, ANN, made.hmac, expiry_time_period=ms(period))
        assert code == ErrorCode.delegation_token_expired
    assert (await expire(world, made.hmac)).error_code == 0
    assert (await world.image()).delegation_tokens == {}


async def test_a_token_is_its_owners_and_renewers_business(world: World) -> None:
    made = await create(world)
    for api_key in (ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN):
        assert await refusal(world, api_key, CID, made.hmac) == ErrorCode.delegation_token_owner_mismatch
        assert await refusal(world, api_key, ANN, b"guessed") == ErrorCode.delegation_token_not_found
    assert [len((await describe(world, principal=whose)).tokens) for whose in (ANN, BOB, CID)] == [1, 1, 0]
    assert [len((await describe(world, owner)).tokens) for owner in (ANN, BOB, CID)] == [1, 1, 0]


async def test_tokens_for_others_need_a_grant_that_does_not_exist(world: World) -> None:
    own = {"owner_principal_type": "User", "owner_principal_name": "ann"}
    assert (await create(world, **own)).error_code == 0
    code = await refusal(world, ApiKey.CREATE_DELEGATION_TOKEN, BOB, version=3, **own)
    assert code == ErrorCode.delegation_token_authorization_failed
    robots = [("CreatableRenewers", {"principal_type": "Robot", "principal_name": "r"})]
    code = await refusal(world, ApiKey.CREATE_DELEGATION_TOKEN, ANN, renewers=robots)
    assert code == ErrorCode.invalid_principal_type


def renewers(*names: str) -> list[tuple[str, dict[str, str]]]:
    return [("CreatableRenewers", {"principal_type": "User", "principal_name": name}) for name in names]


@pytest.mark.requirement("X7")
async def test_a_token_has_so_many_renewers_and_their_names_so_many_bytes(world: World) -> None:
    """Every agent holds every token, and any user may make one."""
    many = [f"r{number}" for number in range(RENEWERS_MAX)]
    assert (await create(world, renewers=renewers(*many))).error_code == 0
    longest = "x" * (PRINCIPAL_BYTES_MAX - len("User:"))
    assert (await create(world, renewers=renewers(longest))).error_code == 0
    refused = (renewers(*many, "one more"), renewers(longest + "x"), renewers("é" * (PRINCIPAL_BYTES_MAX // 2)))
    for each in refused:
        code = await refusal(world, ApiKey.CREATE_DELEGATION_TOKEN, ANN, renewers=each)
        assert code == ErrorCode.invalid_request
    assert len((await world.image()).delegation_tokens) == 2
    assert world.limits == ["delegation.token.renewers"] * 3


@pytest.mark.requirement("X7")
async def test_an_owner_has_so_many_tokens_at_a_time(fake_clock: ManualClock) -> None:
    world = World(fake_clock, Settings(delegation_token_secret_key=SECRET, delegation_token_max_per_owner=3))
    made = [await create(world) for _ in range(3)]
    assert await refusal(world, ApiKey.CREATE_DELEGATION_TOKEN, ANN) == ErrorCode.policy_violation
    assert (await create(world, BOB)).error_code == 0, "of another owner"
    assert (await renew(world, made[0].hmac)).error_code == 0, "what is there goes on"
    assert (await expire(world, made[0].hmac)).error_code == 0
    assert (await create(world)).error_code == 0
    assert world.limits == ["delegation.token.max.per.owner"]


@pytest.mark.requirement("X7")
async def test_a_token_from_before_the_limits_is_shown_and_ended_and_expires(world: World) -> None:
    await world.image()
    old = replace(
        issue_token("old", ANN, ["User:" + "x" * 7_000_000], max_lifetime_ms=HOUR_MS, times=TIMES, now_ms=now(world)),
        token_id="old",
    )
    world.api.append(old, replace(old, token_id="older"))
    assert [len(token.renewers) for token in (await describe(world)).tokens] == [1, 1]
    assert (
        await refusal(world, ApiKey.RENEW_DELEGATION_TOKEN, ANN, token_hmac(SECRET, "old")) == ErrorCode.invalid_request
    )
    assert (await expire(world, token_hmac(SECRET, "old"))).error_code == 0
    world.clock.jump(3_601)
    assert is_expired((await world.image()).delegation_tokens["older"], now(world))
    dropped = [RemoveDelegationTokenRecord(token_id="older")]  # as the active controller does
    assert await world.api.append_records((await world.image()).offset, dropped)
    assert (await world.image()).delegation_tokens == {}


async def test_lost_answers_and_a_metastore_away(world: World) -> None:
    world.api.fail_after["append_records"].append(OutcomeUnknownError("lost"))
    made = await create(world)
    assert len((await world.image()).delegation_tokens) == 1
    world.api.fail_after["append_records"].append(OutcomeUnknownError("lost"))
    assert (await expire(world, made.hmac)).error_code == 0
    world.api.fail_before["append_records"].append(UnavailableError("gone"))
    assert await refusal(world, ApiKey.CREATE_DELEGATION_TOKEN, ANN) == ErrorCode.request_timed_out
    world.api.fail_before["read_metadata"].append(UnavailableError("gone"))
    assert (await describe(world)).error_code == ErrorCode.request_timed_out


PERIODS = st.integers(-1, 10 * DAY_MS)


@given(PERIODS, PERIODS, PERIODS, st.integers(0, 10 * DAY_MS))
def test_no_token_is_valid_beyond_its_lifetime(lifetime: int, renewal: int, end: int, later: int) -> None:
    times = TokenTimes(7 * DAY_MS, DAY_MS)
    token = issue_token("t", ANN, [BOB], max_lifetime_ms=lifetime, times=times, now_ms=1_000)
    assert token.max_timestamp - 1_000 == (min(lifetime, 7 * DAY_MS) if lifetime > 0 else 7 * DAY_MS)
    again = renewed(token, period_ms=renewal, times=times, now_ms=1_000 + later)
    finish = ended(token, period_ms=end, now_ms=1_000 + later)
    assert again.expiration_timestamp <= min(token.max_timestamp, 1_000 + later + DAY_MS)
    assert isinstance(finish, RemoveDelegationTokenRecord) == (end < 0)
    if isinstance(finish, DelegationTokenRecord):
        assert finish.expiration_timestamp == min(token.max_timestamp, 1_000 + later + end)
    assert is_expired(token, 1_000 + later) == (later > min(DAY_MS, token.max_timestamp - 1_000))
