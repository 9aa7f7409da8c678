"""What the PUTs of a process come to: one that fails is none, a row of them is, one success ends it."""

from __future__ import annotations

import pytest

from headrace.storage.errors import HeadraceError, InvalidError, UnavailableError
from headrace.storage.objects.measured import (
    FAILING_SECONDS,
    FAILURES_MIN,
    PROBE_KEY,
    PROBE_SECONDS,
    PutOutcomes,
)
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ObjectInfo
from tests.manual_clock import ManualClock


class Refusing(MemoryStore):
    """Fault model: `error` for every PUT."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.error: HeadraceError | None = None
        self.keys: list[str] = []

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        self.keys.append(key)
        if self.error is not None:
            raise self.error
        return await super().put(key, body, if_absent=if_absent)


@pytest.fixture
def inner(fake_clock: ManualClock) -> Refusing:
    return Refusing(fake_clock)


@pytest.fixture
def store(inner: Refusing, fake_clock: ManualClock) -> PutOutcomes:
    return PutOutcomes(inner, fake_clock)


async def _failing(store: PutOutcomes, inner: Refusing, times: int) -> None:
    inner.error = InvalidError("access denied")
    for _ in range(times):
        with pytest.raises(InvalidError):
            await store.put("k", b"x")


async def test_a_row_of_failures_that_lasts_counts(
    store: PutOutcomes, inner: Refusing, fake_clock: ManualClock
) -> None:
    await _failing(store, inner, FAILURES_MIN)
    assert store.failure() is None, "a moment is no outage"
    fake_clock.jump(FAILING_SECONDS)
    assert store.failure() == "PUTs fail: access denied"
    with pytest.raises(UnavailableError):
        await store.probe()
    inner.error = None
    await store.put("k", b"x")
    assert store.failure() is None
    await store.probe()


async def test_one_failure_is_none(store: PutOutcomes, inner: Refusing, fake_clock: ManualClock) -> None:
    await _failing(store, inner, 1)
    fake_clock.jump(FAILING_SECONDS / 2)
    assert store.failure() is None
    await store.probe()
    assert inner.keys == ["k"]


async def test_an_object_that_exists_was_answered(store: PutOutcomes, inner: Refusing) -> None:
    await store.put("k", b"x", if_absent=True)
    await _failing(store, inner, FAILURES_MIN)
    inner.error = None
    with pytest.raises(HeadraceError):
        await store.put("k", b"x", if_absent=True)
    assert store.failure() is None


async def test_the_probe_finds_it_without_traffic_and_is_bounded(
    store: PutOutcomes, inner: Refusing, fake_clock: ManualClock
) -> None:
    inner.error = InvalidError("access denied")
    await store.probe()
    assert inner.keys == []
    fake_clock.jump(PROBE_SECONDS)
    for _ in range(10):
        with pytest.raises(UnavailableError, match="PUTs fail: access denied"):
            await store.probe()
        fake_clock.jump(FAILING_SECONDS / 5)
    assert inner.keys == [PROBE_KEY] * 2
    inner.error = None
    fake_clock.jump(FAILING_SECONDS)
    await store.probe()
    assert store.failure() is None


async def test_a_process_that_puts_itself_is_not_probed(
    store: PutOutcomes, inner: Refusing, fake_clock: ManualClock
) -> None:
    for _ in range(10):
        fake_clock.jump(PROBE_SECONDS / 2)
        await store.put("k", b"x")
        await store.probe()
    assert PROBE_KEY not in inner.keys
