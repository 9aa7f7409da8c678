"""What only a real S3 server can show: it checks what S3Store relies on. Skips when none is installed."""

from __future__ import annotations

import asyncio
import uuid
from urllib.parse import urlsplit

import aioboto3
import aioboto3.session
import boto3
import pytest
from botocore.config import Config

from headrace.storage.clock import SystemClock
from headrace.storage.errors import CorruptError, InvalidError, NotFoundError
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from headrace.storage.objects.store import ByteRange
from tests.fixtures_s3 import ACCESS_KEY, BUCKET, SECRET_KEY


def store_at(url: str, bucket: str = BUCKET, prefix: str = "") -> S3Store:
    return S3Store(
        S3Options(bucket=bucket, prefix=prefix, endpoint=url, region="us-east-1", path_style=True), SystemClock()
    )


async def test_the_server_refuses_a_body_that_differs_from_its_checksum(
    real_s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This refusal is why an accepted put needs no head after it."""
    store = store_at(real_s3_url)
    monkeypatch.setattr("headrace.storage.objects.s3.crc32c.crc32c", lambda body: 0xBAD)
    with pytest.raises(CorruptError, match=r"BadDigest|Checksum"):
        await store.put("altered", b"these bytes have another checksum")
    with pytest.raises(NotFoundError):
        await store.head("altered")
    await store.close()


async def test_an_accepted_put_names_its_checksum_and_needs_no_head(
    real_s3_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(real_s3_url)
    await store.put("named", bytes(1000))
    await store.put("named if absent", bytes(1000), if_absent=True)
    await store.close()
    assert "a head follows each put" not in caplog.text


async def test_the_server_drops_a_body_that_ends_early(real_s3_url: str) -> None:
    """The same signed request, cut after half of its body and then sent whole."""
    signer = boto3.client(
        "s3", endpoint_url=real_s3_url, region_name="us-east-1", config=Config(signature_version="s3v4")
    )
    url = signer.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": "cut"})
    store = store_at(real_s3_url)
    await send_put(url, announced=2000, sent=1000)
    with pytest.raises(NotFoundError):
        await store.head("cut")
    assert b" 200 " in await send_put(url, announced=2000, sent=2000)
    assert (await store.head("cut")).size == 2000
    await store.close()


async def send_put(url: str, announced: int, sent: int) -> bytes:
    """Send `sent` zeros of an announced body and no more; the answer's first line, if there is one."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    target = f"{parts.path}?{parts.query}"
    writer.write(f"PUT {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {announced}\r\n\r\n".encode())
    writer.write(bytes(sent))
    writer.write_eof()
    answer = await reader.readline()
    writer.close()
    return answer


async def test_a_bucket_that_is_not_there_is_a_mistake_not_a_missing_object(real_s3_url: str) -> None:
    absent = store_at(real_s3_url, bucket=f"absent-{uuid.uuid4()}")
    with pytest.raises(InvalidError, match="check=the bucket's name") as caught:
        await absent.put("k", b"x")
    assert not isinstance(caught.value, NotFoundError)
    await absent.close()


async def test_a_wrong_secret_is_refused(real_s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = aioboto3.session.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY + "x")
    monkeypatch.setattr(aioboto3, "Session", lambda: wrong)
    store = store_at(real_s3_url)
    with pytest.raises(InvalidError, match="check=the AWS secret key"):
        await store.put("k", b"x")
    await store.close()


async def test_a_part_of_a_large_object(real_s3_url: str) -> None:
    store = store_at(real_s3_url, prefix=f"run/{uuid.uuid4()}")
    body = bytes(range(256)) * 40_000
    await store.put("large", body)
    parts = [ByteRange(start, 100_000) for start in range(0, 10_000_000, 1_000_000)]
    assert await store.get_many("large", parts) == [body[p.start : p.start + p.length] for p in parts]
    await store.close()
