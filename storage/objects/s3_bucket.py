"""What an S3 bucket itself does to objects: versioning, and lifecycle rules; and whether it has DeleteObjects.

Place: asked by `headrace doctor`, which reads the store's clock from the answers, too; no path of records needs it, nor
the rights for it.
Invariant: reads only; the one key that is deleted does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from headrace.storage.objects.s3_client import S3Options, new_client
from headrace.storage.objects.s3_errors import REQUEST_FAILURES, lacks_delete_objects

_NONE_SET = ("NoSuchLifecycleConfiguration", "NotImplemented", "XNotImplemented", "MethodNotAllowed")


@dataclass(frozen=True, slots=True)
class Expiration:
    """A lifecycle rule that deletes each object with this `prefix` of its key, `days` after it was written."""

    rule: str
    prefix: str
    days: int | None


@dataclass(frozen=True, slots=True)
class BucketRules:
    """`versioned` and `expirations` are None where the store would not say; `refusal` then has the reason."""

    versioned: bool | None
    expirations: tuple[Expiration, ...] | None
    old_versions_expire: bool
    refusal: str = ""
    date: str = ""
    """The store's clock, as the Date of its answer; empty if it had none."""


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
