"""open_store: addresses, their refusals, and the order of decorators."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from headrace.config.settings import Settings
from headrace.storage.bucket_properties import bucket_address
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
from headrace.storage.objects.azure import AzureStore
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.google import GoogleStore
from headrace.storage.objects.hedging import HedgedStore
from headrace.storage.objects.measured import MeasuredStore
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.merging import MergingStore
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from headrace.storage.objects.store import ObjectStore
from tests.fixtures_s3 import BUCKET, aws_credentials, moto_url

__all__ = ["aws_credentials", "moto_url"]


def opened(url: str, options: StoreOptions | None = None) -> ObjectStore:
    return open_store(url, options or StoreOptions(), clock=SystemClock(), rng=random.Random(1))


def layers(store: object) -> list[type]:
    """The decorators' types from the outside in, and the plain store's last."""
    return [type(store), *(layers(store._inner) if hasattr(store, "_inner") else [])]


def plain(store: object) -> object:
    return plain(store._inner) if hasattr(store, "_inner") else store


def test_decorators_are_in_the_stated_order() -> None:
    assert layers(opened("s3://bucket")) == [MergingStore, RetryingStore, HedgedStore, MeasuredStore, S3Store]
    unhedged = StoreOptions(store_hedge_percent=0)
    assert layers(opened("s3://bucket", unhedged)) == [MergingStore, RetryingStore, MeasuredStore, S3Store]
    assert layers(opened("memory://x", StoreOptions(store_retries=0))) == [MergingStore, MeasuredStore, MemoryStore]


def test_puts_to_a_directory_are_not_hedged(tmp_path: Path) -> None:
    assert HedgedStore not in layers(opened(f"file://{tmp_path}"))


def test_options_are_the_settings_of_the_same_names() -> None:
    assert StoreOptions.of(Settings()) == StoreOptions(), "and have the same defaults"
    settings = Settings(
        s3_endpoint="http://127.0.0.1:9",
        s3_region="eu-north-1",
        s3_path_style=True,
        s3_max_connections=3,
        s3_request_timeout_ms=1500,
        store_retries=1,
        store_hedge_percent=3,
    )
    store = plain(opened("s3://bucket/pre/fix/", StoreOptions.of(settings)))
    assert isinstance(store, S3Store)
    assert store._options == S3Options(
        bucket="bucket",
        prefix="pre/fix",
        endpoint="http://127.0.0.1:9",
        region="eu-north-1",
        path_style=True,
        max_connections=3,
        request_timeout_s=1.5,
    )


async def test_a_directory_by_its_address(tmp_path: Path) -> None:
    store = opened(f"file://{tmp_path}/with%20space")
    assert isinstance(plain(store), DirectoryStore)
    await store.put("k", b"x")
    assert (tmp_path / "with space" / "k").read_bytes() == b"x"


async def test_a_memory_store_is_shared_by_its_name() -> None:
    await opened("memory://shared").put("k", b"x")
    assert await opened("memory://shared").get("k") == b"x"
    assert [info async for info in opened("memory://other").list_objects()] == []


async def test_a_bucket_by_its_address(moto_url: str) -> None:
    options = StoreOptions(s3_endpoint=moto_url, s3_region="us-east-1", s3_path_style=True)
    store = opened(f"s3://{BUCKET}/open/store", options)
    await store.put("k", b"x")
    assert [info.key async for info in opened(f"s3://{BUCKET}", options).list_objects("open/")] == ["open/store/k"]
    await store.close()


@pytest.mark.parametrize(
    ("url", "endpoint", "service"),
    [
        ("az://account1/logs/a/b", None, "https://account1.blob.core.windows.net"),
        ("abfss://logs@account1.dfs.core.windows.net/a/b/", None, "https://account1.blob.core.windows.net"),
        ("abfss://logs@account1.dfs.core.chinacloudapi.cn/a/b", None, "https://account1.blob.core.chinacloudapi.cn"),
        ("az://account1/logs/a/b", "http://127.0.0.1:9/account1", "http://127.0.0.1:9/account1"),
    ],
)
def test_a_container_of_azure_by_its_address(url: str, endpoint: str | None, service: str) -> None:
    store = opened(url, StoreOptions(azure_endpoint=endpoint))
    assert layers(store) == [MergingStore, RetryingStore, HedgedStore, MeasuredStore, AzureStore]
    client = plain(store)._client  # type: ignore[attr-defined]
    assert (client.shown, client.prefix, client._container) == ("account1/logs", "a/b/", f"{service}/logs")
    assert bucket_address(url) == "az://account1/logs/a/b"


def test_a_bucket_of_google_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    for endpoint, host in (
        (None, "https://storage.googleapis.com"),
        ("https://private.example", "https://private.example"),
    ):
        store = opened("gs://logs/a/b/", StoreOptions(gcs_endpoint=endpoint))
        assert layers(store) == [MergingStore, RetryingStore, HedgedStore, MeasuredStore, GoogleStore]
        client = plain(store)._client  # type: ignore[attr-defined]
        assert (client.objects, client.prefix) == (f"{host}/storage/v1/b/logs/o", "a/b/")
    assert bucket_address("gs://logs/a/b/") == "gs://logs/a/b"


@pytest.mark.parametrize(("module", "url"), [("azure", "az://account1/logs"), ("google", "gs://logs")])
def test_a_missing_library_is_named_with_its_extra(module: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"headrace.storage.objects.{module}", None)
    with pytest.raises(InvalidError, match=f"the extra `{module}` has it"):
        opened(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket",
        "/directory",
        "s3:///prefix",
        "s3://key:secret@bucket",
        "s3://bucket?region=x",
        "s3://bucket/a//b",
        "file://host/directory",
        "file://relative",
        "file:///",
        "memory://",
        "memory://name/path",
        "gs://",
        "gs://key:secret@bucket",
        "az://account",
        "az://account/",
        "az://Not-An-Account/container",
        "az://key@account/container",
        "abfss://account.dfs.core.windows.net/prefix",
        "abfss://container:secret@account.dfs.core.windows.net",
        "abfss://workspace@onelake.dfs.fabric.microsoft.com/prefix",
        "wasbs://container@account.blob.core.windows.net",
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(InvalidError, match=r"bad (bucket address|object key)"):
        opened(url)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://host", "https://", "http:/host"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(InvalidError, match=r"bad s3\.endpoint"):
        opened("s3://bucket", StoreOptions(s3_endpoint=endpoint))
