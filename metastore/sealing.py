"""Values that are stored encrypted, under keys that the metastore does not have: metadata.secret.keys.

Place: under metastore/log/scram_keys.py (keys of users) and metastore/postgres/cluster/cluster.py (the zone secret).
Invariant: the first key seals, every key opens. A sealed value opens only in the context in which it was sealed, so it
cannot be moved to another user or cluster. Decision 58.
Form: "HRS1" · id of the key, 8 bytes · nonce, 12 bytes · AES-256-GCM of the value, with the context as associated data.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace.config.errors import ConfigError
from headrace.storage.errors import InvalidError

KEY_BYTES = 32
_MAGIC, _ID_BYTES, _NONCE_BYTES, _TAG_BYTES = b"HRS1", 8, 12, 16
_HEAD_BYTES = len(_MAGIC) + _ID_BYTES + _NONCE_BYTES
SMALLEST = _HEAD_BYTES + KEY_BYTES + _TAG_BYTES
"""Bytes of a sealed value: it is longer than any secret of 32 bytes in clear."""


class Sealing:
    """The keys of one process; with none it opens nothing and seals nothing."""

    def __init__(self, keys: str | None) -> None:
        """`keys`: 32 bytes each in base64, separated by commas or white space. ConfigError for another form."""
        self._keys = [_key(text) for text in re.split(r"[,\s]+", keys or "") if text]
        self._by_id = {_id(key): AESGCM(key) for key in self._keys}

    def __bool__(self) -> bool:
        """Return whether it has a key."""
        return bool(self._keys)

    def seal(self, value: bytes, *context: str) -> bytes:
        """Seal under the first key. InvalidError without one."""
        if not self._keys:
            raise InvalidError("metadata.secret.keys is not set: nothing can be sealed")
        key_id, nonce = _id(self._keys[0]), secrets.token_bytes(_NONCE_BYTES)
        return _MAGIC + key_id + nonce + self._by_id[key_id].encrypt(nonce, value, _associated(context))

    def open(self, sealed: bytes, *context: str) -> bytes:
        """InvalidError if the key is missing, or if the value was changed or is of another context."""
        key_id, nonce = sealed[len(_MAGIC) :][:_ID_BYTES], sealed[_HEAD_BYTES - _NONCE_BYTES : _HEAD_BYTES]
        cipher = self._by_id.get(key_id)
        if cipher is None:
            raise InvalidError(f"metadata.secret.keys lacks the key of a secret of the cluster: key_id={key_id.hex()}")
        try:
            return cipher.decrypt(nonce, sealed[_HEAD_BYTES:], _associated(context))
        except InvalidTag as error:
            raise InvalidError(
                f"a secret of the cluster was changed, or is another's: context={','.join(context)}"
            ) from error

    def is_current(self, value: bytes) -> bool:
        """Return whether it is sealed under the first key."""
        return is_sealed(value) and value[len(_MAGIC) :].startswith(_id(self._keys[0]))


def is_sealed(value: bytes) -> bool:
    """Return the is sealed by its form; of values that are at most 32 bytes in clear."""
    return len(value) >= SMALLEST and value.startswith(_MAGIC)


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError("metadata.secret.keys: not 32 bytes in base64 each (openssl rand -base64 32)")
    return key


def _id(key: bytes) -> bytes:
    """Return the id of a key: a hash that does not reveal the key, because the key is random."""
    return hashlib.sha256(b"headrace key id\0" + key).digest()[:_ID_BYTES]


def _associated(context: tuple[str, ...]) -> bytes:
    return b"\0".join(part.encode() for part in context)
