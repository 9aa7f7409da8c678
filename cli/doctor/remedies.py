"""What to do about an error of Postgres, or of the bucket: by what the server said.

Place: under the areas postgres and bucket of `headrace doctor`. Pure.
Definitions: Postgres' messages have the language of the server, so codes are looked for first; without a match the
advice is general.
"""

from __future__ import annotations

import re

_POSTGRES = (
    (r"password authentication failed|no password supplied|sqlstate=28P01", "correct the password of metastore.url"),
    (
        r"too many clients|remaining connection slots|too many connections|sqlstate=53300",
        "raise max_connections (or the role's CONNECTION LIMIT), end sessions, or lower metastore.pool.size",
    ),
    (r"no pg_hba\.conf entry|sqlstate=28000", "let this machine and role in, in the server's pg_hba.conf"),
    (r"certificate", "renew the server's certificate, or correct sslrootcert and the host of metastore.url"),
    (r"database \S+ does not exist|sqlstate=3D000", "correct the database of metastore.url, or create it"),
    (r"role \S+ does not exist", "correct the user of metastore.url, or create the role"),
    (r"starting up|shutting down|recovery mode|sqlstate=57P03", "wait until the server is up, and look into its log"),
    (r"sqlstate=53100|No space left", "make room on Postgres' disk"),
    (r"sqlstate=42501", "headrace postgres setup"),
    (
        r"sqlstate=(26000|42P05|08P01)|statement pooling",
        "a pooler in front of Postgres needs pool_mode=transaction or session, and max_prepared_statements > 0",
    ),
)
_BUCKET = {
    "AuthorizationHeaderMalformed": "correct s3.region",
    "ExpiredToken": "renew the session token (AWS_SESSION_TOKEN), or let the agents take keys from a role",
    "InvalidAccessKeyId": "the access key is not known or was revoked: give agents and compactors a new one",
    "InvalidToken": "renew the session token (AWS_SESSION_TOKEN)",
    "XAdminUserNotFound": "the access key is not known or was revoked: give agents and compactors a new one",
    "NoSuchBucket": "correct bucket and s3.endpoint, or create the bucket",
    "PermanentRedirect": "correct s3.region",
    "RequestTimeTooSkewed": "set this machine's clock (NTP): S3 refuses requests that are 15 minutes off",
    "SignatureDoesNotMatch": "correct the secret key (AWS_SECRET_ACCESS_KEY)",
    "SlowDown": "ask the store's provider for a higher request rate",
}
ACTIONS = {
    "put": "s3:PutObject",
    "get": "s3:GetObject",
    "list": "s3:ListBucket",
    "conditional put": "s3:PutObject",
    "delete": "s3:DeleteObject",
    "cluster": "s3:GetObject",
}
"""The right of S3 that each check needs."""
NETWORK = "check metastore.url, the server and the network"
STORE = "check credentials, rights, address and network of the bucket"
_CODE = re.compile(r"code=(\w+)")


def of_postgres(text: str, otherwise: str = NETWORK) -> str:
    """Return what to do about this error of Postgres or of a connection to it."""
    return next((to_do for pattern, to_do in _POSTGRES if re.search(pattern, text)), otherwise)


def of_bucket(text: str, check: str) -> str:
    """Return what to do about an error of the store in this check."""
    code = found.group(1) if (found := _CODE.search(text)) else ""
    if code in _BUCKET:
        return _BUCKET[code]
    if (code in ("AccessDenied", "403") or "status=403" in text) and check in ACTIONS:
        return f"allow {ACTIONS[check]} to agents and compactors, or give them keys that are allowed to"
    if "No space left" in text:
        return "make room on the disk: every produce request is refused"
    if "certificate" in text:
        return "renew the store's certificate, or set AWS_CA_BUNDLE to the authority that signed it"
    return STORE
