"""The SCRAM credentials of users and of delegation tokens, as the metadata log has them.

Place: asked by scram.py and plain.py.
Definitions: the form of a credential is what every client sees of it before the login: what kind of salt, and how many
iterations. Tools differ in it: Kafka's make about 25 characters of text, librdkafka 64 bytes.
Invariant: an unknown user costs the same time and gets messages of the same form as a known one.
Source: RFC 5802 (salt, iterations, StoredKey, ServerKey); KIP-48 (a token's HMAC is its password); KIP-554 (the salts
of Kafka's tools).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed
from headrace.metastore.log.delegation_tokens import is_expired, token_hmac
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo
from headrace.metastore.log.own_records import ScramKeys
from headrace.metastore.log.scram_keys import MECHANISMS, SealedKeys, as_keys, digest_of, scram_keys
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError

ITERATIONS = 4096
"""Number of iterations of delegation tokens, also of those that do not exist."""
FORMS_MAX = 16
"""The most frequent forms; others are not imitated."""
SALT_BYTES_MAX = 1024
"""Nor are longer salts: they would cost an unknown user's login as much."""
_TEXT_BITS = 130
_TEXT = re.compile(rb"[0-9a-z]{20,26}")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Stored = Mapping[str, tuple[CredentialInfo | ScramKeys, ...]]


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


class Form(NamedTuple):
    """`salt_bytes` 0: text as Kafka's tools make it."""

    salt_bytes: int
    iterations: int


KAFKA_FORM = Form(0, 4096)
"""Iterations of Kafka's tools, and of unknown users while no user has a credential of the mechanism."""


class UnknownUsers:
    """What a client gets to see of a user who does not exist: a salt and iterations as stored credentials have them.

    For one agent. `pepper`: the same on all agents, and secret. Forms of unknown names are as frequent as those of
    stored credentials, so that no form says that a user exists. The same name gets the same salt on every agent, for as
    long as the secret stays. Its form stays as long as the shares of the forms do; they move with each user who is
    added or removed, and then few names change theirs. What stays visible is in SECURITY.md.
    """

    def __init__(self, pepper: bytes) -> None:
        self._pepper = pepper
        self._seen: Stored = {}
        self._forms: dict[int, list[tuple[Form, int]]] = {}

    def look(self, stored: Stored) -> None:
        """Count the forms of the stored credentials. For each login, also of users who exist: it takes as long."""
        if stored is not self._seen and stored != self._seen:
            found: dict[int, Counter[Form]] = {}
            for credentials in stored.values():
                for each in credentials:
                    if len(each.salt) <= SALT_BYTES_MAX:
                        found.setdefault(each.mechanism, Counter())[_form(each)] += 1
            self._forms = {mechanism: counts.most_common(FORMS_MAX) for mechanism, counts in found.items()}
        self._seen = stored

    def keys(self, mechanism: str, name: str) -> ScramKeys:
        """Keys of no password, in the form that this name gets."""
        number = MECHANISMS[mechanism]
        form = self._chosen(number, name)
        salt = self._text_salt(number, name) if form.salt_bytes == 0 else self._salt(number, name, form.salt_bytes)
        nothing = hmac.digest(self._pepper, b"no password\0" + name.encode(), digest_of(mechanism))
        return scram_keys(number, salt, form.iterations, nothing)

    def _chosen(self, mechanism: int, name: str) -> Form:
        """A form with the probability of its share; a changed share moves few names (weighted rendezvous hashing)."""
        forms = self._forms.get(mechanism)
        if not forms:
            return KAFKA_FORM
        return max(forms, key=lambda each: -each[1] / math.log(self._chance(mechanism, each[0], name)))[0]

    def _chance(self, mechanism: int, form: Form, name: str) -> float:
        """Return a number between 0 and 1, both excluded: the same one whenever the name is asked for."""
        said = f"form\0{mechanism}\0{form.salt_bytes}\0{form.iterations}\0{name}".encode()
        drawn = int.from_bytes(hmac.digest(self._pepper, said, "sha256")[:6], "big")
        return (drawn + 0.5) / 2**48

    def _salt(self, mechanism: int, name: str, size: int) -> bytes:
        seed = hmac.digest(self._pepper, b"salt\0%d\0" % mechanism + name.encode(), "sha256")
        return hashlib.shake_256(seed).digest(size)

    def _text_salt(self, mechanism: int, name: str) -> bytes:
        """A random number of 130 bits to the base 36, as Java prints it."""
        left = int.from_bytes(self._salt(mechanism, name, 17), "big") >> (17 * 8 - _TEXT_BITS)
        digits = ""
        while left:
            left, digit = divmod(left, 36)
            digits = _DIGITS[digit] + digits
        return digits.encode()


def _form(credential: CredentialInfo | ScramKeys) -> Form:
    is_text = _TEXT.fullmatch(credential.salt) is not None
    return Form(0 if is_text else len(credential.salt), credential.iterations)
