"""Signs GETs for S3 (AWS Signature Version 4), without the preparation that botocore repeats for every request.

Place: under S3RangeReader (s3_range.py). Everything else is signed by aioboto3.
Invariant: pure; method, path and headers are signed as they are sent. The signing key of a day is derived once.
Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API reference.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

UNSIGNED = "UNSIGNED-PAYLOAD"
_ALGORITHM = "AWS4-HMAC-SHA256"


class S3Keys(NamedTuple):
    """As the AWS chain has them now. `token`: of a session; None without one."""

    access_key: str
    secret_key: str
    token: str | None


def signed_get(
    path: str, host: str, region: str, credentials: S3Keys, now_ms: int, more: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the headers of a GET of `path`, which is quoted already. `more`: further headers, in lower case."""
    time = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": UNSIGNED, "x-amz-date": time, **(more or {})}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = sorted(headers)
    signed = ";".join(names)
    lines = "".join(f"{name}:{headers[name]}\n" for name in names)
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(f"GET\n{path}\n\n{lines}\n{signed}\n{UNSIGNED}".encode()).hexdigest()
    text = f"{_ALGORITHM}\n{time}\n{scope}\n{digest}"
    signature = hmac.digest(_key(credentials.secret_key, time[:8], region), text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope},SignedHeaders={signed},Signature={signature}"
    )
    return headers


def quoted(name: str) -> str:
    """Return an object's name as it is in a path."""
    return quote(name, safe="/-_.~")


@lru_cache(maxsize=8)
def _key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
