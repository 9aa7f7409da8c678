"""The SCRAM credentials of users and of delegation tokens, as the metadata log has them.

Place: asked by scram.py and plain.py.
Invariant: an unknown user costs the same time and gets messages of the same form as a known one (unknown_users.py).
Source: RFC 5802 (StoredKey, ServerKey); KIP-48 (a token's HMAC is its password).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple

from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed
from headrace.agent.access.sasl.unknown_users import UnknownUsers
from headrace.metastore.log.delegation_tokens import is_expired, token_hmac
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo
from headrace.metastore.log.own_records import ScramKeys
from headrace.metastore.log.scram_keys import MECHANISMS, as_keys, digest_of, scram_keys
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError

ITERATIONS = 4096
"""Number of iterations of delegation tokens, also of those that do not exist."""


class KnownUser(NamedTuple):
    """`principal` None: there is no such user, and `keys` are of no password."""

    principal: str | None
    keys: ScramKeys
    credential: object = None
    """What the metadata log has, opened."""
    expires_ms: int | None = None
    token_id: str | None = None


class Credentials:
    """Credentials for one agent."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        token_secret: Callable[[], str | None],
        clock: Clock,
        pepper: bytes,
        sealed_keys: SealedKeys,
    ) -> None:
        """`token_secret`: delegation.token.secret.key. `pepper`: the same on all agents, and secret: salts of unknown
        users depend on it."""
        self._image, self._token_secret, self._clock, self._pepper = image, token_secret, clock, pepper
        self._sealed_keys = sealed_keys
        self._unknown = UnknownUsers(pepper)

    def user(self, mechanism: str, name: str) -> KnownUser:
        """The user's credential for this mechanism. AuthenticationFailed if its key is not in metadata.secret.keys."""
        stored = self._image().scram_credentials
        self._unknown.look(stored)
        for info in stored.get(name, ()):
            if info.mechanism == MECHANISMS[mechanism]:
                keys = self._opened(name, info)
                return KnownUser(f"User:{name}", keys, keys)
        return KnownUser(None, self._unknown.keys(mechanism, name))

    async def token(self, mechanism: str, token_id: str) -> KnownUser:
        """The delegation token's; its principal is the owner."""
        token, secret = self._image().delegation_tokens.get(token_id), self._token_secret()
        if token is None or secret is None or is_expired(token, self._clock.wall_ms()):
            return KnownUser(None, self._no_token(mechanism, token_id))
        password = base64.b64encode(token_hmac(secret, token_id))
        salt = self._salt(token_id)
        salted = await salted_password(digest_of(mechanism), password, salt, ITERATIONS)
        keys = scram_keys(MECHANISMS[mechanism], salt, ITERATIONS, salted)
        return KnownUser(token.owner, keys, token_id, token.expiration_timestamp, token_id)

    def holds(self, authenticated: Authenticated) -> bool:
        """Return whether the credential by which a client authenticated is still in the log."""
        image, credential = self._image(), authenticated.credential
        if authenticated.token_id is not None:
            return authenticated.token_id in image.delegation_tokens
        if not isinstance(credential, ScramKeys):
            return True
        name = authenticated.principal.removeprefix("User:")
        try:
            return credential in [self._opened(name, held) for held in image.scram_credentials.get(name, ())]
        except AuthenticationFailed:
            return False

    async def fitting(self, name: str, password: str) -> KnownUser | None:
        """The user, by one of the credentials that this password fits."""
        fits = None
        for mechanism in MECHANISMS:
            known = self.user(mechanism, name)
            salted = await salted_password(
                digest_of(mechanism), password.encode(), known.keys.salt, known.keys.iterations
            )
            keys = scram_keys(MECHANISMS[mechanism], known.keys.salt, known.keys.iterations, salted)
            if hmac.compare_digest(keys.stored_key, known.keys.stored_key) and known.principal is not None:
                fits = known
        return fits

    def _opened(self, name: str, held: CredentialInfo | ScramKeys) -> ScramKeys:
        try:
            return self._sealed_keys.opened(name, as_keys(held))
        except InvalidError as error:
            raise AuthenticationFailed(str(error)) from error

    def _no_token(self, mechanism: str, token_id: str) -> ScramKeys:
        nothing = hmac.digest(self._pepper, b"no password\0" + token_id.encode(), digest_of(mechanism))
        return scram_keys(MECHANISMS[mechanism], self._salt(token_id), ITERATIONS, nothing)

    def _salt(self, name: str) -> bytes:
        return hmac.digest(self._pepper, b"salt\0" + name.encode(), "sha256")


async def salted_password(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword. In a thread: it takes milliseconds, and OpenSSL needs no interpreter lock for it."""
    return await asyncio.to_thread(hashlib.pbkdf2_hmac, digest, password, salt, iterations)
