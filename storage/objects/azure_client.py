"""The requests to a container of Azure Blob Storage: who asks, what is sent, and what a refusal means.

Place: under AzureStore; http_requests.py sends. Microsoft's libraries say who this process is: azure-identity brings
tokens, azure-storage-blob signs for an account key. Requests are sent here, because their client may send a PUT twice
and copies its body (decisions/0112).
Invariant of errors: that of http_requests.py. A refusal by an error code of Azure changed nothing; a failure without
one may come from a proxy, which says nothing about what the store did.
Source: the REST API of Blob Storage, version 2023-11-03.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from http import HTTPStatus
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlencode

from azure.core.exceptions import AzureError, ClientAuthenticationError
from yarl import URL

from headrace.config.addresses import AZURE_CREDENTIALS, endpoint_problem
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

VERSION = "2023-11-03"
SCOPE = "https://storage.azure.com/.default"
SIGNED_S = 3600.0
"""How long a signature by an account key is good."""
LONGER_PAGE = 5
"""How many times as many keys as elsewhere one listing may have."""
KEY_VARIABLE, SAS_VARIABLE = "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureOptions:
    """`endpoint`: URL of the account's blob service; None: the public cloud's. InvalidError for invalid values."""

    account: str
    container: str
    prefix: str = ""
    endpoint: str | None = None
    max_connections: int = 64
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.prefix:
            check_key(self.prefix)
        if self.endpoint is not None and (problem := endpoint_problem(self.endpoint, AZURE_CREDENTIALS)) is not None:
            raise InvalidError(f"bad azure.endpoint: {problem}")

    @property
    def url(self) -> str:
        """The blob service's, without a trailing slash."""
        return (self.endpoint or f"https://{self.account}.blob.core.windows.net").rstrip("/")


class _Identity:
    """What goes with each request: a header Authorization, or parameters that are a signature."""

    def __init__(self, options: AzureOptions, clock: Clock) -> None:
        self._account = options.account
        self._clock = clock
        self._fixed = os.environ.get(SAS_VARIABLE, "").lstrip("?")
        self._key = os.environ.get(KEY_VARIABLE, "")
        self._credential: Any = None
        self._token = SharedToken(self._signature if self._key else self._ask, clock)
        if not self._fixed:  # here: 0.4 s, which an event loop with work does not have
            import_module("azure.storage.blob" if self._key else "azure.identity.aio")

    async def signature(self) -> str:
        """The parameters; empty: `headers` has a token."""
        if self._fixed:
            return self._fixed
        return await self._token.value() if self._key else ""

    async def headers(self) -> dict[str, str]:
        if self._fixed or self._key:
            return {}
        return {"Authorization": f"Bearer {await self._token.value()}"}

    def refused(self, used: str) -> bool:
        """Return whether to try again with another token than `used`."""
        return not self._fixed and self._token.refused(used)

    def check(self) -> str:
        """Return what to look at when the store forbids a request. A role says nothing about a key or a signature."""
        if self._fixed:
            return f"{SAS_VARIABLE}: it needs the rights to read, write, list and delete"
        return f"{KEY_VARIABLE}, and the account's name" if self._key else _CHECK_ROLE

    async def close(self) -> None:
        await self._token.close()
        if self._credential is not None:
            await self._credential.close()

    async def _signature(self) -> Token:
        from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

        now_s = self._clock.wall_ms() / 1000
        try:
            text = generate_account_sas(
                self._account,
                self._key,
                ResourceTypes(service=True, container=True, object=True),
                AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True),
                datetime.fromtimestamp(now_s, UTC) + timedelta(seconds=SIGNED_S),
            )
        except (ValueError, AzureError) as error:  # not base64
            raise InvalidError(f"bad account key: check={KEY_VARIABLE}") from error
        return Token(text, now_s + SIGNED_S)

    async def _ask(self) -> Token:
        from azure.identity.aio import DefaultAzureCredential

        try:
            if self._credential is None:
                self._credential = DefaultAzureCredential(
                    exclude_shared_token_cache_credential=True,
                    exclude_powershell_credential=True,
                    exclude_developer_cli_credential=True,
                )
            found = await self._credential.get_token(SCOPE)
        except ClientAuthenticationError as error:
            first = str(error).strip().partition("\n")[0]
            raise InvalidError(
                f"no token for the container: account={self._account} error={first}"
                f" check=the workload or managed identity (AZURE_CLIENT_ID, AZURE_TENANT_ID), or {KEY_VARIABLE}"
            ) from error
        except (AzureError, OSError, ValueError) as error:
            raise UnavailableError(f"identity unreachable: account={self._account} error={error}") from error
        return Token(found.token, float(found.expires_on))


class AzureClient:
    """One container and prefix."""

    def __init__(self, options: AzureOptions, clock: Clock) -> None:
        self._clock = clock
        self._service = f"{options.url}/"
        self._container = f"{options.url}/{options.container}"
        self.shown = f"{options.account}/{options.container}"
        self.prefix = f"{options.prefix}/" if options.prefix else ""
        self._identity = _Identity(options, clock)
        self._http = HttpRequests(options.max_connections, options.request_timeout_s, "azure.endpoint")

    async def close(self) -> None:
        """Requests in progress fail."""
        await self._http.close()
        await self._identity.close()

    def name(self, key: str) -> str:
        """Return a key's name in the container. InvalidError as check_key."""
        return check_key(self.prefix + check_key(key))

    def _date(self) -> str:
        return formatdate(self._clock.wall_ms() / 1000, usegmt=True)

    async def send(
        self,
        operation: str,
        key: str,
        *,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        body: BodyOfParts | None = None,
        size: int = 0,
    ) -> Answer:
        """The answer of success; every other one is an error. With `query` it is about the container or the account."""
        signature, said = await self._identity.signature(), await self._identity.headers()
        if query is None:
            target = f"{self._container}/{quoted(self.name(key))}"
        else:
            target = self._container if query["restype"] == "container" else self._service
        parameters = "&".join(filter(None, (urlencode(query or {}, quote_via=quote), signature)))
        method, what = _METHODS[operation], f"operation={operation} bucket={self.shown} key={key}"
        request = StoreRequest(
            method,
            URL(f"{target}?{parameters}" if parameters else target, encoded=True),
            what,
            {
                **said,
                "x-ms-version": VERSION,
                "x-ms-date": self._date(),
                "User-Agent": "headrace",
                **({"Content-Type": body.content_type} if body is not None else {}),
                **(headers or {}),
            },
            body,
            size,
            changes=method in _CHANGING,
            limit=OBJECT_BYTES_MAX if operation == "get" else LONGER_PAGE * ANSWER_BYTES_MAX,
        )
        answer = await self._http.send(request)
        if answer.status in _DONE:
            return answer
        code = answer.headers.get("x-ms-error-code", "")[:CODE_CHARS_MAX]
        text = f"store refused: {what} status={answer.status} code={code}"
        kind = refusal_kind(code, answer.status)
        if answer.status == HTTPStatus.UNAUTHORIZED and self._identity.refused(said.get("Authorization", signature)):
            kind = UnavailableError
        if kind is InvalidError:
            text += f" check={self._check(code, answer.status)}"
        raise refusal(kind, text, answer, changes=request.changes)

    def _check(self, code: str, status: int) -> str:
        """Return what may be wrong about a request that was refused."""
        if code == "AuthorizationFailure":
            return f"{self._identity.check()}; and the account's firewall"
        if found := _CHECKS.get(code) or _CHECKS.get(str(status)):
            return found
        return self._identity.check() if status == HTTPStatus.FORBIDDEN else _CHECK_ANYTHING


_METHODS = {"put": "PUT", "get": "GET", "head": "HEAD", "list": "GET", "delete": "DELETE", "ask": "GET"}
_CHANGING = ("PUT", "DELETE")
_DONE = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED, HTTPStatus.PARTIAL_CONTENT)
_BY_CODE: dict[str, type[HeadraceError]] = {
    "BlobAlreadyExists": AlreadyExistsError,
    "ConditionNotMet": AlreadyExistsError,
    "ContainerBeingDeleted": UnavailableError,
    "ContainerNotFound": InvalidError,
    "Crc64Mismatch": CorruptError,
    "InvalidRange": CorruptError,
    "Md5Mismatch": CorruptError,
    "ResourceNotFound": InvalidError,
    "ServerBusy": ThrottledError,
}
_BY_STATUS: dict[int, type[HeadraceError]] = {
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.REQUEST_TIMEOUT: UnavailableError,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: CorruptError,
    HTTPStatus.TOO_MANY_REQUESTS: ThrottledError,
    HTTPStatus.NOT_IMPLEMENTED: InvalidError,
}
_CHECK_ROLE = "the role of this identity: it needs Storage Blob Data Contributor on the container"
_CHECKS: dict[str, str] = {
    "401": "the identity, its tenant, and this machine's clock",
    "AccountIsDisabled": "the account",
    "AuthenticationFailed": f"{KEY_VARIABLE} or {SAS_VARIABLE}, the account's name, and this machine's clock",
    "BlobImmutableDueToPolicy": "the container's immutability policy: Headrace deletes its files",
    "ContainerNotFound": "the container's name, and the account's",
    "InvalidAuthenticationInfo": "the identity, its tenant, and this machine's clock",
    "KeyBasedAuthenticationNotPermitted": f"the account allows no keys: unset {KEY_VARIABLE}, and give an identity",
    "ResourceNotFound": "the account's name",
    "ResourceTypeMismatch": "the account's hierarchical namespace: a folder has this name",
}
_CHECK_ANYTHING = "account, container and azure.endpoint"


def refusal_kind(code: str, status: int) -> type[HeadraceError] | None:
    """The error's class; None for a failure inside the store, or of a proxy, which may or may not have acted."""
    if kind := _BY_CODE.get(code) or _BY_STATUS.get(status):
        return kind
    return None if status >= HTTPStatus.INTERNAL_SERVER_ERROR else InvalidError


def quoted(name: str) -> str:
    """Return an object's name as it is in a path."""
    return quote(name, safe="/-_.~")
