"""Authentication by password: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN, by the credentials that the metadata log has.

Place: mechanisms of authentication.py. Credentials has those of users and of delegation tokens.
Definitions: the form of a credential is what every client sees of it before the login: what kind of salt, and how
many iterations. Tools differ in it: Kafka's make about 25 characters of text, librdkafka 64 bytes.
Invariant: an unknown user costs the same time and gets messages of the same form as a known one. With SCRAM the
password never leaves the client, and a message that was seen cannot be used again: both sides add to the nonce. No
channel binding, as in Kafka. PLAIN has user and password in one message, for listeners with TLS: the agent keeps no
password, it derives the keys and forgets it.
Own code on hmac and hashlib, because scramp refuses Kafka's extension for delegation tokens (tokenauth=true), and
salts below 12 bytes.
Source: RFC 5802 (salt, iterations, StoredKey, ServerKey), RFC 7677, RFC 4616 (PLAIN); KIP-48 (a token's HMAC is its
password; the extension); KIP-554 (the salts of Kafka's tools).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
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


_LONGEST = 1024
"""Bytes of a password: more would buy time on this machine."""


class PlainExchange:
    """One authentication."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.user = ""

    async def step(self, message: bytes) -> bytes | Authenticated:
        parts = message.split(b"\0")
        if len(parts) != 3:
            raise AuthenticationFailed("malformed message")
        try:
            asked_as, name, password = (part.decode() for part in parts)
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("a message is not UTF-8") from error
        self.user = name
        if asked_as and asked_as != name:
            raise AuthenticationFailed("a user cannot act as another one")
        if not name or not password or len(parts[2]) > _LONGEST:
            raise AuthenticationFailed("no user, no password, or too long a password")
        known = await self._credentials.fitting(name, password)
        if known is None or known.principal is None:
            raise AuthenticationFailed("unknown user, or wrong password")
        return Authenticated(known.principal, credential=known.credential)


MESSAGE_BYTES_MAX = 8 * 1024
"""A name, a nonce and a proof. Kafka reads up to 512 KiB (sasl.server.max.receive.size)."""
_FIRST = re.compile(r"[ny],(?:a=([^,]*))?,(n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)((?:,[a-zA-Z]+=[^,]*)*))")
_FINAL = re.compile(r"(c=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,[a-zA-Z]+=[^,]*)*),p=([^,]+)")
WRONG_NONCE = (
    "the final message has another nonce than this agent sent, with any password: librdkafka before 2.6.1 does this,"
    " upgrade it"
)
_ESCAPE = re.compile(r"=(?!2C|3D)")


class ScramExchange:
    """One authentication."""

    def __init__(self, mechanism: str, credentials: Credentials, nonce: str) -> None:
        """`nonce`: random and printable, without commas."""
        self._mechanism, self._digest = mechanism, digest_of(mechanism)
        self._credentials = credentials
        self._nonce = nonce
        self._known: KnownUser | None = None
        self._first = self._binding = self.user = ""

    async def step(self, message: bytes) -> bytes | Authenticated:
        if len(message) > MESSAGE_BYTES_MAX:  # a connection keeps the first one until the second comes
            raise AuthenticationFailed("message too long")
        text = _text(message)
        if self._known is None:
            return await self._begin(text)
        return self._end(text, self._known)

    async def _begin(self, text: str) -> bytes:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("malformed first message")
        asked_as, bare, escaped, client_nonce, extensions = match.groups()
        name = self.user = _unescape(escaped)
        if asked_as and _unescape(asked_as) != name:
            raise AuthenticationFailed("a user cannot act as another one")
        if ",tokenauth=true" in extensions:
            self._known = await self._credentials.token(self._mechanism, name)
        else:
            self._known = self._credentials.user(self._mechanism, name)
        keys = self._known.keys
        self._nonce = client_nonce + self._nonce
        self._binding = text[: len(text) - len(bare)]
        answer = f"r={self._nonce},s={base64.b64encode(keys.salt).decode()},i={keys.iterations}"
        self._first = f"{bare},{answer}"
        return answer.encode()

    def _end(self, text: str, known: KnownUser) -> Authenticated:
        match = _FINAL.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("malformed final message")
        without_proof, binding, nonce, proof = match.groups()
        signed = f"{self._first},{without_proof}".encode()
        signature = hmac.digest(known.keys.stored_key, signed, self._digest)
        shown = _decoded(proof)
        if len(shown) != len(signature):
            raise AuthenticationFailed("proof of a wrong length")
        client_key = bytes(a ^ b for a, b in zip(signature, shown, strict=True))
        fits = hmac.compare_digest(hashlib.new(self._digest, client_key).digest(), known.keys.stored_key)
        is_fresh = hmac.compare_digest(nonce.encode(), self._nonce.encode())
        if not is_fresh:
            raise AuthenticationFailed(WRONG_NONCE)
        if known.principal is None or not (fits and _decoded(binding) == self._binding.encode()):
            raise AuthenticationFailed("unknown user, or wrong password")
        server_signature = hmac.digest(known.keys.server_key, signed, self._digest)
        answer = b"v=" + base64.b64encode(server_signature)
        return Authenticated(known.principal, answer, known.expires_ms, known.credential, known.token_id)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("a message is not UTF-8") from error


def _unescape(name: str) -> str:
    if _ESCAPE.search(name):
        raise AuthenticationFailed("malformed user name")
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AuthenticationFailed("malformed base64") from error
