"""What the server needs of a SCRAM password: StoredKey with ServerKey, derived from the salted one, sealed.

Place: under replay.py, which derives them when the log still has salted passwords; under the request that sets
passwords, `headrace storage` and the check of a login. The metadata log, its snapshots and the image have sealed
keys only.
Invariant: the keys only check a login; with the salted password of KIP-631's record one can log in. Both can be
searched for a weak password.
Source: RFC 5802, section 3.
Invariant of sealed keys: from level 1 of `metadata.secrets` on, each user that is written is sealed. A sealed
credential has both keys in the field `stored_key`, and an empty `server_key`. Mechanism, salt and iterations stay
readable.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import replace

from headrace.metastore.api.agents import SEALED_SECRETS
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo, FeatureLevelRecord, UserScramCredentialRecord
from headrace.metastore.log.own_records import ScramKeys, UserScramKeysRecord
from headrace.metastore.sealing import Sealing

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


OPENED_MAX = 4_096
"""Credentials that are kept opened, because every request of a client asks for its own."""


class SealedKeys:
    """Seals and opens the keys of one cluster's users."""

    def __init__(self, sealing: Sealing, cluster_id: str) -> None:
        self._sealing, self._cluster_id = sealing, cluster_id
        self._opened = functools.lru_cache(OPENED_MAX)(self._open)

    def sealed(self, image: MetadataImage, user: str, keys: ScramKeys) -> ScramKeys:
        """Return the keys as the cluster wants them to be written."""
        return self._seal(user, keys) if SEALED_SECRETS in image.features else keys

    def opened(self, user: str, keys: ScramKeys) -> ScramKeys:
        """Return the credential with both keys opened. InvalidError as Sealing.open."""
        return self._opened(user, keys) if _is_sealed(keys) else keys

    def due(self, image: MetadataImage) -> list[MetadataRecord]:
        """Return what seals every user under the first key; nothing if that is so already.

        The feature's record comes first: the secrets in the log before it are not needed any more, so that the
        controller drops it. Errors as change_feature's.
        """
        level = change_feature(image, SEALED_SECRETS, 1, allow_downgrade=False)
        users: list[MetadataRecord] = []
        for user, held in image.scram_credentials.items():
            keys = tuple(map(as_keys, held))
            if not all(_is_sealed(each) and self._sealing.is_current(each.stored_key) for each in keys):
                opened = [self.opened(user, each) for each in keys]
                users.append(UserScramKeysRecord(user_name=user, keys=tuple(self._seal(user, each) for each in opened)))
        if level is None and users:
            level = FeatureLevelRecord(name=SEALED_SECRETS, min_feature_level=1, max_feature_level=1)
        return [*([] if level is None else [level]), *users]

    def _seal(self, user: str, keys: ScramKeys) -> ScramKeys:
        both = keys.stored_key + keys.server_key
        return replace(keys, stored_key=self._sealing.seal(both, *self._context(user, keys)), server_key=b"")

    def _open(self, user: str, keys: ScramKeys) -> ScramKeys:
        both = self._sealing.open(keys.stored_key, *self._context(user, keys))
        half = len(both) // 2
        return replace(keys, stored_key=both[:half], server_key=both[half:])

    def _context(self, user: str, keys: ScramKeys) -> tuple[str, ...]:
        return "scram", self._cluster_id, str(keys.mechanism), user


def _is_sealed(keys: ScramKeys) -> bool:
    return not keys.server_key
