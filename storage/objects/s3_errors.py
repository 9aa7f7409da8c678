"""Maps failed S3 requests: every error of botocore and aiohttp becomes an error of storage/errors.py.

Place: around each request of S3Store.
Invariant: UnavailableError and ThrottledError are raised only if the request certainly changed
nothing. A put or delete that may have reached the store and got no definite refusal is
OutcomeUnknownError: that includes 500, 502 and 504, which a proxy or a store may send after it acted.
"""

from __future__ import annotations

import socket
from http import HTTPStatus

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    IncompleteReadError,
    MetadataRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from headrace.config.addresses import without_logins
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects.http_requests import CODE_CHARS_MAX

REQUEST_FAILURES = (BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, OSError, TimeoutError)
"""All exceptions that a request may raise and that are not a bug of this code."""

_NEVER_SENT = (
    ConnectTimeoutError,
    CredentialRetrievalError,
    MetadataRetrievalError,
    ProxyConnectionError,
    SSLError,
    TokenRetrievalError,
    aiohttp.ClientConnectorError,
    socket.gaierror,
)
_MISCONFIGURED: dict[type[Exception], str] = {
    NoCredentialsError: "the AWS credential chain: no credentials were found",
    PartialCredentialsError: "the AWS credential chain: key or secret is missing",
    NoRegionError: "s3.region",
    ParamValidationError: "the bucket's name",
    aiohttp.ClientConnectorCertificateError: "the server's certificate, or AWS_CA_BUNDLE",
}

_BY_CODE: dict[str, type[HeadraceError]] = {
    "BadDigest": CorruptError,
    "ConditionalRequestConflict": UnavailableError,
    "IncompleteBody": CorruptError,
    "InvalidRange": CorruptError,
    "NoSuchBucket": InvalidError,
    "OperationAborted": UnavailableError,
    "RequestTimeout": UnavailableError,
    "ServiceUnavailable": UnavailableError,
    "XAdminUserNotFound": InvalidError,  # of versitygw, with status 404: nothing is known of the object
    "XAmzContentChecksumMismatch": CorruptError,
}
_BY_STATUS: dict[int, type[HeadraceError]] = {
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.REQUEST_TIMEOUT: UnavailableError,
    HTTPStatus.PRECONDITION_FAILED: AlreadyExistsError,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: CorruptError,
    HTTPStatus.TOO_MANY_REQUESTS: ThrottledError,
    HTTPStatus.NOT_IMPLEMENTED: InvalidError,
    HTTPStatus.SERVICE_UNAVAILABLE: ThrottledError,
}
_CHECKS: dict[str, str] = {
    "301": "s3.region",
    "302": "s3.endpoint: no redirect is followed",
    "307": "s3.region, and s3.endpoint: no redirect is followed",
    "403": "the AWS credentials, and their policy for this bucket and prefix",
    "501": "whether the server supports this request (conditional puts need If-None-Match)",
    "AuthorizationHeaderMalformed": "s3.region",
    "ExpiredToken": "the AWS session token: it expired, and no source renewed it",
    "InvalidAccessKeyId": "the AWS credentials",
    "NoSuchBucket": "the bucket's name, and s3.endpoint",
    "PermanentRedirect": "s3.region",
    "RequestTimeTooSkewed": "this machine's clock",
    "SignatureDoesNotMatch": "the AWS secret key",
    "XAdminUserNotFound": "the AWS credentials",
}
_CHECK_ROLE = "the AWS role, its trust policy, and the token in AWS_WEB_IDENTITY_TOKEN_FILE"
_CHECK_ANYTHING = "bucket, s3.endpoint, s3.region and s3.path.style"


def lacks_delete_objects(error: BaseException | None) -> bool:
    """Return whether a refused DeleteObjects says that the store has no such request, or takes it only with
    Content-MD5.
    """
    if not isinstance(error, ClientError):
        return False
    refusal, status = error.response.get("Error", {}), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    said = f"{refusal.get('Code')} {refusal.get('Message')}".lower()
    return (
        "content-md5" in said
        or "contentmd5" in said
        or status in (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED)
    )


def translate(error: Exception, request: str, *, in_doubt: bool) -> HeadraceError:
    """The error to raise for `error`.

    `request` names operation, bucket and key. `in_doubt`: the request changes the store and may have reached it.
    """
    if isinstance(error, ClientError):
        return _refused(error, request, in_doubt)
    cause = _cause(error)
    text = f"store unreachable: {request} error={type(cause).__name__}: {without_logins(str(cause))}"
    for kind, check in _MISCONFIGURED.items():
        if isinstance(cause, kind):
            return InvalidError(f"{text} check={check}")
    if isinstance(cause, ResponseParserError):
        text = f"answer is none of S3's: {request}"
        return OutcomeUnknownError(text) if in_doubt else CorruptError(text)
    if isinstance(cause, (aiohttp.ClientConnectorDNSError, socket.gaierror)):
        return UnavailableError(f"{text} check=s3.endpoint and s3.path.style")
    if isinstance(cause, _NEVER_SENT):
        return UnavailableError(text)
    if isinstance(cause, (IncompleteReadError, aiohttp.ClientPayloadError)) and not in_doubt:
        return CorruptError(f"truncated body: {request} error={cause}")
    return OutcomeUnknownError(text) if in_doubt else UnavailableError(text)


def _cause(error: Exception) -> Exception:
    """The error inside an aiobotocore error, which hides whether the request was sent."""
    if isinstance(error, (ConnectionClosedError, EndpointConnectionError, SSLError)):
        cause = error.kwargs.get("error")
        if isinstance(cause, Exception):
            return cause
    return error


def _refused(error: ClientError, request: str, in_doubt: bool) -> HeadraceError:
    code = str(error.response.get("Error", {}).get("Code", ""))[:CODE_CHARS_MAX]
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = f"store refused: {request} status={status} code={code}"
    kind = _kind(code, status)
    if kind is InvalidError and error.operation_name.startswith("AssumeRole"):
        return InvalidError(f"{text} check={_CHECK_ROLE}")
    if kind is InvalidError:
        return InvalidError(f"{text} check={_CHECKS.get(code) or _CHECKS.get(str(status)) or _CHECK_ANYTHING}")
    if kind is None:
        return OutcomeUnknownError(text) if in_doubt else UnavailableError(text)
    return kind(text)


def _kind(code: str, status: int) -> type[HeadraceError] | None:
    """The error's class; None for a failure inside the store, which may or may not have acted."""
    if code.startswith(("SlowDown", "Throttl")):
        return ThrottledError
    if kind := _BY_CODE.get(code) or _BY_STATUS.get(status):
        return kind
    return None if status >= HTTPStatus.INTERNAL_SERVER_ERROR else InvalidError
