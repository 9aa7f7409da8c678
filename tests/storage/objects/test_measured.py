"""MeasuredStore: each call counted once, under its outcome."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import REGISTRY

from headrace.storage import errors
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.measured import MeasuredStore
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectInfo, StoreDecorator
from tests.manual_clock import ManualClock


class StallingStore(StoreDecorator):
    """Fault model: a put takes half a second and then fails with `error`, or succeeds when there is none."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryStore(clock))
        self.clock = clock
        self.error: BaseException | None = None

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        await self.clock.sleep(0.5)
        if self.error:
            raise self.error
        return await super().put(key, body, if_absent=if_absent)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"headrace_store_{name}", labels) or 0.0


async def test_requests_bytes_and_seconds_by_operation_and_result() -> None:
    clock = ManualClock()
    store = MeasuredStore(StallingStore(clock), clock)
    operations = ("put", "get", "head", "list", "delete")
    before = {name: value("requests_total", operation=name, result="ok") for name in operations}
    put_bytes, got_bytes = value("bytes_total", operation="put"), value("bytes_total", operation="get")
    seconds = value("request_seconds_sum", operation="put", result="ok")

    await clock.run(store.put("k", bytes(100)))
    await store.get("k")
    await store.get_many("k", [ByteRange(0, 3), ByteRange(50, 4)])
    await store.head("k")
    assert [info.key async for info in store.list_objects()] == ["k"]
    await store.delete_many(["k"])

    after = {name: value("requests_total", operation=name, result="ok") - before[name] for name in operations}
    assert after == {"put": 1, "get": 3, "head": 1, "list": 1, "delete": 1}
    assert value("bytes_total", operation="put") - put_bytes == 100
    assert value("bytes_total", operation="get") - got_bytes == 107
    assert value("request_seconds_sum", operation="put", result="ok") - seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (errors.ThrottledError("x"), "throttled"),
        (errors.UnavailableError("x"), "unavailable"),
        (errors.OutcomeUnknownError("x"), "outcome_unknown"),
        (errors.CorruptError("x"), "corrupt"),
        (errors.NotFoundError("x"), "not_found"),
        (errors.AlreadyExistsError("x"), "already_exists"),
        (errors.InvalidError("x"), "invalid"),
        (ZeroDivisionError("a bug"), "failed"),
    ],
)
async def test_each_failure_has_its_name(error: Exception, result: str) -> None:
    clock = ManualClock()
    inner = StallingStore(clock)
    inner.error = error
    before, sent = value("requests_total", operation="put", result=result), value("bytes_total", operation="put")
    with pytest.raises(type(error)):
        await clock.run(MeasuredStore(inner, clock).put("k", bytes(10)))
    assert value("requests_total", operation="put", result=result) - before == 1
    assert value("bytes_total", operation="put") == sent


async def test_a_cancelled_request_is_counted() -> None:
    clock = ManualClock()
    before = value("requests_total", operation="put", result="cancelled")
    put = asyncio.ensure_future(MeasuredStore(StallingStore(clock), clock).put("k", b""))
    await clock.settle()
    put.cancel()
    await asyncio.gather(put, return_exceptions=True)
    assert value("requests_total", operation="put", result="cancelled") - before == 1


def test_every_error_of_a_store_has_a_separate_result() -> None:
    from headrace.storage.objects.measured import _RESULTS

    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadraceError)}
    of_the_metastore = {
        errors.FencedError,
        errors.WrongClusterError,
        errors.UnsupportedFeatureError,
        errors.TruncatedError,
        errors.IllegalTransitionError,
    }
    of_the_protocol = {errors.TooManyElementsError}  # raised while a client's request is decoded, never by a store
    of_checks = {errors.BadTransferError, errors.DamagedError}  # what a store returned is judged above it
    never_from_a_store = of_the_metastore | of_the_protocol | of_checks
    without = kinds - set(_RESULTS) - never_from_a_store - {HeadraceError, errors.RetryableError}
    assert not without
    assert len(set(_RESULTS.values())) == len(_RESULTS)
