"""What the server needs of a SCRAM password: StoredKey and ServerKey, derived from the salted password.

Place: under replay.py, which derives them when the log still has salted passwords, and the request that sets passwords.
Invariant: the keys only check a login; with the salted password of KIP-631's record one can log in. Both can be
searched for a weak password.
Source: RFC 5802, section 3.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log.kip631_records import CredentialInfo, UserScramCredentialRecord
from headrace.metastore.log.own_records import ScramKeys, UserScramKeysRecord

MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers."""
DIGESTS = {1: "sha256", 2: "sha512"}
"""Digests by the mechanism's number."""


def digest_of(mechanism: str) -> str:
    """The hash function of a mechanism."""
    return DIGESTS[MECHANISMS[mechanism]]


def scram_keys(mechanism: int, salt: bytes, iterations: int, salted_password: bytes) -> ScramKeys:
    """The keys of a salted password."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    return ScramKeys(
        mechanism=mechanism,
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(digest, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", digest),
    )


def as_keys(credential: CredentialInfo | ScramKeys) -> ScramKeys:
    """Return the keys of a credential in either form."""
    if isinstance(credential, ScramKeys):
        return credential
    return scram_keys(credential.mechanism, credential.salt, credential.iterations, credential.salted_password)


def credentials_record(user: str, held: Sequence[CredentialInfo | ScramKeys]) -> MetadataRecord:
    """All of a user's credentials. They have one form: an image has salted passwords, or it has none."""
    keys = tuple(each for each in held if isinstance(each, ScramKeys))
    if keys:
        return UserScramKeysRecord(user_name=user, keys=keys)
    infos = tuple(each for each in held if isinstance(each, CredentialInfo))
    return UserScramCredentialRecord(user_name=user, credential_infos=infos)
