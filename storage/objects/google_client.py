"""The requests to a bucket of Google Cloud Storage: who asks, what is sent, and what a refusal means.

Place: under GoogleStore; http_requests.py sends. Google's library google-auth says who this process is. Requests are
sent here, because the clients copy a body several times (decisions/0112).
Invariant of errors: that of http_requests.py. A 503 may come after the store acted, so a put that gets it is in doubt;
429 changed nothing.
A missing bucket and a missing object have the same status: until an answer proved that the bucket exists, a 404 is
checked by a listing.
Source: the JSON API of Cloud Storage, version 1.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from datetime import UTC
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.auth.transport.requests import Request as IdentityRequest
from yarl import URL

from headrace.config.addresses import GOOGLE_CREDENTIALS, endpoint_problem
from headrace.storage.clock import Clock
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects.http_requests import (
    ANSWER_BYTES_MAX,
    CODE_CHARS_MAX,
    OBJECT_BYTES_MAX,
    Answer,
    BodyOfParts,
    HttpRequests,
    SharedToken,
    StoreRequest,
    Token,
    refusal,
)
from headrace.storage.objects.store import check_key

ENDPOINT = "https://storage.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
PROJECT_VARIABLE = "GOOGLE_CLOUD_PROJECT"
EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
"""The address of an emulator, as Google's libraries know it. Where it is set, no request has a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleOptions:
    """`endpoint`: URL of the API; None: the emulator's by its variable, else Google's. InvalidError for invalid
    values.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    max_connections: int = 64
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.prefix:
            check_key(self.prefix)
        for name, value in (("gcs.endpoint", self.endpoint), (EMULATOR_VARIABLE, self.emulator)):
            if value and (problem := endpoint_problem(value, GOOGLE_CREDENTIALS)) is not None:
                raise InvalidError(f"bad {name}: {problem}")

    @property
    def emulator(self) -> str:
        """The emulator's URL; empty: there is none."""
        named = os.environ.get(EMULATOR_VARIABLE, "")
        return named if not named or "://" in named else f"http://{named}"

    @property
    def url(self) -> str:
        return (self.endpoint or self.emulator or ENDPOINT).rstrip("/")


class _Identity:
    """google-auth finds the credentials and asks for tokens; both wait for the network, on threads."""

    def __init__(self, options: GoogleOptions, clock: Clock) -> None:
        self._is_anonymous = bool(options.emulator)
        self._clock = clock
        self._credentials: Any = None
        self._token = SharedToken(self._ask, clock)

    async def headers(self) -> dict[str, str]:
        return {} if self._is_anonymous else {"Authorization": f"Bearer {await self._token.value()}"}

    def refused(self, used: str) -> bool:
        """Return whether to try again with another token than `used`."""
        return not self._is_anonymous and self._token.refused(used)

    async def close(self) -> None:
        await self._token.close()

    async def _ask(self) -> Token:
        try:
            return await asyncio.to_thread(self._refreshed)
        except DefaultCredentialsError as error:
            first = str(error).strip().partition("\n")[0]
            check = "check=the workload's service account, or GOOGLE_APPLICATION_CREDENTIALS"
            raise InvalidError(f"no credentials for the bucket: error={first} {check}") from error
        except (GoogleAuthError, OSError, ValueError) as error:
            if isinstance(error, TransportError | OSError) or getattr(error, "retryable", False):
                raise UnavailableError(f"identity unreachable: error={error}") from error
            raise InvalidError(
                f"no token for the bucket: error={error} check=the service account and its key or binding"
            ) from error

    def _refreshed(self) -> Token:
        if self._credentials is None:
            # a project is named, because the library asks an API for one, which a private network may not reach
            os.environ.setdefault(PROJECT_VARIABLE, "unused")
            self._credentials, _ = google.auth.default(scopes=SCOPES)
        self._credentials.refresh(IdentityRequest())
        expiry = self._credentials.expiry
        now_s = self._clock.wall_ms() / 1000
        return Token(
            self._credentials.token, now_s + 3600 if expiry is None else expiry.replace(tzinfo=UTC).timestamp()
        )


class GoogleClient:
    """One bucket and prefix."""

    def __init__(self, options: GoogleOptions, clock: Clock) -> None:
        self.bucket = options.bucket
        self.about = f"{options.url}/storage/v1/b/{options.bucket}"
        self.objects = f"{self.about}/o"
        self.uploads = f"{options.url}/upload/storage/v1/b/{options.bucket}/o"
        self.prefix = f"{options.prefix}/" if options.prefix else ""
        self._identity = _Identity(options, clock)
        self._http = HttpRequests(options.max_connections, options.request_timeout_s, "gcs.endpoint")
        self._bucket_exists = False

    async def close(self) -> None:
        """Requests in progress fail."""
        await self._http.close()
        await self._identity.close()

    def name(self, key: str) -> str:
        """Return a key's name in the bucket. InvalidError as check_key."""
        return check_key(self.prefix + check_key(key))

    def place(self, key: str) -> str:
        """Return the URL of an object."""
        return f"{self.objects}/{quote(self.name(key), safe='')}"

    async def send(
        self,
        operation: str,
        key: str,
        place: str,
        *,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        body: BodyOfParts | None = None,
        size: int = 0,
    ) -> Answer:
        """The answer of success; every other one is an error."""
        what = f"operation={operation} bucket={self.bucket} key={key}"
        method = _METHODS.get(operation, "GET")
        sent = {
            **(await self._identity.headers()),
            "User-Agent": "headrace",
            "Accept-Encoding": "identity",
            **({"Content-Type": body.content_type} if body is not None else {}),
            **(headers or {}),
        }
        url = URL(f"{place}?{urlencode(query, quote_via=quote)}" if query else place, encoded=True)
        limit = OBJECT_BYTES_MAX if operation == "get" else ANSWER_BYTES_MAX
        request = StoreRequest(method, url, what, sent, body, size, changes=method != "GET", limit=limit)
        answer = await self._http.send(request)
        if answer.status in _DONE:
            self._bucket_exists = True
            return answer
        reason, said = _reason(answer)
        text = f"store refused: {what} status={answer.status} code={reason}"
        kind = refusal_kind(reason, said, answer.status, changes=request.changes)
        if kind is NotFoundError and not self._bucket_exists and await self._lacks_bucket(operation, said):
            kind = InvalidError
            text = text.replace(f"code={reason}", "code=NoSuchBucket")
        if answer.status == HTTPStatus.UNAUTHORIZED and self._identity.refused(sent.get("Authorization", "")):
            kind = UnavailableError
        if kind is InvalidError or kind is CorruptError:
            text += f" said={said[:200]!r}"
        if kind is InvalidError:
            text += f" check={_CHECKS.get(answer.status, 'bucket and gcs.endpoint')}"
        raise refusal(kind, text, answer, changes=request.changes)

    async def _lacks_bucket(self, operation: str, said: str) -> bool:
        """Return whether a 404 is about the bucket: puts and listings need nothing else."""
        if operation not in ("get", "head", "delete"):
            return True
        if "No such object" in said:
            return False
        try:
            await self.send("list", "", self.objects, query={"maxResults": "1", "fields": "nextPageToken"})
        except InvalidError as error:
            return "code=NoSuchBucket" in str(error)
        return False


_METHODS = {"put": "POST", "delete": "DELETE"}
_DONE = (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.PARTIAL_CONTENT)
_BY_STATUS: dict[int, type[HeadraceError]] = {
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.REQUEST_TIMEOUT: UnavailableError,
    HTTPStatus.PRECONDITION_FAILED: AlreadyExistsError,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: CorruptError,
    HTTPStatus.TOO_MANY_REQUESTS: ThrottledError,
    HTTPStatus.NOT_IMPLEMENTED: InvalidError,
}
_CHECKS: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "the service account, its key or binding, and this machine's clock",
    HTTPStatus.FORBIDDEN: "the role of this service account: it needs Storage Object User on the bucket",
    HTTPStatus.NOT_FOUND: "the bucket's name, and gcs.endpoint",
}
_RATES = ("rateLimitExceeded", "userRateLimitExceeded")


def refusal_kind(reason: str, said: str, status: int, *, changes: bool) -> type[HeadraceError] | None:
    """The error's class; None for a failure inside the store, which may or may not have acted."""
    if reason in _RATES:
        return ThrottledError
    if status == HTTPStatus.SERVICE_UNAVAILABLE and not changes:
        return ThrottledError
    if status == HTTPStatus.BAD_REQUEST and any(word in said.lower() for word in ("crc32c", "md5", "checksum")):
        return CorruptError
    if kind := _BY_STATUS.get(status):
        return kind
    return None if status >= HTTPStatus.INTERNAL_SERVER_ERROR else InvalidError


def _reason(answer: Answer) -> tuple[str, str]:
    """The reason and the message of a refusal; empty, or the text, without Google's error document."""
    try:
        error = json.loads(answer.body)["error"]
        reason = str((error.get("errors") or [{}])[0].get("reason", ""))[:CODE_CHARS_MAX]
        return reason, str(error.get("message", ""))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):  # what is nested too deep is none
        return "", answer.body[:1000].decode("utf-8", "replace")
