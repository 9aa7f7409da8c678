"""What is asked of S3 about encryption and the bucket's owner, and that a store that ignores it is noticed."""

from __future__ import annotations

import uuid
from typing import Any

import boto3
import pytest

from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
from headrace.storage.objects.open import StoreOptions
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from tests.fixtures_s3 import BUCKET

KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"
OWNER = "123456789012"


def a_store(url: str, **own: Any) -> S3Store:
    prefix = str(uuid.uuid4())
    options = S3Options(bucket=BUCKET, prefix=prefix, endpoint=url, region="us-east-1", path_style=True, **own)
    return S3Store(options, SystemClock())


@pytest.mark.requirement("X2")
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"encryption": "AES256"}, ("AES256", None)),
        ({"encryption": "aws:kms", "kms_key_id": KEY}, ("aws:kms", KEY)),
    ],
)
async def test_objects_are_encrypted_as_the_settings_say(
    moto_url: str, own: dict[str, str], expected: tuple[str, str | None]
) -> None:
    store = a_store(moto_url, **own)
    await store.put("one", b"value")
    assert await store.get("one") == b"value"
    client = boto3.client("s3", endpoint_url=moto_url, region_name="us-east-1")
    found = client.head_object(Bucket=BUCKET, Key=f"{store._options.prefix}/one")
    assert (found.get("ServerSideEncryption"), found.get("SSEKMSKeyId")) == expected
    await store.close()


@pytest.mark.requirement("X2")
async def test_a_store_that_ignores_the_encryption_is_noticed(real_s3_url: str) -> None:
    """versitygw stores the object and says nothing about encryption."""
    store = a_store(real_s3_url, encryption="AES256")
    with pytest.raises(InvalidError, match="did not encrypt"):
        await store.put("one", b"value")
    await store.close()


@pytest.mark.requirement("X2")
async def test_every_request_names_the_expected_owner(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = a_store(moto_url, expected_owner=OWNER)
    client = await store._connected()
    owners: dict[str, str | None] = {}

    def note(model: Any, params: Any, **_: object) -> None:
        owners[model.name] = params["headers"].get("x-amz-expected-bucket-owner")

    client.meta.events.register("before-call.s3", note)
    await store.put("one", b"value")
    await store.get("one")
    await store.head("one")
    assert [info.key async for info in store.list_objects()] == ["one"]
    await store.delete_many(["one"])
    wanted = ("PutObject", "GetObject", "HeadObject", "ListObjectsV2", "DeleteObjects")
    assert owners == dict.fromkeys(wanted, OWNER)
    await store.close()


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidError, match=r"s3\.kms\.key\.id"):
        S3Options(bucket=BUCKET, encryption="AES256", kms_key_id=KEY)
    for name, value in (("s3.server.side.encryption", "rot13"), ("s3.expected.bucket.owner", "me")):
        with pytest.raises(ConfigError):
            load(flags={name: value})
    settings = load(flags={"s3.server.side.encryption": "aws:kms", "s3.expected.bucket.owner": OWNER})
    assert StoreOptions.of(settings).s3_server_side_encryption == "aws:kms"
