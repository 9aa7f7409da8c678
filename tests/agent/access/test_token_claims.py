"""Tokens of OAUTHBEARER with claims that are no times, and keys that are not for signatures: refused, never a crash."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed
from headrace.agent.access.sasl.oauthbearer import OauthBearerExchange, TokenKeys, token_keys
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.config.security_settings import SecuritySettings
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X2")
KEY = ec.generate_private_key(ec.SECP256R1())
LAST_SECOND = 253_402_300_799
NO_TIMES = [
    "1e300", "-1e300", "NaN", "Infinity", "-Infinity", "-1", "1" + "0" * 400, "true", "false", "null", '"soon"', "[1]",
    "{}", "253402300800",
]  # fmt: skip
"""Claims as JSON, with what Python's parser takes too."""


def public_key(**more: object) -> dict[str, Any]:
    return json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key())) | {"kid": "one"} | more


def keys_of(directory: Path, *keys: object) -> TokenKeys:
    path = directory / "keys.json"
    path.write_text(json.dumps({"keys": keys}), encoding="utf-8")
    settings = load(flags={"sasl.oauthbearer.jwks.endpoint.url": f"file://{path}"})
    return token_keys(settings, ManualClock())


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(claims: str, header: str = '{"alg": "ES256", "kid": "one"}') -> bytes:
    """Signed by the key, with any texts."""
    signed = _encoded(header.encode()) + b"." + _encoded(claims.encode())
    algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
    return b"n,,\x01auth=Bearer " + signed + b"." + _encoded(algorithm.sign(signed, KEY)) + b"\x01\x01"


async def outcome(keys: TokenKeys, message: bytes) -> Authenticated | str:
    """The principal, or the reason for the log. Any other exception would be a traceback in the log."""
    exchange = OauthBearerExchange(SecuritySettings(), keys, ManualClock())
    step = await exchange.step(message)
    if isinstance(step, Authenticated):
        return step
    with pytest.raises(AuthenticationFailed) as refused:
        await exchange.step(b"\x01")
    return str(refused.value)


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("value", NO_TIMES)
async def test_a_time_that_is_none_is_refused(tmp_path: Path, claim: str, value: str) -> None:
    keys = keys_of(tmp_path, public_key())
    now = ManualClock().wall_ms() // 1000
    claims = {"sub": '"alice"', "exp": str(now + 600), "nbf": str(now - 1), claim: value}
    text = "{" + ", ".join(f'"{name}": {given}' for name, given in claims.items()) + "}"
    assert isinstance(await outcome(keys, token(text)), str)


async def test_the_first_and_the_last_second_that_count(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, public_key())
    found = await outcome(keys, token(f'{{"sub": "alice", "exp": {LAST_SECOND}, "nbf": 0}}'))
    assert isinstance(found, Authenticated)
    assert found.expires_ms == LAST_SECOND * 1000
    half = await outcome(keys, token(f'{{"sub": "alice", "exp": {ManualClock().wall_ms() / 1000 + 0.5}}}'))
    assert isinstance(half, Authenticated), "a NumericDate may have a fraction"


@pytest.mark.parametrize("depth", [1_000, 100_000])
async def test_json_that_is_too_deep_is_refused(tmp_path: Path, depth: int) -> None:
    """The header is read before the signature, so every client can send it."""
    keys = keys_of(tmp_path, public_key())
    deep = "[" * depth + "]" * depth
    assert isinstance(await outcome(keys, token('{"sub": "alice"}', f'{{"alg": "ES256", "kid": {deep}}}')), str)
    assert isinstance(await outcome(keys, token(f'{{"sub": "alice", "exp": {deep}}}')), str)


@pytest.mark.parametrize("seed", range(10))
async def test_any_json_is_a_login_or_a_refusal(tmp_path: Path, seed: int) -> None:
    rng, keys = random.Random(seed), keys_of(tmp_path, public_key())

    def anything(depth: int = 0) -> object:
        leaves = [None, True, -1, 0, 1e300, float("nan"), "", "alice", "one", rng.randrange(2**70), "\u0000" * 40]
        if depth > 2 or rng.random() < 0.6:
            return rng.choice(leaves)
        if rng.random() < 0.5:
            return [anything(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(["sub", "exp", "kid", "x"]): anything(depth + 1) for _ in range(rng.randrange(4))}

    names = ["sub", "exp", "nbf", "iat", "aud", "iss", "jti"]
    for _ in range(40):
        claims = {name: anything() for name in rng.sample(names, rng.randrange(len(names)))}
        header = {"alg": "ES256", "kid": "one"} | ({"kid": anything()} if rng.random() < 0.3 else {})
        found = await outcome(keys, token(json.dumps(claims), json.dumps(header)))
        assert isinstance(found, str | Authenticated)


@pytest.mark.parametrize(
    ("more", "accepted"),
    [
        ({}, True),
        ({"use": "sig"}, True),
        ({"key_ops": ["verify"]}, True),
        ({"use": "sig", "key_ops": ["sign", "verify"]}, True),
        ({"use": "enc"}, False),
        ({"use": "other"}, False),
        ({"use": None}, False),
        ({"key_ops": ["encrypt", "wrapKey"]}, False),
        ({"key_ops": ["sign"]}, False),
        ({"key_ops": []}, False),
        ({"key_ops": "verify"}, False),
        ({"use": "enc", "key_ops": ["verify"]}, False),
    ],
)
async def test_only_keys_for_signatures_verify_them(tmp_path: Path, more: dict[str, object], accepted: bool) -> None:
    other = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()))
    keys = keys_of(tmp_path, public_key(**more), other | {"kid": "two"})
    found = await outcome(keys, token(f'{{"sub": "alice", "exp": {LAST_SECOND}}}'))
    assert isinstance(found, Authenticated) is accepted
    if not accepted:
        with pytest.raises(ConfigError, match="no key of the set is for signatures"):
            keys_of(tmp_path, public_key(**more))
