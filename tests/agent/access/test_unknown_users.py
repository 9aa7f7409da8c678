"""What a login shows of a name before the password: nothing that tells an unknown user from a known one."""

from __future__ import annotations

import base64
import hashlib
import random
import re
from collections import Counter

import pytest

from headrace.agent.access.sasl import passwords
from headrace.agent.access.sasl.passwords import FORMS_MAX, SALT_BYTES_MAX, Form, Stored, UnknownUsers
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import CredentialInfo
from tests.agent.access.test_sasl import ScramClient, World

pytestmark = pytest.mark.requirement("X2")
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
KAFKA_SALT = re.compile(rb"[0-9a-z]{20,26}")


def kafka_salt(rng: random.Random) -> bytes:
    """The same as Kafka's ScramFormatter: new BigInteger(130, random).toString(36)."""
    number, digits = rng.getrandbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


def user(salt: bytes, iterations: int = 4096, mechanism: int = 2) -> tuple[CredentialInfo, ...]:
    return (CredentialInfo(mechanism=mechanism, salt=salt, salted_password=b"p" * 64, iterations=iterations),)


def shown(unknown: UnknownUsers, name: str, mechanism: str = SHA_512) -> Form:
    keys = unknown.keys(mechanism, name)
    return Form(0 if KAFKA_SALT.fullmatch(keys.salt) else len(keys.salt), keys.iterations)


def looking_at(stored: Stored, pepper: bytes = b"pepper") -> UnknownUsers:
    unknown = UnknownUsers(pepper)
    unknown.look(stored)
    return unknown


@pytest.mark.parametrize("tool", ["kafka-configs", "librdkafka", "headrace"])
async def test_names_look_the_same_when_one_tool_made_all_users(tool: str) -> None:
    """By the messages of a real exchange; a classifier by salt and iterations would find the known ones."""
    rng = random.Random(1)
    make = {"kafka-configs": lambda: kafka_salt(rng), "librdkafka": lambda: rng.randbytes(64)}
    salt = make.get(tool, lambda: rng.randbytes(32))
    world = World()
    iterations = 8192
    world.image = MetadataImage(scram_credentials={f"known-{n}": user(salt(), iterations) for n in range(20)})
    seen: dict[str, set[tuple[bool, int | None, bytes]]] = {"known": set(), "nosuch": set()}
    for kind, number in ((kind, number) for kind in seen for number in range(20)):
        world.connect()
        await world.handshake(SHA_512)
        _, first, _ = await world.authenticate(ScramClient(SHA_512, f"{kind}-{number}", "pw").first())
        fields = dict(part.split(b"=", 1) for part in first.split(b","))
        raw = base64.b64decode(fields[b"s"])
        is_text = KAFKA_SALT.fullmatch(raw) is not None
        seen[kind].add((is_text, None if is_text else len(raw), fields[b"i"]))
    assert seen["nosuch"] == seen["known"]


def test_lengths_of_kafkas_salts_are_as_frequent() -> None:
    """A number of 130 bits has 25 or 26 digits, about 3 to 2; now and then fewer."""
    rng = random.Random(2)
    unknown = looking_at({"a": user(kafka_salt(rng))})
    own = Counter(len(unknown.keys(SHA_512, f"u{n}").salt) for n in range(2000))
    kafkas = Counter(len(kafka_salt(rng)) for _ in range(2000))
    for length in (25, 26):
        assert abs(own[length] - kafkas[length]) < 200


def test_forms_of_unknown_names_have_the_shares_of_stored_ones() -> None:
    rng = random.Random(3)
    stored: dict[str, tuple[CredentialInfo, ...]] = {f"k{n}": user(kafka_salt(rng)) for n in range(70)}
    stored |= {f"r{n}": user(rng.randbytes(64)) for n in range(20)}
    stored |= {f"s{n}": user(rng.randbytes(24), 16_384) for n in range(10)}
    unknown = looking_at(stored)
    found = Counter(shown(unknown, f"nosuch-{n}") for n in range(4000))
    assert found.keys() == {Form(0, 4096), Form(64, 4096), Form(24, 16_384)}
    for form, share in ((Form(0, 4096), 0.7), (Form(64, 4096), 0.2), (Form(24, 16_384), 0.1)):
        assert abs(found[form] / 4000 - share) < 0.03
    moved = looking_at(stored | {"new": user(rng.randbytes(64))})
    changed = sum(shown(unknown, f"nosuch-{n}") != shown(moved, f"nosuch-{n}") for n in range(4000))
    assert changed < 100, "a user more changes what few names show"
    assert looking_at({}).keys(SHA_512, "x") == looking_at({}).keys(SHA_512, "x")


def test_salts_are_stable_secret_and_separate() -> None:
    stored = {"a": user(b"x" * 32)}
    one, same, other = looking_at(stored), looking_at(stored), looking_at(stored, b"another pepper")
    assert one.keys(SHA_512, "u").salt == same.keys(SHA_512, "u").salt
    salts = [one.keys(SHA_512, "u"), one.keys(SHA_512, "v"), one.keys(SHA_256, "u"), other.keys(SHA_512, "u")]
    assert len({keys.salt for keys in salts}) == len(salts)
    assert shown(one, "u") == Form(32, 4096)
    assert shown(one, "u", SHA_256) == Form(0, 4096), "no user has this mechanism: as Kafka's tools make them"
    assert len({keys.stored_key for keys in salts}) == len(salts), "and of no password"


def test_what_is_imitated_is_bounded() -> None:
    rng = random.Random(4)
    stored = {f"u{n}": user(rng.randbytes(30 + n)) for n in range(FORMS_MAX + 5)}
    stored |= {"long": user(rng.randbytes(SALT_BYTES_MAX + 1)), "long too": user(rng.randbytes(SALT_BYTES_MAX + 1))}
    unknown = looking_at(stored)
    found = {shown(unknown, f"nosuch-{n}") for n in range(2000)}
    assert 2 < len(found) <= FORMS_MAX
    assert max(form.salt_bytes for form in found) <= SALT_BYTES_MAX


def test_forms_are_counted_when_users_change_and_not_for_each_login(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = passwords._form
    monkeypatch.setattr(passwords, "_form", lambda credential: calls.append(credential) or real(credential))
    stored = {f"u{n}": user(hashlib.sha256(b"%d" % n).digest()) for n in range(10)}
    unknown = UnknownUsers(b"pepper")
    for _ in range(5):
        unknown.look(stored)
        unknown.look(dict(stored))  # each image has another mapping
    assert len(calls) == 10
    unknown.look(stored | {"new": user(b"x")})
    assert len(calls) == 21


async def test_an_unknown_token_shows_what_tokens_show() -> None:
    """Tokens are salted by the agent itself; users of any form do not change that."""
    world = World()
    world.image = MetadataImage(scram_credentials={"a": user(b"x" * 7, 16_384)})
    known = await world.credentials.token(SHA_512, "no-such-token")
    assert known.principal is None
    assert (len(known.keys.salt), known.keys.iterations) == (32, 4096)
