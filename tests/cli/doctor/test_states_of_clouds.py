"""The doctor on a container of Azure and a bucket of Google that are wrong in one way.

Fault model: Azurite with signatures that lack one right, with soft delete, with another key; fake-gcs-server; a server
on loopback that answers as Google does to a service account without a right.
"""

from __future__ import annotations

import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ResourceTypes,
    RetentionPolicy,
    generate_account_sas,
)

from headrace.cli.doctor import bucket
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import OBJECT_KEY, render
from headrace.storage.objects.open import StoreOptions, cloud_store, open_store
from tests.cli.doctor.world import Line, ShiftedClock, lines
from tests.fixtures_clouds import ACCOUNT, CONTAINER, GCS_BUCKET, KEY, azurite_url, fake_gcs_url
from tests.scripted_http import Exchange, ScriptedServer
from tests.storage.objects.clouds import google_refuses

__all__ = ["azurite_url", "fake_gcs_url"]

pytestmark = pytest.mark.requirement("X15")

CLUSTER = "mWlrs4cHQ6aL2nSPlvUd6g"
RIGHTS = {"write": "put", "list": "list", "delete": "delete", "read": "put"}
"""The check that fails without a right. Azurite names no checksum, so that each put is read back in part."""


async def examined(settings: Settings, clock: SystemClock | None = None) -> dict[str, Line]:
    return lines(await bucket.examine(settings, clock or SystemClock(), random.Random(5)))


def on_azurite(url: str, container: str = CONTAINER) -> Settings:
    return Settings(bucket=f"az://{ACCOUNT}/{container}/{uuid.uuid4()}", azure_endpoint=url)


async def test_a_container_in_order(azurite_url: str) -> None:
    settings = on_azurite(azurite_url)
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random(1))
    await store.put(OBJECT_KEY, render(CLUSTER))
    await store.close()
    found = await examined(settings)
    for check in ("get", "list", "conditional put", "delete", "cluster", "clock"):
        assert found[check][0] == "ok", (check, found[check])
    assert found["put"][0] != "bad", "a busy machine is slow"
    assert f"belongs to cluster {CLUSTER}" in found["cluster"][1]
    assert (found["rules"][0], "portal" in str(found["rules"][2])) == ("unknown", True)
    assert "soft delete" not in found


@pytest.mark.parametrize(
    ("denied", "check"),
    [pytest.param(*each, marks=[] if each[0] == "delete" else [pytest.mark.slow]) for each in RIGHTS.items()],
)
async def test_a_signature_without_one_right(
    azurite_url: str, monkeypatch: pytest.MonkeyPatch, denied: str, check: str
) -> None:
    rights = {right: right != denied for right in RIGHTS}
    sas = generate_account_sas(
        ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), AccountSasPermissions(**rights),
        datetime.now(UTC) + timedelta(hours=1),
    )  # fmt: skip
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
    found = await examined(on_azurite(azurite_url))
    level, told, to_do = found[check]
    assert (level, "signature" in str(to_do)) == ("bad", True), (told, to_do)
    for other in ({"put", "list", "delete"} & found.keys()) - {check}:
        assert found[other][0] != "bad", (other, found[other])


async def test_what_is_wrong_with_an_address_or_a_key(azurite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    level, _, to_do = (await examined(on_azurite(azurite_url, "no-such-container")))["put"]
    assert (level, to_do) == ("bad", "correct bucket, or create the container")

    nowhere = Settings(bucket="az://account1/logs", azure_endpoint="https://account1.headrace.invalid")
    level, told, to_do = (await examined(nowhere))["put"]
    assert level == "bad"
    assert str(to_do).startswith("correct the account"), told

    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY[::-1].replace("=", "A")[:86] + "==")
    level, told, to_do = (await examined(on_azurite(azurite_url)))["put"]
    assert (level, "status=403" in told) == ("bad", True)
    assert to_do == "correct the account's key (AZURE_STORAGE_KEY), or the account in bucket", told


@pytest.mark.slow
async def test_deleted_blobs_that_are_kept(azurite_url: str) -> None:
    with BlobServiceClient(azurite_url, credential=AzureNamedKeyCredential(ACCOUNT, KEY)) as service:
        service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=7))
        try:
            level, told, _ = (await examined(on_azurite(azurite_url)))["soft delete"]
        finally:
            service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))
    assert (level, "for 7 days" in told) == ("warn", True)


@pytest.mark.slow
async def test_a_clock_that_differs_from_the_stores(azurite_url: str) -> None:
    level, told, _ = (await examined(on_azurite(azurite_url), ShiftedClock(300)))["clock"]
    assert (level, "s ahead of the store's" in told) == ("warn", True)


async def test_a_bucket_of_google_in_order_and_a_missing_one(fake_gcs_url: str) -> None:
    found = await examined(Settings(bucket=f"gs://{GCS_BUCKET}/{uuid.uuid4()}"))
    for check in ("get", "list", "conditional put", "delete"):
        assert found[check][0] == "ok", (check, found[check])
    assert found["put"][0] != "bad", "a busy machine is slow"
    assert (found["lifecycle rules"][0], found["versioning"][0]) == ("ok", "ok")
    level, _, to_do = (await examined(Settings(bucket="gs://no-such-bucket/logs")))["put"]
    assert (level, "create the bucket" in str(to_do)) == ("bad", True)


@pytest.mark.parametrize(
    ("about", "check", "level"),
    [
        ({"softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "soft delete", "warn"),
        ({"hierarchicalNamespace": {"enabled": True}}, "folders", "warn"),
        ({"versioning": {"enabled": True}}, "versioning", "warn"),
        ({"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 3}}]}}, "lifecycle rules", "bad"),
        (
            {
                "versioning": {"enabled": True},
                "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"isLive": False, "age": 1}}]},
            },
            "versioning",
            "ok",
        ),
        (
            {
                "lifecycle": {
                    "rule": [
                        {"action": {"type": "Delete"}, "condition": {"age": 3, "matchesPrefix": ["else/"]}},
                        {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 3}},
                    ]
                }
            },
            "lifecycle rules",
            "ok",
        ),
    ],
)
async def test_what_a_bucket_of_google_does_by_itself(
    fake_gcs_url: str, about: dict[str, Any], check: str, level: str
) -> None:
    """The objects are those of fake-gcs-server, which shows no such rules: these come from a server of the test."""

    async def tell(exchange: Exchange) -> None:
        await exchange.answer(200, json.dumps(about).encode())

    async with ScriptedServer([tell] * 2) as server:
        settings = Settings(bucket=f"gs://{GCS_BUCKET}/logs", gcs_endpoint=server.url)
        plain = cloud_store(settings.bucket, StoreOptions.of(settings), SystemClock())
        assert plain is not None
        found = lines(await bucket._cloud(settings, plain, SystemClock(), is_reached=True))
    assert found[check][0] == level, found


async def test_a_service_account_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    denied = google_refuses(403, "forbidden:agent@project does not have storage.objects.create access")
    async with ScriptedServer([denied] * 20) as server:
        settings = Settings(bucket="gs://bucket/logs", gcs_endpoint=server.url)
        found = await examined(settings)
    level, told, to_do = found["put"]
    assert (level, "storage.objects.create" in told) == ("bad", True)
    assert "Storage Object User" in str(to_do)
    assert found["rules"][0] == "unknown"
