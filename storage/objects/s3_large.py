"""Says when a range is read past aioboto3, and how: where the bucket is, who asks, what the server answers otherwise.

Place: between S3Store.get and the connections of s3_range.py.
Invariant: aioboto3 decides where the bucket is and finds the credentials, also renewed ones. What its rules may add to
a request (a proxy, a directory bucket, no credentials) leaves all to it. After REFUSED_MAX answers in a row that were
not as expected although aioboto3 then got the range, this server is not asked so again.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import Any

from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from headrace.storage.clock import Clock
from headrace.storage.objects.s3_client import CONNECT_TIMEOUT_S_MAX, S3Options
from headrace.storage.objects.s3_range import LARGE_BYTES, S3RangeReader, place_of
from headrace.storage.objects.s3_signing import S3Keys, quoted, signed_get
from headrace.storage.objects.store import ByteRange

REFUSED_MAX = 3
DIRECTORY_BUCKET = "--x-s3"
"""How names of S3 Express end: its requests are signed for a session."""
_ANY_KEY = "k"

logger = logging.getLogger(__name__)


class LargeRanges:
    """One bucket. `session` is aioboto3's; its client is passed to each call."""

    def __init__(self, options: S3Options, session: Any, clock: Clock) -> None:
        self._options = options
        self._session = session
        self._clock = clock
        self._is_usable = not options.bucket.endswith(DIRECTORY_BUCKET)
        self._refused = 0
        self._reader: S3RangeReader | None = None
        owner = options.expected_owner
        self._more = {"x-amz-expected-bucket-owner": owner} if owner else {}

    def takes(self, byte_range: ByteRange | None) -> bool:
        """Return whether to ask here first."""
        return self._is_usable and byte_range is not None and byte_range.length >= LARGE_BYTES

    async def get(self, client: Any, name: str, byte_range: ByteRange) -> bytes | None:
        """The range of the object with this name; None if aioboto3 has to ask. Errors as S3RangeReader.get."""
        credentials = await self._credentials()
        reader = self._reader = self._reader or await self._open(client)
        if credentials is None or reader is None:
            self._give_up("no credentials, or a proxy")
            return None
        path, now_ms = f"{reader.place.prefix}{quoted(name)}", self._clock.wall_ms()
        headers = signed_get(path, reader.place.host, client.meta.region_name, credentials, now_ms, self._more)
        try:
            body = await reader.get(path, headers, byte_range)
        except ssl.SSLError as error:
            self._give_up(f"TLS: {error}")
            return None
        if body is not None:
            self._refused = 0
        return None if body is None else bytes(body)

    def answered_otherwise(self) -> None:
        """aioboto3 got what `get` did not."""
        self._refused += 1
        if self._refused >= REFUSED_MAX:
            self._give_up("the server's answers are not as expected")

    def close(self) -> None:
        """Close the connections."""
        if self._reader is not None:
            self._reader.close()

    async def _credentials(self) -> S3Keys | None:
        found = await self._session.get_credentials()
        if found is None:
            return None
        frozen = await found.get_frozen_credentials()
        return S3Keys(frozen.access_key, frozen.secret_key, frozen.token)

    async def _open(self, client: Any) -> S3RangeReader | None:
        url = await client.generate_presigned_url(
            "get_object", Params={"Bucket": self._options.bucket, "Key": _ANY_KEY}
        )
        if get_environ_proxies(url):
            return None
        place = place_of(url, _ANY_KEY)
        context = None
        if place.scheme == "https":
            context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or get_cert_path(True))
        timeout_s = min(CONNECT_TIMEOUT_S_MAX, self._options.request_timeout_s)
        return S3RangeReader(place, context, max(self._options.max_connections // 2, 1), timeout_s)

    def _give_up(self, reason: str) -> None:
        if self._is_usable:
            self._is_usable = False
            logger.info("large ranges are read by aioboto3: bucket=%s reason=%s", self._options.bucket, reason)
