"""What the doctor says of one thing: ok, unknown, warn or bad, what was found, what to do.

Place: made by the judges of this package, printed by command.py. What to do about an error of Postgres or the bucket
is here, by what the server said; audit and the log print the same commands at damage.
Invariant: a finding that is not ok says what to do. No finding has a secret: addresses are shown without passwords.
Definitions: Postgres' messages have the language of the server, so codes are looked for first; without a match the
advice is general.
Invariant of commands at damage: each line runs as it is, but for the addresses of metastore and bucket.
"""

from __future__ import annotations

import enum
import re
import shlex
from dataclasses import dataclass

from headrace.config.addresses import azure_place


class Level(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    UNKNOWN = "unknown"
    """It had no answer in time, or cannot be seen from here or with these rights: it may be in order or not."""
    WARN = "warn"
    """It works, and something will hurt: later, under load or in a failure."""
    BAD = "bad"
    """It does not work, or acknowledged records may be lost."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `to_do` is empty for OK only."""

    area: str
    check: str
    level: Level
    found: str
    to_do: str = ""

    def __post_init__(self) -> None:
        if (self.level is Level.OK) == bool(self.to_do):
            raise ValueError(f"a finding says what to do unless it is ok: {self}")


@dataclass(frozen=True, slots=True)
class Area:
    """Makes the findings of one area."""

    name: str

    def ok(self, check: str, found: str) -> Finding:
        """Nothing to do."""
        return Finding(self.name, check, Level.OK, found)

    def unknown(self, check: str, why: str, to_do: str) -> Finding:
        """It was not seen."""
        return Finding(self.name, check, Level.UNKNOWN, f"not known: {why}", to_do)

    def warn(self, check: str, found: str, to_do: str) -> Finding:
        """Something will hurt."""
        return Finding(self.name, check, Level.WARN, found, to_do)

    def bad(self, check: str, found: str, to_do: str) -> Finding:
        """Something does not work, or records may be lost."""
        return Finding(self.name, check, Level.BAD, found, to_do)


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
    "AuthenticationFailed": "correct the account's key or signature, or this machine's clock",
    "ContainerNotFound": "correct bucket, or create the container",
    "InvalidAuthenticationInfo": "correct the identity and its tenant, or this machine's clock",
    "KeyBasedAuthenticationNotPermitted": "unset AZURE_STORAGE_KEY, and give agents and compactors an identity",
    "NoSuchBucket": "correct bucket and the endpoint, or create the bucket",
    "ResourceNotFound": "correct the account in bucket",
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
AZURE_ROLE, GOOGLE_ROLE = "Storage Blob Data Contributor", "Storage Object User"


def right(bucket: str, check: str) -> str:
    """Return the right that a check needs on the store of a bucket's address."""
    if azure_place(bucket) is not None:
        return f"what the role {AZURE_ROLE} has (a signature: read, write, list, delete)"
    return f"what the role {GOOGLE_ROLE} has" if bucket.startswith("gs://") else ACTIONS[check]


NETWORK = "check metastore.url, the server and the network"
STORE = "check credentials, rights, address and network of the bucket"
_CODE = re.compile(r"code=(\w+)")
_OF_VARIABLES = {
    "AZURE_STORAGE_KEY": "correct the account's key (AZURE_STORAGE_KEY), or the account in bucket",
    "AZURE_STORAGE_SAS_TOKEN": "give agents and compactors a signature (AZURE_STORAGE_SAS_TOKEN) of this account, with"
    " the rights to read, write, list and delete",
}
_AZURE_VARIABLE = re.compile(rf"check=({'|'.join(_OF_VARIABLES)})\b")


def of_postgres(text: str, otherwise: str = NETWORK) -> str:
    """Return what to do about this error of Postgres or of a connection to it."""
    return next((to_do for pattern, to_do in _POSTGRES if re.search(pattern, text)), otherwise)


def of_bucket(text: str, check: str) -> str:
    """Return what to do about an error of the store in this check."""
    code = found.group(1) if (found := _CODE.search(text)) else ""
    if code in _BUCKET:
        return _BUCKET[code]
    if role := next((role for role in (AZURE_ROLE, GOOGLE_ROLE) if role in text), None):
        return f"give the role {role} on this bucket to the identity of agents and compactors"
    if found := _AZURE_VARIABLE.search(text):
        return _OF_VARIABLES[found.group(1)]
    if (code in ("AccessDenied", "403") or "status=403" in text) and check in ACTIONS:
        return f"allow {ACTIONS[check]} to agents and compactors, or give them keys that are allowed to"
    if "ClientConnectorDNSError" in text:
        return "correct the account or host in bucket and in the endpoint, or this machine's DNS"
    if "No space left" in text:
        return "make room on the disk: every produce request is refused"
    if "certificate" in text:
        return "renew the store's certificate, or name its authority (AWS_CA_BUNDLE for S3, else SSL_CERT_FILE)"
    return STORE


def ways_past(topic: str, partition_index: int, offset: int) -> str:
    """Return what repairs damage, or goes past it."""
    place = f"{shlex.quote(topic)} --partition {partition_index} --offset {offset}"
    return f"headrace damage repair {place}; if that finds nothing: headrace damage skip {place}"
