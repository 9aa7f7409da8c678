"""AzureStore and GoogleStore against servers that fail on purpose: what each failure means, and what is sent again.

The rule under test is that of test_s3_faults.py: UnavailableError and ThrottledError promise that nothing happened;
whenever a put or delete may have reached the store and its fate is unknown, the error says so.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from yarl import URL

from headrace.storage.clock import SystemClock
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects.http_requests import proxy_of
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.store import ByteRange, ObjectInfo
from tests.manual_clock import ManualClock
from tests.scripted_http import (
    Exchange,
    ScriptedServer,
    Step,
    close_after_body,
    never_answer,
    reset_after_body,
    reset_amid_body,
    reset_before_body,
)
from tests.storage.objects.clouds import CLOUDS, Cloud, CloudStore, azure_refuses, google_refuses, sent_object

pytestmark = pytest.mark.requirement("X15")

BODY = random.Random(7).randbytes(2_000_000)
Call = Callable[[CloudStore], Awaitable[object]]


@pytest.fixture(autouse=True)
def without_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed signature, and an emulator: no library is asked."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=x")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")


@pytest.fixture(params=list(CLOUDS.values()), ids=list(CLOUDS))
def cloud(request: pytest.FixtureRequest) -> Cloud:
    found: Cloud = request.param
    return found


async def put(store: CloudStore) -> object:
    return await store.put("k", BODY)


async def get(store: CloudStore) -> object:
    return await store.get("k")


async def head(store: CloudStore) -> object:
    return await store.head("k")


async def delete(store: CloudStore) -> object:
    return await store.delete_many(["k"])


async def list_all(store: CloudStore) -> object:
    return [info async for info in store.list_objects()]


READS: list[Call] = [get, head, list_all]
WRITES: list[Call] = [put, delete]


async def failure_of(cloud: Cloud, call: Call, step: Step, timeout_s: float = 10.0) -> HeadraceError:
    """The error that `call` raises when its requests meet `step`. A put is one request; aiohttp repeats others once, if
    their connection broke before the answer.
    """
    async with ScriptedServer([step] * 3) as server, cloud.on(server, timeout_s=timeout_s) as store:
        with pytest.raises(HeadraceError) as caught:
            await call(store)
        assert len(server.exchanges) == 1 or call in (*READS, delete)
    return caught.value


@pytest.mark.parametrize("call", READS + WRITES)
async def test_what_names_itself_a_refusal_changed_nothing(cloud: Cloud, call: Call) -> None:
    busy = azure_refuses(503, "ServerBusy") if cloud.name == "azure" else google_refuses(429, "rateLimitExceeded")
    for step, kind in (
        (busy, ThrottledError),
        (cloud.refuses(429, ""), ThrottledError),
        (cloud.refuses(408, ""), UnavailableError),
    ):
        assert type(await failure_of(cloud, call, step)) is kind
    if call is not delete:  # what is refused is left out of its answer
        for status, code in ((403, "AuthorizationPermissionMismatch"), (400, "InvalidInput"), (501, "NotImplemented")):
            error = await failure_of(cloud, call, cloud.refuses(status, code))
            assert type(error) is InvalidError
            assert "bucket" in str(error)
            assert "check=" in str(error)


async def test_a_refusal_says_how_long_to_wait(cloud: Cloud) -> None:
    refuses = azure_refuses if cloud.name == "azure" else google_refuses
    clock = ManualClock()
    async with (
        ScriptedServer([refuses(429, "x", {"Retry-After": "7"}), cloud.accepts]) as server,
        cloud.on(server) as store,
    ):
        waited = RetryingStore(store, retries=1, clock=clock, rng=random.Random(1))
        before = clock.monotonic()
        await clock.run(waited.put("k", b"x"))
        assert 7 <= clock.monotonic() - before < 8


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_failure_inside_the_store_or_of_a_proxy_leaves_writes_in_doubt(cloud: Cloud, status: int) -> None:
    for call in READS:
        error = await failure_of(cloud, call, cloud.refuses(status, ""))
        assert isinstance(error, UnavailableError | ThrottledError)
    for call in WRITES:
        assert type(await failure_of(cloud, call, cloud.refuses(status, ""))) is OutcomeUnknownError


@pytest.mark.parametrize("step", [reset_before_body, reset_after_body, close_after_body])
async def test_a_lost_connection_leaves_writes_in_doubt(cloud: Cloud, step: Step) -> None:
    for call in READS:
        assert type(await failure_of(cloud, call, step)) is UnavailableError
    for call in WRITES:
        assert type(await failure_of(cloud, call, step)) is OutcomeUnknownError


async def test_a_put_cut_amid_its_body_is_in_doubt(cloud: Cloud) -> None:
    assert type(await failure_of(cloud, put, reset_amid_body)) is OutcomeUnknownError


async def test_silence_ends_at_the_time_limit(cloud: Cloud) -> None:
    """Long enough for the put to be under way on a busy machine: before that, nothing would be in doubt."""
    ask = partial(failure_of, cloud, step=never_answer, timeout_s=4.0)
    read, written = await asyncio.gather(ask(get), ask(put))
    assert type(read) is UnavailableError
    assert type(written) is OutcomeUnknownError


@pytest.mark.parametrize("call", READS + WRITES)
async def test_a_refused_connection_means_nothing_happened(cloud: Cloud, call: Call) -> None:
    async with ScriptedServer() as server:
        pass
    async with cloud.on(server) as store:
        with pytest.raises(UnavailableError):
            await call(store)


async def test_bodies_that_end_early_or_are_another_part_are_corrupt(cloud: Cloud) -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.answer(200, BODY, send=900_000)
        exchange.close()

    async def other_part(exchange: Exchange) -> None:
        await exchange.answer(206, BODY[:500], headers={"Content-Range": f"bytes 0-499/{len(BODY)}"})

    async def all_of_it(exchange: Exchange) -> None:
        await exchange.answer(200, BODY)

    async def get_part(store: CloudStore) -> object:
        return await store.get("k", ByteRange(0, 1000))

    assert type(await failure_of(cloud, get, cut)) is CorruptError
    for step in (other_part, all_of_it):
        async with ScriptedServer([step]) as server, cloud.on(server) as store:
            with pytest.raises(CorruptError, match="incomplete range"):
                await get_part(store)


async def test_a_put_announces_exactly_what_it_sends(cloud: Cloud) -> None:
    """The checksums are those that the definitions of CRC-64/NVME and CRC-32C name as their check."""
    async with ScriptedServer([cloud.accepts]) as server, cloud.on(server) as store:
        await store.put("k", memoryview(b"##123456789")[2:], if_absent=True)
    (request,) = server.exchanges
    assert sent_object(request) == b"123456789"
    assert request.headers["content-length"] == str(len(request.body))
    assert cloud.condition in f"{request.target} {json.dumps(request.headers)}"
    if cloud.name == "azure":
        checksum = base64.b64decode(request.headers["x-ms-content-crc64"])
        assert int.from_bytes(checksum, "little") == 0xAE8B14860A799888
        assert (request.method, request.headers["x-ms-blob-type"]) == ("PUT", "BlockBlob")
    else:
        told = json.loads(request.body.split(b"\r\n\r\n", 2)[1].split(b"\r\n--")[0])
        assert base64.b64decode(told["crc32c"]) == (0xE3069283).to_bytes(4, "big")
        assert request.method == "POST"
    assert request.headers.keys().isdisjoint({"expect", "transfer-encoding", "content-encoding"})


async def test_a_body_that_was_altered_on_the_way_is_never_acknowledged(cloud: Cloud) -> None:
    """By the refusal of the checksum that was sent, or by the one that the answer names."""

    async def another_checksum(exchange: Exchange) -> None:
        await exchange.read_body()
        exchange.body = exchange.body[:-1000] + b"\x00" + exchange.body[-999:]
        exchange.headers["x-ms-content-crc64"] = "AAAAAAAAAAA="
        await cloud.accepts(exchange)

    assert type(await failure_of(cloud, put, cloud.refuses(*cloud.checksum))) is CorruptError
    assert type(await failure_of(cloud, put, another_checksum)) is CorruptError


async def test_what_is_missing_is_the_object_or_the_bucket(cloud: Cloud) -> None:
    gone = cloud.refuses(404, "BlobNotFound" if cloud.name == "azure" else "notFound:No such object: bucket/pre/k")
    for call in (get, head):
        assert type(await failure_of(cloud, call, gone)) is NotFoundError
    for call in (put, get, list_all):
        error = await failure_of(cloud, call, cloud.refuses(*cloud.no_bucket))
        assert type(error) is InvalidError
        assert "name" in str(error)
    async with ScriptedServer([gone]) as server, cloud.on(server) as store:
        assert await store.delete_many(["k"]) == ["k"]


async def test_a_conditional_put_that_meets_its_own_twin_is_in_doubt(cloud: Cloud) -> None:
    clock = ManualClock()
    async with ScriptedServer([reset_after_body, cloud.refuses(*cloud.exists)]) as server, cloud.on(server) as store:
        waited = RetryingStore(store, retries=5, clock=clock, rng=random.Random(1))
        with pytest.raises(OutcomeUnknownError, match="perhaps from an earlier attempt"):
            await clock.run(waited.put("k", BODY, if_absent=True))
        assert all(cloud.condition in f"{each.target} {json.dumps(each.headers)}" for each in server.exchanges)
    assert type(await failure_of(cloud, partial(put_if_absent), cloud.refuses(*cloud.exists))) is AlreadyExistsError


async def put_if_absent(store: CloudStore) -> object:
    return await store.put("k", BODY, if_absent=True)


async def test_nothing_below_repeats_a_put_in_silence(cloud: Cloud) -> None:
    """aiohttp repeats a request after its reused connection broke. A conditional put would find its own duplicate."""
    async with ScriptedServer([cloud.accepts, close_after_body, cloud.refuses(*cloud.exists)]) as server:
        async with cloud.on(server) as store:
            await store.put("first", b"opens the connection that is used again")
            with pytest.raises(OutcomeUnknownError):
                await store.put("k", BODY, if_absent=True)
        assert len(server.exchanges) == 2


async def test_every_retry_sends_the_same_bytes(cloud: Cloud) -> None:
    steps: list[Step] = [
        reset_amid_body,
        cloud.refuses(429, ""),
        reset_after_body,
        cloud.refuses(500, ""),
        cloud.accepts,
    ]
    clock = ManualClock()
    async with ScriptedServer(list(steps)) as server, cloud.on(server) as store:
        waited = RetryingStore(store, retries=5, clock=clock, rng=random.Random(1))
        info = await clock.run(waited.put("k", memoryview(BODY)))
    assert isinstance(info, ObjectInfo)
    assert [sent_object(each) == BODY for each in server.exchanges] == [False, *[True] * 4]
    assert len({each.headers["content-length"] for each in server.exchanges}) == 1


async def test_an_early_refusal_is_heard_while_the_body_is_still_going_out(cloud: Cloud) -> None:
    async def refuse_at_once(exchange: Exchange) -> None:
        await exchange.answer(429, b"{}")
        await exchange.read_body()

    assert type(await failure_of(cloud, put, refuse_at_once)) is ThrottledError


async def test_some_of_many_deletions_fail(cloud: Cloud) -> None:
    """What is refused is left out; an unknown outcome is raised, once all the others were sent."""

    def by_name(unknown: bool) -> Step:
        async def step(exchange: Exchange) -> None:
            if "protected" in exchange.target:
                await cloud.refuses(403, "AuthorizationPermissionMismatch")(exchange)
            elif "gone" in exchange.target:
                await cloud.refuses(404, "BlobNotFound")(exchange)
            elif unknown and "b" in exchange.target.rpartition("pre")[2]:
                exchange.reset()
            else:
                await exchange.answer(202 if cloud.name == "azure" else 204)

        return step

    keys = ["a", "protected", "b", "gone", "a"]
    async with ScriptedServer([by_name(False)] * 6) as server, cloud.on(server) as store:
        store._client._bucket_exists = True  # type: ignore[union-attr]
        assert await store.delete_many(keys) == ["a", "b", "gone"]
    async with ScriptedServer([by_name(True)] * 6) as server, cloud.on(server) as store:
        store._client._bucket_exists = True  # type: ignore[union-attr]
        with pytest.raises(OutcomeUnknownError):
            await store.delete_many(keys)
        assert len({each.target for each in server.exchanges}) == 4


async def test_listings_that_are_none_are_corrupt(cloud: Cloud) -> None:
    for text in (b"", b"<a", b"[]", b'{"items": [{"name": "k"}]}', b"<List><Blobs><Blob><Name/></Blob></Blobs></List>"):

        async def answer(exchange: Exchange, text: bytes = text) -> None:
            await exchange.answer(200, text)

        if (cloud.name == "azure" and text.startswith(b"{")) or (cloud.name == "google" and text.startswith(b"<L")):
            continue
        assert type(await failure_of(cloud, list_all, answer)) is CorruptError


async def test_a_proxy_of_the_environment_is_used(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with ScriptedServer([cloud.accepts] * 2) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        store = cloud.open("http://store.headrace.invalid", SystemClock(), 10.0)
        await store.put("k", b"x")
        await store.close()
        assert "store.headrace.invalid" in proxy.exchanges[0].target
        monkeypatch.setenv("no_proxy", "headrace.invalid")
        assert proxy_of(URL("http://store.headrace.invalid/x")) is None
