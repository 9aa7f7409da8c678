"""S3Store against a server that fails on purpose: what each failure means, and what is sent again.

The rule under test: UnavailableError and ThrottledError promise that nothing happened; whenever a
put or delete may have reached the store and its fate is unknown, the error says so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

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
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.store import ObjectInfo
from tests.fixtures_s3 import aws_credentials, s3_at, s3_on
from tests.manual_clock import ManualClock
from tests.scripted_http import (
    Exchange,
    ScriptedServer,
    Step,
    close_after_body,
    never_answer,
    refusing,
    reset_after_body,
    reset_amid_body,
    reset_before_body,
)

__all__ = ["aws_credentials"]

pytestmark = pytest.mark.usefixtures("aws_credentials")

BODY = random.Random(7).randbytes(2_000_000)
Call = Callable[[S3Store], Awaitable[object]]


async def put(store: S3Store) -> object:
    return await store.put("k", BODY)


async def get(store: S3Store) -> object:
    return await store.get("k")


async def head(store: S3Store) -> object:
    return await store.head("k")


async def delete(store: S3Store) -> object:
    return await store.delete_many(["k"])


async def list_all(store: S3Store) -> object:
    return [info async for info in store.list_objects()]


READS: list[Call] = [get, head, list_all]
WRITES: list[Call] = [put, delete]


async def failure_of(call: Call, step: Step, timeout_s: float = 10.0) -> HeadraceError:
    """The error that `call` raises when its requests meet `step`.

    A write is one request. A GET or HEAD may be more: aiohttp repeats it once when its connection broke
    before the answer, and botocore asks for the bucket's region after an answer that it has the wrong one. A store
    without DeleteObjects (501) is asked to delete one object.
    """
    async with ScriptedServer([step] * 3) as server, s3_on(server, request_timeout_s=timeout_s) as store:
        with pytest.raises(HeadraceError) as caught:
            await call(store)
        assert len(server.exchanges) == 1 or call in READS or "status=501" in str(caught.value)
    return caught.value


@pytest.mark.parametrize("call", READS + WRITES)
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", ThrottledError),
        (429, "TooManyRequests", ThrottledError),
        (503, "ServiceUnavailable", UnavailableError),
        (400, "RequestTimeout", UnavailableError),
        (403, "AccessDenied", InvalidError),
        (400, "InvalidRequest", InvalidError),
        (501, "NotImplemented", InvalidError),
    ],
)
async def test_refusals_mean_the_same_to_every_operation(
    call: Call, status: int, code: str, kind: type[HeadraceError]
) -> None:
    if call is head:  # its answer has no body, so no code: only the status tells
        kind = {503: ThrottledError, 400: InvalidError}.get(status, kind)
    error = await failure_of(call, refusing(status, code))
    assert type(error) is kind
    assert "bucket=bucket" in str(error)


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_a_failure_inside_the_store_leaves_writes_in_doubt(status: int) -> None:
    for call in READS:
        assert type(await failure_of(call, refusing(status, "InternalError"))) is UnavailableError
    for call in WRITES:
        assert type(await failure_of(call, refusing(status, "InternalError"))) is OutcomeUnknownError


@pytest.mark.parametrize("step", [reset_before_body, reset_after_body, close_after_body])
async def test_a_lost_connection_leaves_writes_in_doubt(step: Step) -> None:
    for call in READS:
        assert type(await failure_of(call, step)) is UnavailableError
    for call in WRITES:
        assert type(await failure_of(call, step)) is OutcomeUnknownError


async def test_a_put_cut_amid_its_body_is_in_doubt() -> None:
    assert type(await failure_of(put, reset_amid_body)) is OutcomeUnknownError


async def test_silence_ends_at_the_time_limit() -> None:
    """Long enough for the put to be under way on a busy machine: before that, nothing would be in doubt."""
    read, written = await asyncio.gather(*(failure_of(call, never_answer, timeout_s=4.0) for call in (get, put)))
    assert type(read) is UnavailableError
    assert type(written) is OutcomeUnknownError


@pytest.mark.parametrize("call", READS + WRITES)
async def test_a_refused_connection_means_nothing_happened(call: Call) -> None:
    async with ScriptedServer() as server:
        url = server.url
    store = s3_at(url)
    with pytest.raises(UnavailableError):
        await call(store)
    await store.close()


async def test_a_body_that_ends_early_is_corrupt() -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.answer(200, BODY, send=900_000)
        exchange.close()

    assert type(await failure_of(get, cut)) is CorruptError


@pytest.mark.parametrize(
    ("status", "code", "kind", "check"),
    [
        (404, "NoSuchKey", NotFoundError, ""),
        (404, "NoSuchBucket", InvalidError, "the bucket's name"),
        (403, "SignatureDoesNotMatch", InvalidError, "secret key"),
        (403, "RequestTimeTooSkewed", InvalidError, "clock"),
        (301, "PermanentRedirect", InvalidError, "s3.region"),
        (416, "InvalidRange", CorruptError, ""),
    ],
)
async def test_a_refused_get_says_what_to_check(status: int, code: str, kind: type[HeadraceError], check: str) -> None:
    error = await failure_of(get, refusing(status, code))
    assert type(error) is kind
    assert check in str(error)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (412, "PreconditionFailed", AlreadyExistsError),
        (409, "ConditionalRequestConflict", UnavailableError),
        (400, "BadDigest", CorruptError),
        (400, "IncompleteBody", CorruptError),
    ],
)
async def test_a_refused_put(status: int, code: str, kind: type[HeadraceError]) -> None:
    assert type(await failure_of(put, refusing(status, code))) is kind


async def test_every_retry_sends_the_same_bytes() -> None:
    """A peer lost data by sending the rest of a consumed stream again."""
    steps: list[Step] = [
        reset_amid_body,
        refusing(503, "SlowDown"),
        reset_after_body,
        reset_before_body,
        refusing(500, "InternalError"),
    ]
    clock = ManualClock()
    for if_absent in (False, True):
        async with ScriptedServer(list(steps)) as server:
            plain = s3_at(server.url)
            store = RetryingStore(plain, retries=5, clock=clock, rng=random.Random(1))
            info = await clock.run(store.put("k", memoryview(BODY), if_absent=if_absent))
            await store.close()
        assert isinstance(info, ObjectInfo)
        sent = server.bodies()
        assert [len(body) for body in sent] == [700_000, *[len(BODY)] * 2, 0, *[len(BODY)] * 2]
        assert all(body == BODY[: len(body)] for body in sent)
        assert all(exchange.headers["content-length"] == str(len(BODY)) for exchange in server.exchanges)


async def test_nothing_below_repeats_a_put_in_silence() -> None:
    """aiohttp repeats a request after its reused connection broke. A conditional put would find its own duplicate."""
    async with (
        ScriptedServer([Exchange.accept, close_after_body, refusing(412, "PreconditionFailed")]) as server,
        s3_on(server) as store,
    ):
        await store.put("first", b"opens the connection that is used again")
        with pytest.raises(OutcomeUnknownError):
            await store.put("k", BODY, if_absent=True)
        assert len(server.exchanges) == 2


async def test_a_conditional_put_that_meets_its_own_twin_is_in_doubt() -> None:
    clock = ManualClock()
    async with ScriptedServer([reset_after_body, refusing(412, "PreconditionFailed")]) as server:
        store = RetryingStore(s3_at(server.url), retries=5, clock=clock, rng=random.Random(1))
        with pytest.raises(OutcomeUnknownError, match="perhaps from an earlier attempt"):
            await clock.run(store.put("k", BODY, if_absent=True))
        await store.close()


async def test_an_early_refusal_is_heard_while_the_body_is_still_going_out() -> None:
    async def refuse_at_once(exchange: Exchange) -> None:
        await exchange.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        await exchange.read_body()

    assert type(await failure_of(put, refuse_at_once)) is ThrottledError
