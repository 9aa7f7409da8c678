"""RetryingStore: what is tried again, how long it waits, and what it says in the end."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects import retrying
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.store import ByteRange, ObjectInfo, StoreDecorator
from tests.manual_clock import ManualClock

AGAIN: list[type[HeadraceError]] = [UnavailableError, ThrottledError, OutcomeUnknownError, CorruptError]
FOR_GOOD: list[type[HeadraceError]] = [InvalidError, NotFoundError, AlreadyExistsError, FencedError]


class FailingStore(StoreDecorator):
    """Fault model: the next calls fail, one error each, before (`landed` False) or after they took effect."""

    def __init__(self, errors: Sequence[HeadraceError], *, landed: bool = False) -> None:
        super().__init__(MemoryStore(ManualClock()))
        self.errors = list(errors)
        self.landed = landed
        self.put_bodies: list[bytes] = []
        self.calls = 0

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        self.put_bodies.append(bytes(body))
        if self.errors and self.landed:
            await super().put(key, body, if_absent=if_absent)
        self._fail()
        return await super().put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self._fail()
        return await super().get(key, byte_range)

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        self._fail()
        return await super().delete_many(keys)

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list_objects(prefix, start_after=start_after):
            yield info
            self._fail()

    def _fail(self) -> None:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


def retried(inner: FailingStore, clock: ManualClock, retries: int = 4) -> RetryingStore:
    return RetryingStore(inner, retries, clock, random.Random(5))


@pytest.mark.parametrize("kind", AGAIN)
async def test_what_may_pass_is_tried_again_with_the_same_bytes(kind: type[HeadraceError]) -> None:
    clock, inner = ManualClock(), FailingStore([kind("x")] * 3)
    store = retried(inner, clock)
    await clock.run(store.put("k", memoryview(b"body")))
    assert inner.put_bodies == [b"body"] * 4
    inner.errors = [kind("x")] * 3
    assert await clock.run(store.get("k")) == b"body"
    inner.errors = [kind("x")] * 3
    assert await clock.run(store.delete_many(["k"])) == ["k"]


@pytest.mark.parametrize("kind", FOR_GOOD)
async def test_a_final_refusal_is_raised_at_once(kind: type[HeadraceError]) -> None:
    inner = FailingStore([kind("x"), kind("y")])
    with pytest.raises(kind, match="x"):
        await retried(inner, ManualClock()).put("k", b"body")  # the clock has not moved: no pause was requested
    assert len(inner.put_bodies) == 1


async def test_attempts_are_bounded() -> None:
    clock, inner = ManualClock(), FailingStore([UnavailableError(str(number)) for number in range(9)])
    with pytest.raises(UnavailableError, match="2"):
        await clock.run(retried(inner, clock, retries=2).put("k", b""))
    assert len(inner.put_bodies) == 3


@pytest.mark.parametrize("first", [OutcomeUnknownError, CorruptError])
async def test_a_put_once_in_doubt_never_ends_as_nothing_happened(first: type[HeadraceError]) -> None:
    clock, inner = ManualClock(), FailingStore([first("lost"), *[UnavailableError("down")] * 9])
    with pytest.raises(first, match="lost") as caught:
        await clock.run(retried(inner, clock).put("k", b""))
    assert isinstance(caught.value.__cause__, RetryableError)


@pytest.mark.parametrize("first", [OutcomeUnknownError, CorruptError])
async def test_a_conditional_put_that_finds_the_key_taken_after_doubt_stays_in_doubt(
    first: type[HeadraceError],
) -> None:
    clock, inner = ManualClock(), FailingStore([first("lost, or kept short")], landed=True)
    with pytest.raises(OutcomeUnknownError, match="perhaps from an earlier attempt"):
        await clock.run(retried(inner, clock).put("k", b"mine", if_absent=True))
    assert await inner.get("k") == b"mine"


async def test_a_conditional_put_that_certainly_failed_before_may_say_taken() -> None:
    clock, inner = ManualClock(), FailingStore([])
    await inner.put("k", b"theirs")
    inner.errors = [UnavailableError("down")]
    with pytest.raises(AlreadyExistsError):
        await clock.run(retried(inner, clock).put("k", b"mine", if_absent=True))


async def test_a_listing_goes_on_where_it_broke() -> None:
    clock, inner = ManualClock(), FailingStore([])
    keys = [f"p/{number}" for number in range(6)]
    for key in keys:
        await inner.put(key, b"")
    inner.errors = [UnavailableError("x"), ThrottledError("x"), UnavailableError("x")]
    store = retried(inner, clock, retries=1)  # each key that comes through starts the count again

    async def listed() -> list[str]:
        return [info.key async for info in store.list_objects("p/")]

    assert await clock.run(listed()) == keys
    inner.errors = [NotFoundError("x")]
    with pytest.raises(NotFoundError):
        await clock.run(listed())


async def test_each_range_is_tried_again_by_itself() -> None:
    clock, inner = ManualClock(), FailingStore([])
    await inner.put("k", bytes(range(10)))
    inner.errors, inner.calls = [UnavailableError("x")], 0
    assert await clock.run(retried(inner, clock).get_many("k", [ByteRange(0, 2), ByteRange(5, 1)])) == [b"\0\1", b"\5"]
    assert inner.calls == 3


@given(st.sampled_from([ThrottledError, UnavailableError]), st.integers(0, 2**32), st.integers(1, 12))
def test_pauses_are_drawn_below_a_limit_that_doubles(kind: type[HeadraceError], seed: int, attempts: int) -> None:
    """Full jitter: uniform from 0; longer limits when the store asked for less traffic."""
    first, most = (
        (retrying.THROTTLED_BACKOFF_S, retrying.THROTTLED_BACKOFF_S_MAX)
        if kind is ThrottledError
        else (retrying.BACKOFF_S, retrying.BACKOFF_S_MAX)
    )
    rng = random.Random(seed)
    for attempt in range(1, attempts + 1):
        limit = min(most, first * 2 ** (attempt - 1))
        assert 0 <= retrying.pause_s(attempt, kind("x"), rng) <= limit


def test_pauses_fill_their_room() -> None:
    rng = random.Random(1)
    drawn = [retrying.pause_s(3, UnavailableError("x"), rng) for _ in range(500)]
    limit = retrying.BACKOFF_S * 4
    assert min(drawn) < limit * 0.1
    assert max(drawn) > limit * 0.9
    assert retrying.THROTTLED_BACKOFF_S > retrying.BACKOFF_S


async def test_an_outage_of_a_minute_writes_a_few_lines_and_counts_the_others(
    fake_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    inner = FailingStore([UnavailableError("down")] * 100_000)
    store = RetryingStore(inner, 5, fake_clock, random.Random(1))
    until = fake_clock.monotonic() + 59
    while fake_clock.monotonic() < until:
        with pytest.raises(UnavailableError):
            await fake_clock.run(store.get("k"))
    lines = [record.getMessage() for record in caplog.records]
    assert inner.calls > 100
    assert len(lines) == retrying.LINES
    inner.errors = [UnavailableError("down")]
    fake_clock.jump(60)
    with pytest.raises(NotFoundError):
        await fake_clock.run(store.get("k"))
    assert f"left_out={inner.calls}" not in caplog.messages[-1]
    assert int(caplog.messages[-1].partition("left_out=")[2].partition(" ")[0]) > 100
