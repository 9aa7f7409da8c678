"""The S3 client: its configuration, with questions about what a bucket itself does to objects.

Place: under S3Store; aioboto3 signs and parses. `headrace doctor` asks for versioning, lifecycle rules and
DeleteObjects, and reads the store's clock from the answers; no path of records needs this, nor the rights for it.
Invariant: one put or delete is one request on the wire. Botocore's retries are off: the retrying decorator paces and
counts them. Two automatic repetitions remain, both harmless: aiohttp repeats a GET or HEAD once if its connection
broke, and botocore sends a request again if the bucket is in another region.

Cost (load/benchmarks/store.py prints it): by default aioboto3 signs a PUT's body with SHA-256 over http, and
computes its CRC32 over http and https. `payload_signing_enabled=False` avoids the first; S3Store's CRC32C header
avoids the second, at a fraction of the cost (it is computed in hardware), and S3 verifies it before it answers.
Ranges are not verified on arrival: every batch has its own CRC.
Invariant of the questions to a bucket: reads only; the one key that is deleted does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import aioboto3
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import add_expect_header

from headrace.config.addresses import endpoint_problem
from headrace.storage.errors import InvalidError
from headrace.storage.objects.s3_errors import REQUEST_FAILURES, lacks_delete_objects
from headrace.storage.objects.s3_session import OneServerSession
from headrace.storage.objects.store import BucketRules, Expiration, check_key

CONNECT_TIMEOUT_S_MAX = 3.0
"""Limit of a connection attempt, which is then repeated; requests have a separate, longer limit."""

USER_AGENT = "headrace"
"""Identifies Headrace in the bucket's access logs; botocore would build its own for every request, 15 % of its
cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """Address of the bucket. `endpoint`, `region` None: AWS and its environment. InvalidError for invalid values.

    Without `path_style` the bucket is part of the host name, except where that cannot work: the endpoint is an IP
    address, or the bucket's name has dots and the endpoint is https (a wildcard certificate covers one label).
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    encryption: str = ""
    """The algorithm as S3 names it; empty: the bucket's default. `kms_key_id` empty: the account's key for S3."""
    kms_key_id: str = ""
    expected_owner: str = ""
    """Account id; empty: any account."""
    max_connections: int = 64
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.prefix:
            check_key(self.prefix)
        if self.kms_key_id and not self.encryption.startswith("aws:kms"):
            raise InvalidError("s3.kms.key.id is for s3.server.side.encryption=aws:kms or aws:kms:dsse")
        if self.endpoint is not None:
            problem = endpoint_problem(self.endpoint)
            if problem is not None:
                raise InvalidError(f"bad s3.endpoint: {problem}")


def of_each_request(options: S3Options) -> dict[str, str]:
    """Parameters of every request: the bucket, and its owner if it is checked."""
    bucket = {"Bucket": options.bucket}
    return bucket | ({"ExpectedBucketOwner": options.expected_owner} if options.expected_owner else {})


def of_each_put(options: S3Options) -> dict[str, str]:
    """More parameters of a put: how S3 encrypts the object, unless that is the bucket's default."""
    if not options.encryption:
        return {}
    key = {"SSEKMSKeyId": options.kms_key_id} if options.kms_key_id else {}
    return {"ServerSideEncryption": options.encryption, **key}


def new_client(options: S3Options, session: Any = None) -> AbstractAsyncContextManager[Any]:
    """An aioboto3 S3 client, which connects on first use; credentials come from the standard AWS chain. Without
    `session` (aioboto3's) it has a new one.
    """
    client: AbstractAsyncContextManager[Any] = (session or aioboto3.Session()).client(
        "s3",
        endpoint_url=options.endpoint,
        region_name=options.region,
        config=AioConfig(
            connect_timeout=min(CONNECT_TIMEOUT_S_MAX, options.request_timeout_s),
            read_timeout=options.request_timeout_s,
            max_pool_connections=options.max_connections,
            retries={"total_max_attempts": 1},
            user_agent=USER_AGENT,
            http_session_cls=OneServerSession,
            response_checksum_validation="when_required",
            s3={
                # "auto" would be path style for every endpoint but AWS's
                "addressing_style": "path" if options.path_style else "virtual",
                "payload_signing_enabled": False,
            },
        ),
    )
    return client


def send_bodies_at_once(client: Any) -> None:
    """Do not wait for "100 Continue" before a body: it costs a round trip per PUT, and some servers never send it."""
    client.meta.events.unregister("before-call.s3", add_expect_header)


_NONE_SET = ("NoSuchLifecycleConfiguration", "NotImplemented", "XNotImplemented", "MethodNotAllowed")


async def bucket_rules(options: S3Options) -> BucketRules:
    """Never raises for what a store refuses to tell."""
    async with new_client(options) as client:
        versioning, reason, date = await _told(client.get_bucket_versioning(Bucket=options.bucket))
        lifecycle, lifecycle_reason, later = await _told(
            client.get_bucket_lifecycle_configuration(Bucket=options.bucket)
        )
    rules = None if lifecycle is None else [r for r in lifecycle.get("Rules", ()) if r.get("Status") == "Enabled"]
    return BucketRules(
        versioned=None if versioning is None else versioning.get("Status") == "Enabled",
        expirations=None if rules is None else tuple(_expiration(r) for r in rules if "Expiration" in r),
        old_versions_expire=any("NoncurrentVersionExpiration" in rule for rule in rules or ()),
        refusal=reason or lifecycle_reason,
        date=later or date,
    )


async def why_no_delete_objects(options: S3Options, key: str) -> str:
    """The store's refusal, for `key`, which does not exist; "" if it has DeleteObjects, or refuses it otherwise."""
    try:
        async with new_client(options) as client:
            await client.delete_objects(Bucket=options.bucket, Delete={"Objects": [{"Key": key}]})
    except REQUEST_FAILURES as error:
        return str(error) if lacks_delete_objects(error) else ""
    return ""


async def _told(answer: Awaitable[dict[str, Any]]) -> tuple[dict[str, Any] | None, str, str]:
    """(the answer, "", its Date), or (None, why there is none, the Date); nothing is set where the store knows no such
    thing.
    """
    try:
        told = await answer
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        date = _date(error.response)
        return ({}, "", date) if code in _NONE_SET else (None, code or str(error), date)
    except (BotoCoreError, OSError) as error:
        return None, str(error), ""
    return told, "", _date(told)


def _date(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))


def _expiration(rule: dict[str, Any]) -> Expiration:
    condition = rule.get("Filter", {})
    prefix = rule.get("Prefix") or condition.get("Prefix") or condition.get("And", {}).get("Prefix") or ""
    return Expiration(rule.get("ID", ""), prefix, rule["Expiration"].get("Days"))
