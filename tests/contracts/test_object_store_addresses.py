"""How a bucket is addressed: host names, region and certificate, as a real server over https sees them."""

from __future__ import annotations

import pytest

from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from tests.fixtures_s3 import BUCKET, DOTTED_BUCKET, REGION, HttpsServer
from tests.loopback_names import sitecustomize
from tests.loopback_names.sitecustomize import DOMAIN


async def put_and_get(options: S3Options) -> bytes:
    store = S3Store(options, SystemClock())
    try:
        await store.put("addressed", b"body")
        return await store.get("addressed")
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("bucket", "path_style", "host"),
    [
        (BUCKET, False, f"{BUCKET}.{DOMAIN}"),
        (BUCKET, True, DOMAIN),
        (DOTTED_BUCKET, False, DOMAIN),  # a certificate for *.DOMAIN is for one label only
    ],
)
async def test_the_default_puts_the_bucket_into_the_host_name_where_a_certificate_can_cover_it(
    https_s3: HttpsServer, monkeypatch: pytest.MonkeyPatch, bucket: str, path_style: bool, host: str
) -> None:
    monkeypatch.setattr(sitecustomize, "asked", set())
    options = S3Options(bucket=bucket, endpoint=https_s3.url, region=REGION, path_style=path_style)
    assert await put_and_get(options) == b"body"
    assert sitecustomize.asked == {host}


async def test_an_address_without_a_name_has_the_bucket_in_its_path(https_s3: HttpsServer) -> None:
    """There is no host name below 127.0.0.1."""
    options = S3Options(bucket=BUCKET, endpoint=https_s3.url.replace(DOMAIN, "127.0.0.1"), region=REGION)
    assert await put_and_get(options) == b"body"


async def test_a_host_name_that_does_not_exist_names_the_settings_to_check() -> None:
    options = S3Options(bucket=BUCKET, endpoint="https://no-such-name.headrace.invalid", region=REGION)
    with pytest.raises(UnavailableError, match=r"check=s3\.endpoint and s3\.path\.style"):
        await put_and_get(options)


async def test_the_region_may_come_from_the_environment(https_s3: HttpsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    assert await put_and_get(S3Options(bucket=BUCKET, endpoint=https_s3.url)) == b"body"


async def test_a_wrong_region_is_corrected_by_the_servers_answer(https_s3: HttpsServer) -> None:
    assert await put_and_get(S3Options(bucket=BUCKET, endpoint=https_s3.url, region="us-east-1")) == b"body"


async def test_a_certificate_of_an_unknown_authority_is_refused(
    https_s3: HttpsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE")
    with pytest.raises(InvalidError, match="AWS_CA_BUNDLE"):
        await put_and_get(S3Options(bucket=BUCKET, endpoint=https_s3.url, region=REGION))
