"""Opens the object store at an address.

Place: called once per bucket when a process is composed (cli).
Invariant: every store has the same decorators, from the inside out:
  measured   every request that the bucket receives is counted
  hedged     a slow PUT of a flush file is sent a second time, and both are counted; not for a directory
  retrying   a failed request, hedged or not, is sent again
  merging    close ranges become one request before all of that
Connections are opened by the first request. The client of a cloud is imported only for a bucket there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.config.addresses import AZURE_SCHEMES, azure_place, is_object_store, shown_address
from headrace.config.extras import not_installed
from headrace.config.settings import Settings
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.hedging import HedgedStore, HedgePolicy
from headrace.storage.objects.measured import MeasuredStore
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.merging import MergingStore
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.store import ObjectStore

if TYPE_CHECKING:
    from headrace.storage.objects.azure import AzureStore
    from headrace.storage.objects.google import GoogleStore
    from headrace.storage.objects.s3_client import S3Options

_FORMS = (
    "s3://bucket/prefix, az://account/container/prefix, abfss://container@account.dfs.core.windows.net/prefix,"
    " gs://bucket/prefix, file:///directory or memory://name"
)

_memory_stores: dict[str, MemoryStore] = {}
"""The stores in memory by name, so that the agents of one process share `memory://name`; kept until the process
exits.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """The settings for a store, with the settings' names and defaults."""

    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_path_style: bool = False
    s3_server_side_encryption: str = ""
    s3_kms_key_id: str = ""
    s3_expected_bucket_owner: str = ""
    azure_endpoint: str | None = None
    gcs_endpoint: str | None = None
    s3_max_connections: int = 64
    s3_request_timeout_ms: int = 10_000
    store_retries: int = 5
    store_hedge_percent: int = 5
    upload_parallelism: int = 8

    @classmethod
    def of(cls, settings: Settings) -> StoreOptions:
        return cls(**{name: getattr(settings, name) for name in cls.__dataclass_fields__})


def open_store(url: str, options: StoreOptions, *, clock: Clock, rng: random.Random) -> ObjectStore:
    """The store at `url` (the forms are those of _FORMS).

    InvalidError, with the reason, for any other address. No request is sent yet.
    """
    store: ObjectStore = MeasuredStore(_plain_store(url, options, clock), clock)
    if options.store_hedge_percent and is_object_store(url):
        store = HedgedStore(store, HedgePolicy(options.store_hedge_percent, options.upload_parallelism), clock)
    if options.store_retries:
        store = RetryingStore(store, options.store_retries, clock, rng)
    return MergingStore(store)


def _plain_store(url: str, options: StoreOptions, clock: Clock) -> ObjectStore:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InvalidError(f"bad bucket address (expected {_FORMS})") from None
    if parts.query or parts.fragment or ("@" in parts.netloc and parts.scheme != "abfss"):
        shown = shown_address(url)
        raise InvalidError(f"bad bucket address: {shown!r} (no options or credentials are allowed; use {_FORMS})")
    match parts.scheme:
        case "s3" if parts.netloc:
            return _s3_store(parts, options, clock)
        case "az" | "abfss":
            return _azure_store(url, options, clock)
        case "gs" if parts.netloc:
            return _google_store(parts, options, clock)
        case "file" if parts.netloc in ("", "localhost") and parts.path.strip("/"):
            return DirectoryStore(Path(unquote(parts.path)), clock)
        case "memory" if parts.netloc and not parts.path:
            return _memory_stores.setdefault(parts.netloc, MemoryStore(clock))
    raise InvalidError(f"bad bucket address: {shown_address(url)!r} (expected {_FORMS})")


def _s3_store(parts: SplitResult, options: StoreOptions, clock: Clock) -> ObjectStore:
    from headrace.storage.objects.s3 import S3Store  # here: botocore takes 0.2 s and 30 MB

    return S3Store(s3_options(parts, options), clock)


def _azure_store(url: str, options: StoreOptions, clock: Clock) -> AzureStore:
    place = azure_place(url)
    if place is None:
        raise InvalidError(f"bad bucket address: {shown_address(url)!r} (expected {_FORMS})")
    try:
        from headrace.storage.objects.azure import AzureStore  # here, as above
        from headrace.storage.objects.azure_client import AzureOptions
    except ImportError as error:
        raise InvalidError(not_installed(str(error.name), "azure")) from error
    return AzureStore(
        AzureOptions(
            account=place.account,
            container=place.container,
            prefix=place.prefix,
            endpoint=options.azure_endpoint or place.endpoint,
            max_connections=options.s3_max_connections,
            request_timeout_s=options.s3_request_timeout_ms / 1000,
        ),
        clock,
    )


def _google_store(parts: SplitResult, options: StoreOptions, clock: Clock) -> GoogleStore:
    try:
        from headrace.storage.objects.google import GoogleStore  # here, as above
        from headrace.storage.objects.google_client import GoogleOptions
    except ImportError as error:
        raise InvalidError(not_installed(str(error.name), "google")) from error
    return GoogleStore(
        GoogleOptions(
            bucket=parts.netloc,
            prefix=unquote(parts.path).strip("/"),
            endpoint=options.gcs_endpoint,
            max_connections=options.s3_max_connections,
            request_timeout_s=options.s3_request_timeout_ms / 1000,
        ),
        clock,
    )


def cloud_store(url: str, options: StoreOptions, clock: Clock) -> AzureStore | GoogleStore | None:
    """The plain store of a bucket on Azure or Google Cloud, for questions about its rules; None for another one."""
    parts = urlsplit(url)
    if parts.scheme in AZURE_SCHEMES:
        return _azure_store(url, options, clock)
    return _google_store(parts, options, clock) if parts.scheme == "gs" else None


def s3_options(parts: SplitResult, options: StoreOptions) -> S3Options:
    """Return the options of the client for an address s3://bucket/prefix. InvalidError for invalid values."""
    from headrace.storage.objects.s3_client import S3Options  # here: it imports botocore

    return S3Options(
        bucket=parts.netloc,
        prefix=unquote(parts.path).strip("/"),
        endpoint=options.s3_endpoint,
        region=options.s3_region,
        path_style=options.s3_path_style,
        encryption=options.s3_server_side_encryption,
        kms_key_id=options.s3_kms_key_id,
        expected_owner=options.s3_expected_bucket_owner,
        max_connections=options.s3_max_connections,
        request_timeout_s=options.s3_request_timeout_ms / 1000,
    )
