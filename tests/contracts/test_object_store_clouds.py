"""What Azurite and fake-gcs-server check of what AzureStore and GoogleStore rely on. Skips what is not installed."""

from __future__ import annotations

import uuid

import pytest

from headrace.storage.clock import SystemClock
from headrace.storage.errors import CorruptError, InvalidError, NotFoundError
from headrace.storage.objects.azure import AzureStore
from headrace.storage.objects.azure_client import AzureOptions
from headrace.storage.objects.google import GoogleStore
from headrace.storage.objects.google_client import GoogleOptions
from tests.fixtures_clouds import ACCOUNT, CONTAINER, GCS_BUCKET

pytestmark = pytest.mark.requirement("X15")


def azure_at(url: str, container: str = CONTAINER) -> AzureStore:
    options = AzureOptions(account=ACCOUNT, container=container, prefix=f"run/{uuid.uuid4()}", endpoint=url)
    return AzureStore(options, SystemClock())


def google_at(bucket: str = GCS_BUCKET) -> GoogleStore:
    return GoogleStore(GoogleOptions(bucket=bucket, prefix=f"run/{uuid.uuid4()}"), SystemClock())


async def test_azure_refuses_a_body_that_differs_from_its_checksum(
    azurite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This refusal is why an accepted put needs no more than the answer."""
    store = azure_at(azurite_url)
    monkeypatch.setattr("headrace.storage.objects.azure.crc64nvme", lambda body: 0xBAD)
    with pytest.raises(CorruptError, match="Crc64Mismatch"):
        await store.put("altered", b"these bytes have another checksum")
    with pytest.raises(NotFoundError):
        await store.head("altered")
    await store.close()


async def test_google_refuses_a_body_that_differs_from_its_checksum(
    fake_gcs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = google_at()
    monkeypatch.setattr("headrace.storage.objects.google.crc32c.crc32c", lambda body: 0xBAD)
    with pytest.raises(CorruptError, match=r"status=400 .*CRC32C"):
        await store.put("altered", b"these bytes have another checksum")
    with pytest.raises(NotFoundError):
        await store.head("altered")
    await store.close()


async def test_a_bucket_that_is_not_there_is_a_mistake_not_a_missing_object(
    azurite_url: str, fake_gcs_url: str
) -> None:
    absent: list[AzureStore | GoogleStore] = [azure_at(azurite_url, f"absent-{uuid.uuid4()}"), google_at("absent")]
    for store in absent:
        for call in (store.put("k", b"x"), store.get("k"), store.head("k"), anext(store.list_objects())):
            with pytest.raises(InvalidError, match="name") as caught:
                await call
            assert not isinstance(caught.value, NotFoundError)
        await store.close()
