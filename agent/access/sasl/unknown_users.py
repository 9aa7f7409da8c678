"""What a client gets to see of a user who does not exist: a salt and iterations as stored credentials have them.

Place: asked by credentials.py for each name without a credential of the mechanism. Pure.
Definitions: the form of a credential is what every client sees of it before the login: what kind of salt, and how many
iterations. Tools differ in it: Kafka's make about 25 characters of text, librdkafka 64 bytes.
Invariant: forms of unknown names are as frequent as those of stored credentials, so that no form says that a user
exists. The same name gets the same salt on every agent, for as long as the secret stays. Its form stays as long as the
shares of the forms do; they move with each user who is added or removed, and then few names change theirs.
What stays visible is in SECURITY.md.
Source: RFC 5802 (salt, iterations); KIP-554 (the salts of Kafka's tools).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from headrace.metastore.log.kip631_records import CredentialInfo
from headrace.metastore.log.own_records import ScramKeys
from headrace.metastore.log.scram_keys import MECHANISMS, digest_of, scram_keys

FORMS_MAX = 16
"""The most frequent forms; others are not imitated."""
SALT_BYTES_MAX = 1024
"""Nor are longer salts: they would cost an unknown user's login as much."""
_TEXT_BITS = 130
_TEXT = re.compile(rb"[0-9a-z]{20,26}")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"

Stored = Mapping[str, tuple[CredentialInfo | ScramKeys, ...]]


class Form(NamedTuple):
    """`salt_bytes` 0: text as Kafka's tools make it."""

    salt_bytes: int
    iterations: int


KAFKA_FORM = Form(0, 4096)
"""The form of Kafka's tools, and of unknown users while no user has a credential of the mechanism."""


class UnknownUsers:
    """Unknown users for one agent. `pepper`: the same on all agents, and secret."""

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
        """Return a random number between 0 and 1, both excluded."""
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
