"""SCRAM-SHA-256 and SCRAM-SHA-512, the server's side.

Place: a mechanism of authentication.py.
Invariant: the password never leaves the client, and a message that was seen cannot be used again: both sides add to the
nonce. No channel binding, as in Kafka.
Own code on hmac and hashlib, because scramp refuses Kafka's extension for delegation tokens (tokenauth=true), and salts
below 12 bytes.
Source: RFC 5802, RFC 7677; KIP-48 (the extension).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

from headrace.agent.access.sasl.credentials import Credentials, KnownUser
from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed
from headrace.metastore.log.scram_keys import digest_of

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
