"""What every object store promises, shown for each of them; dressed means under all decorators at once.

Implementations: memory, directory, S3, Azure and Google, each bare and dressed. Azure is Azurite, Google is
fake-gcs-server. S3 is a real server (versitygw or MinIO); and
versitygw over https in a region other than us-east-1, with the bucket in the host name (virtual-host style, the
default), in the path, and with dots in its name, which no wildcard certificate covers.
A machine without a real server has moto instead. It checks neither signatures nor the CRC32C of a body; it honours
If-None-Match, but looks and stores in two steps without a lock: a race of conditional puts proves nothing there and is
skipped by name. Keys, bodies and ranges are looped over inside a test where
they could be parameters, because each new S3 client costs 50-100 ms.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.storage.clock import SystemClock
from headrace.storage.errors import AlreadyExistsError, CorruptError, InvalidError, NotFoundError
from headrace.storage.objects.azure import AzureStore
from headrace.storage.objects.azure_client import AzureOptions
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.google import GoogleStore
from headrace.storage.objects.google_client import GoogleOptions
from headrace.storage.objects.hedging import HedgedStore, HedgePolicy
from headrace.storage.objects.measured import MeasuredStore
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.merging import MergingStore
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore
from headrace.storage.objects.throttled import ThrottledStore
from tests.fixtures_clouds import ACCOUNT, CONTAINER, GCS_BUCKET
from tests.fixtures_s3 import BUCKET, DOTTED_BUCKET, REGION, HttpsServer, find_real_server
from tests.manual_clock import ManualClock

STORES = [f"{dress}{kind}" for dress in ("", "dressed ") for kind in ("memory", "directory", "s3", "azure", "google")]
HTTPS_STORES = {
    "https virtual-host style": (BUCKET, False),
    "https path style": (BUCKET, True),
    "https bucket with dots": (DOTTED_BUCKET, False),
}
"""Bucket, and s3.path.style."""
KEYS = ["a", "b-c", "b/c", "b/d/e", "ba", "segments/0f/x", "segments/10/y", "z é/ü"]


class HastyClock:
    """Time that passes as soon as a task sleeps, so that retries and throttles cost a test nothing."""

    def __init__(self) -> None:
        self._now = 1000.0

    def monotonic(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return round(self._now * 1000)

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


def dressed(store: ObjectStore) -> ObjectStore:
    """Return the store under every decorator. The hedge's clock does not move:
    tests/storage/objects/test_hedging.py moves it.
    """
    hasty = HastyClock()
    store = HedgedStore(MeasuredStore(store, hasty), HedgePolicy(5, 8), ManualClock())
    store = RetryingStore(store, retries=2, clock=hasty, rng=random.Random(1))
    store = ThrottledStore(MergingStore(store), bytes_per_s=1e6, requests_per_s=10, clock=hasty)
    return store


CLOUDS = [kind for kind in STORES if kind.endswith(("azure", "google"))]


@pytest.fixture(
    params=[
        *(kind for kind in STORES if kind not in CLOUDS),
        *HTTPS_STORES,
        *(
            pytest.param(kind, marks=[pytest.mark.requirement("X15"), *([pytest.mark.slow] if " " in kind else [])])
            for kind in CLOUDS
        ),
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind. S3 stores use a separate prefix for each test."""
    kind = request.param.removeprefix("dressed ")
    plain: ObjectStore
    if kind == "memory":
        plain = MemoryStore(SystemClock())
    elif kind == "directory":
        plain = DirectoryStore(tmp_path / "root", SystemClock())
    elif kind in HTTPS_STORES:
        server: HttpsServer = request.getfixturevalue("https_s3")
        bucket, path_style = HTTPS_STORES[kind]
        options = S3Options(
            bucket=bucket, prefix=f"run/{uuid.uuid4()}", endpoint=server.url, region=REGION, path_style=path_style
        )
        plain = S3Store(options, SystemClock())
    elif kind == "azure":
        endpoint = request.getfixturevalue("azurite_url")
        plain = AzureStore(
            AzureOptions(account=ACCOUNT, container=CONTAINER, prefix=f"run/{uuid.uuid4()}", endpoint=endpoint),
            SystemClock(),
        )
    elif kind == "google":
        request.getfixturevalue("fake_gcs_url")
        plain = GoogleStore(GoogleOptions(bucket=GCS_BUCKET, prefix=f"run/{uuid.uuid4()}"), SystemClock())
    else:
        url = request.getfixturevalue(f"{kind}_url")
        options = S3Options(
            bucket=BUCKET, prefix=f"run/{uuid.uuid4()}", endpoint=url, region="us-east-1", path_style=True
        )
        plain = S3Store(options, SystemClock())
    store = dressed(plain) if request.param != kind else plain
    yield store
    await store.close()


async def listed(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [info.key async for info in store.list_objects(prefix, start_after=start_after)]


async def put_all(store: ObjectStore, keys: list[str]) -> list[ObjectInfo]:
    return [await store.put(key, key.encode()) for key in keys]


async def test_what_was_put_is_got(store: ObjectStore) -> None:
    for size in (0, 1, 3 * 1024 * 1024 + 7):
        body = random.Random(size).randbytes(size)
        info = await store.put(f"segments/00/{size}", body)
        assert (info.key, info.size) == (f"segments/00/{size}", size)
        assert await store.get(f"segments/00/{size}") == body


async def test_head_says_what_put_said(store: ObjectStore) -> None:
    put = await store.put("k", b"12345")
    head = await store.head("k")
    assert (head.key, head.size, head.etag) == ("k", 5, put.etag)
    assert head.etag
    assert '"' not in head.etag
    assert abs(head.modified_ms - SystemClock().wall_ms()) < 600_000


async def test_a_view_is_put_without_its_surroundings(store: ObjectStore) -> None:
    buffer = bytearray(b"before|the body|after")
    await store.put("k", memoryview(buffer)[7:15])
    buffer[7:15] = b"XXXXXXXX"  # the caller may reuse its buffer once put returned
    assert await store.get("k") == b"the body"


async def test_putting_the_same_again_changes_nothing(store: ObjectStore) -> None:
    await store.put("k", b"same")
    await store.put("k", b"same")
    assert await store.get("k") == b"same"


async def test_a_taken_key_stays_as_it_is(store: ObjectStore) -> None:
    await store.put("taken/k", b"first", if_absent=True)
    with pytest.raises(AlreadyExistsError):
        await store.put("taken/k", b"second", if_absent=True)
    assert await store.get("taken/k") == b"first"


async def test_one_of_many_conditional_puts_wins(store: ObjectStore, request: pytest.FixtureRequest) -> None:
    if "s3" in request.node.name and find_real_server() is None:
        pytest.skip("not offered by moto")  # it looks and stores in two steps: several of these puts can win
    bodies = [f"writer {number}".encode() for number in range(8)]
    answers = await asyncio.gather(
        *(store.put("race", body, if_absent=True) for body in bodies), return_exceptions=True
    )
    winners = [body for body, answer in zip(bodies, answers, strict=True) if isinstance(answer, ObjectInfo)]
    assert len(winners) == 1
    assert all(isinstance(answer, (ObjectInfo, AlreadyExistsError)) for answer in answers)
    assert await store.get("race") == winners[0]


async def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    await store.put("there/k", b"x")
    for absent in ("absent", "there/other", "there", "there/k/below"):
        with pytest.raises(NotFoundError):
            await store.get(absent)
        with pytest.raises(NotFoundError):
            await store.head(absent)
        with pytest.raises(NotFoundError):
            await store.get_many(absent, [ByteRange(0, 1)])


async def test_ranges(store: ObjectStore) -> None:
    await store.put("k", bytes(range(200)))
    assert await store.get("k", ByteRange(0, 1)) == b"\x00"
    assert await store.get("k", ByteRange(199, 1)) == bytes([199])
    assert await store.get("k", ByteRange(0, 200)) == bytes(range(200))
    assert await store.get("k", ByteRange(50, 7)) == bytes(range(50, 57))


async def test_large_ranges(store: ObjectStore) -> None:
    """S3Store reads them past aioboto3 (s3_range.py); several at a time, so on connections that are used again."""
    body = random.Random(3).randbytes(3_000_000)
    key = "large/a b+ü~*'()"
    await store.put(key, body)
    ranges = [ByteRange(start, 700_000) for start in (0, 1, 1_234_567, 2_300_000)] * 3
    for byte_range, found in zip(ranges, await asyncio.gather(*(store.get(key, one) for one in ranges)), strict=True):
        assert found == body[byte_range.start : byte_range.start + byte_range.length]
    while hasattr(store, "_inner"):
        store = store._inner
    if isinstance(store, S3Store) and find_real_server() is not None:  # moto's answers are left to aioboto3
        assert store._large.takes(ranges[0])
        assert store._large._refused == 0, "the server did not take the signature"
    with pytest.raises(CorruptError):
        await store.get(key, ByteRange(2_300_001, 700_000))
    with pytest.raises(NotFoundError):
        await store.get("large/none", ByteRange(0, 700_000))


async def test_a_range_past_the_end_is_corrupt_not_short(store: ObjectStore) -> None:
    await store.put("k", bytes(200))
    for past in (ByteRange(198, 3), ByteRange(200, 1), ByteRange(10_000, 5)):
        with pytest.raises(CorruptError):
            await store.get("k", past)
        with pytest.raises(CorruptError):
            await store.get_many("k", [ByteRange(0, 3), past])


async def test_a_range_of_nothing_is_refused(store: ObjectStore) -> None:
    await store.put("k", bytes(200))
    for wrong in (ByteRange(-1, 5), ByteRange(0, 0), ByteRange(5, -2)):
        with pytest.raises(InvalidError, match="bad byte range"):
            await store.get("k", wrong)
        with pytest.raises(InvalidError, match="bad byte range"):
            await store.get_many("k", [wrong])


async def test_what_is_there_at_once_is_the_range_or_nothing(store: ObjectStore) -> None:
    body = random.Random(8).randbytes(300_000)
    await store.put("k", body)
    await store.get("k")
    for asked in (ByteRange(0, 1), ByteRange(0, 300_000), ByteRange(123_456, 70_000), ByteRange(299_999, 1)):
        found = store.get_at_once("k", asked)
        assert found is None or found == body[asked.start : asked.start + asked.length]
    for past in (ByteRange(299_999, 2), ByteRange(300_000, 1), ByteRange(1_000_000, 5)):
        assert store.get_at_once("k", past) is None
    assert store.get_at_once("absent", ByteRange(0, 1)) is None
    await store.put("k", body[::-1])
    found = store.get_at_once("k", ByteRange(0, 1000))
    assert found is None or found == body[::-1][:1000]
    await store.delete_many(["k"])
    assert store.get_at_once("k", ByteRange(0, 1)) is None


async def test_many_ranges_come_in_the_order_of_asking(store: ObjectStore) -> None:
    body = random.Random(3).randbytes(3_000_000)
    await store.put("k", body)
    asked = [ByteRange(2_999_990, 10), ByteRange(0, 5), ByteRange(3, 5), ByteRange(0, 5), ByteRange(1_500_000, 70_000)]
    assert await store.get_many("k", asked) == [body[r.start : r.start + r.length] for r in asked]
    assert await store.get_many("k", []) == []


async def test_listing_is_in_key_order(store: ObjectStore) -> None:
    infos = {info.key: info for info in await put_all(store, random.Random(1).sample(KEYS, len(KEYS)))}
    assert await listed(store) == sorted(KEYS)
    async for info in store.list_objects():
        assert (info.size, info.etag) == (infos[info.key].size, infos[info.key].etag)


async def test_a_prefix_is_any_beginning_of_a_key(store: ObjectStore) -> None:
    await put_all(store, KEYS)
    for prefix in ("b", "b/", "b/d", "segments/1", "none", "z é/"):
        assert await listed(store, prefix) == sorted(key for key in KEYS if key.startswith(prefix))


async def test_listing_goes_on_after_a_key(store: ObjectStore) -> None:
    await put_all(store, KEYS)
    for start_after in ("", "a", "b/", "b/c", "b/cc", "segments/0f/x", "zz"):
        after = sorted(key for key in KEYS if key > start_after)
        assert await listed(store, "", start_after) == after
        assert await listed(store, "b", start_after) == [key for key in after if key.startswith("b")]


async def test_listings_and_deletions_of_many_pages(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("s3", "azure", "google"):
        monkeypatch.setattr(f"headrace.storage.objects.{module}.PAGE_KEYS", 4)
    keys = [f"many/{number:02}" for number in range(11)]
    await put_all(store, keys)
    assert await listed(store, "many/") == keys
    assert sorted(await store.delete_many(keys[:10])) == keys[:10]
    assert await listed(store, "many/") == keys[10:]


async def test_a_thousand_and_one_keys_are_deleted(store: ObjectStore, request: pytest.FixtureRequest) -> None:
    """One more than a request of S3 takes; Azure and Google are asked for each key, so that fewer are enough."""
    count = 101 if "azure" in request.node.name or "google" in request.node.name else 1001
    await put_all(store, ["k0000", f"k{count - 1:04}", "other"])
    keys = [f"k{number:04}" for number in range(count)]
    assert sorted(await store.delete_many(keys)) == keys
    assert await listed(store) == ["other"]


async def test_a_missing_key_counts_as_deleted_and_a_key_named_twice_as_one(store: ObjectStore) -> None:
    await put_all(store, ["here", "stays"])
    assert sorted(await store.delete_many(["here", "gone/long/ago", "here"])) == ["gone/long/ago", "here"]
    assert await store.delete_many([]) == []
    with pytest.raises(NotFoundError):
        await store.get("here")
    assert await store.get("stays") == b"stays"


async def test_a_bad_key_is_refused_by_every_operation(store: ObjectStore) -> None:
    for key in ("", "/a", "a/", "a//b", ".", "a/../b", "..", "a/./b", "a\x00b", "a\nb", "é" * 520):
        with pytest.raises(InvalidError, match="bad object key"):
            await store.put(key, b"x")
        with pytest.raises(InvalidError, match="bad object key"):
            await store.put(key, b"x", if_absent=True)
        with pytest.raises(InvalidError, match="bad object key"):
            await store.get(key)
        with pytest.raises(InvalidError, match="bad object key"):
            await store.head(key)
        with pytest.raises(InvalidError, match="bad object key"):
            await store.delete_many([key])


async def test_puts_side_by_side_do_not_mix(store: ObjectStore) -> None:
    bodies = {f"side/{number}": random.Random(number).randbytes(50_000 + number) for number in range(12)}
    await asyncio.gather(*(store.put(key, body) for key, body in bodies.items()))
    assert dict(zip(bodies, await asyncio.gather(*map(store.get, bodies)), strict=True)) == bodies


async def test_a_cancelled_put_leaves_all_or_nothing(store: ObjectStore) -> None:
    body = random.Random(9).randbytes(2_000_000)
    put = asyncio.ensure_future(store.put("cut", body))
    for _ in range(20):
        await asyncio.sleep(0)
    put.cancel()
    await asyncio.gather(put, return_exceptions=True)
    try:
        assert await store.get("cut") == body
    except NotFoundError:
        assert await listed(store) in ([], ["cut"])  # a put that was cancelled late may still land
