"""How aioboto3's requests are sent: no redirect is followed, and no answer is read without end.

Place: under the client of s3_client.py.
Invariant: a request goes to the endpoint only. aiohttp would follow a redirect to any address, with the session token
that is in a header; botocore itself asks for another region's endpoint where S3 names a region.
Invariant: what is kept of an answer has a limit, but for the stream of an object, which S3Store reads. A successful
answer with a document type is none of S3's: by its entities a few bytes become gigabytes.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession

from headrace.storage.objects.http_requests import ANSWER_BYTES_MAX, REFUSAL_BYTES_MAX, beginning


class BoundedAnswer(aiohttp.ClientResponse):
    """An answer that botocore parses."""

    async def read(self) -> bytes:
        """The body; of a refusal its beginning. ClientPayloadError if it is too long, or no answer of S3."""
        if self._body is None:
            is_refusal = self.status >= HTTPStatus.MULTIPLE_CHOICES
            limit = REFUSAL_BYTES_MAX if is_refusal else ANSWER_BYTES_MAX
            body = await beginning(self.content, limit)
            if is_refusal:
                body = body[:limit]
            elif len(body) > limit:
                raise aiohttp.ClientPayloadError(f"answer is too long: limit={limit}")
            elif b"<!DOCTYPE" in body:
                raise aiohttp.ClientPayloadError("answer has a document type")
            self._body = body
        return self._body


class OneServerSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's connections."""

    async def _get_session(self, proxy_url: str | None) -> _WithoutRedirects:
        session = await super()._get_session(proxy_url)
        session._response_class = BoundedAnswer
        return _WithoutRedirects(session)


class _WithoutRedirects:
    """The part of aiohttp.ClientSession that aiobotocore uses."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **given: Any) -> aiohttp.ClientResponse:
        return await self._session.request(method, allow_redirects=False, **given)
