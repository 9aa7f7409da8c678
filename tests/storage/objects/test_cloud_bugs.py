"""Bugs that are planted into the stores of Azure and Google: a test of faults, or of identities, finds each.

Fault model: that of the tests that are run again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from headrace.storage.errors import AlreadyExistsError, InvalidError, OutcomeUnknownError, UnavailableError
from headrace.storage.objects import azure, google, http_requests
from headrace.storage.objects.azure import AzureStore
from headrace.storage.objects.azure_client import AzureClient
from headrace.storage.objects.google_client import GoogleClient
from headrace.storage.objects.http_requests import Answer, HttpRequests, SharedToken, StoreRequest
from tests.patch import Patch
from tests.scripted_http import ScriptedServer, reset_after_body
from tests.storage.objects import test_cloud_faults as faults
from tests.storage.objects import test_cloud_identity as identities
from tests.storage.objects.clouds import CLOUDS, Cloud

pytestmark = pytest.mark.requirement("X15")


def no_checksum_is_sent(patch: Patch) -> None:
    def without(send: Any) -> Any:
        async def wrong(self: AzureClient, operation: str, key: str, **given: Any) -> Answer:
            given["headers"] = {n: v for n, v in (given.get("headers") or {}).items() if n != "x-ms-content-crc64"}
            return await send(self, operation, key, **given)

        return wrong

    patch.wrap(AzureClient, "send", without)
    patch.replace(AzureStore, "_check_length", _nothing)


def the_answers_checksum_is_not_compared(patch: Patch) -> None:
    def unread(send: Any) -> Any:
        async def wrong(self: AzureClient, operation: str, key: str, **given: Any) -> Answer:
            answer = await send(self, operation, key, **given)
            return answer._replace(headers={"ETag": answer.headers.get("ETag", "")})

        return wrong

    def as_sent(send: Any) -> Any:
        async def wrong(self: GoogleClient, operation: str, key: str, place: str, **given: Any) -> Answer:
            answer = await send(self, operation, key, place, **given)
            head, view, _ = given["body"]._value
            said = json.loads(bytes(head).split(b"\r\n\r\n")[1].split(b"\r\n--")[0])
            told = json.loads(answer.body) | {"crc32c": said["crc32c"], "size": str(view.nbytes)}
            return answer._replace(body=json.dumps(told).encode())

        return wrong

    patch.wrap(AzureClient, "send", unread)
    patch.replace(AzureStore, "_check_length", _nothing)
    patch.wrap(GoogleClient, "send", as_sent)


def a_put_is_repeated_in_silence(patch: Patch) -> None:
    """A conditional one finds its own object."""

    def twice(send: Any) -> Any:
        async def wrong(self: HttpRequests, request: StoreRequest) -> Answer:
            try:
                return await send(self, request)
            except (OutcomeUnknownError, UnavailableError):
                if request.body is not None:
                    request.body._consumed = False
                return await send(self, request)

        return wrong

    patch.wrap(HttpRequests, "send", twice)


def doubt_is_reported_as_certain_failure(patch: Patch) -> None:
    patch.wrap(http_requests, "_failed", lambda failed: lambda error, what, _, name: failed(error, what, False, name))


def a_failure_inside_is_reported_as_certain_failure(patch: Patch) -> None:
    def certain(refusal: Any) -> Any:
        return lambda kind, text, answer, *, changes: refusal(kind, text, answer, changes=False)

    for module in ("azure_client", "google_client"):
        patch.wrap(__import__(f"headrace.storage.objects.{module}", fromlist=["refusal"]), "refusal", certain)


def a_short_range_is_accepted(patch: Patch) -> None:
    for module in (azure, google):
        patch.replace(module, "check_part", lambda *_: None)


def a_refused_token_stays(patch: Patch) -> None:
    patch.replace(SharedToken, "refused", lambda self, used: False)


async def _nothing(*_: object) -> None:
    pass


async def a_lost_answer(cloud: Cloud) -> None:
    await faults.test_a_lost_connection_leaves_writes_in_doubt(cloud, reset_after_body)


async def a_failure_inside(cloud: Cloud) -> None:
    await faults.test_a_failure_inside_the_store_or_of_a_proxy_leaves_writes_in_doubt(cloud, 500)


Found = tuple[Callable[[Patch], None], Callable[[Cloud], Awaitable[None]]]
BUGS: dict[str, Found] = {
    "no checksum is sent": (no_checksum_is_sent, faults.test_a_put_announces_exactly_what_it_sends),
    "no checksum is compared": (
        the_answers_checksum_is_not_compared,
        faults.test_a_body_that_was_altered_on_the_way_is_never_acknowledged,
    ),
    "exists": (a_put_is_repeated_in_silence, faults.test_nothing_below_repeats_a_put_in_silence),
    "exists, with retries": (
        a_put_is_repeated_in_silence,
        faults.test_a_conditional_put_that_meets_its_own_twin_is_in_doubt,
    ),
    "no doubt": (doubt_is_reported_as_certain_failure, a_lost_answer),
    "no doubt inside": (a_failure_inside_is_reported_as_certain_failure, a_failure_inside),
    "short range": (a_short_range_is_accepted, faults.test_bodies_that_end_early_or_are_another_part_are_corrupt),
}


CASES = [(bug, cloud) for bug in BUGS for cloud in CLOUDS if (bug, cloud) != ("no checksum is sent", "google")]
"""An upload to Google without a checksum is another request."""


@pytest.mark.parametrize(("bug", "name"), CASES)
async def test_a_planted_bug_is_found(bug: str, name: str, patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=x")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    plant, finds = BUGS[bug]
    plant(patch)
    with pytest.raises((AssertionError, AlreadyExistsError, KeyError, pytest.fail.Exception)):
        await finds(CLOUDS[name])


@pytest.fixture
async def issuer() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer([identities.Identity()] * 30) as server:
        yield server


@pytest.mark.parametrize("name", list(CLOUDS))
async def test_a_token_that_is_not_replaced_is_found(
    name: str, issuer: ScriptedServer, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in identities.VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    a_refused_token_stays(patch)
    with pytest.raises(InvalidError, match="status=401"):
        await identities.test_a_token_that_was_good_and_is_refused_is_replaced(name, issuer, monkeypatch)
    under_way = [task for task in asyncio.all_tasks() if "_renew" in repr(task.get_coro())]
    await asyncio.gather(*under_way)  # else a thread asks an identity that is gone, again and again
