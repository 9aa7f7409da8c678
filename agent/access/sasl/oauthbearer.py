"""OAUTHBEARER: a signed JSON Web Token says who the client is, until when.

Place: a mechanism of authentication.py. TokenKeys are the public keys that sign the tokens: a JSON Web Key Set in a
file, or behind an HTTPS address (key_request.py); they are asked for each token, and `run` is a task of the agent.
Invariant: a token counts only with a signature by a key of the key set, an expiry in the future, and
the expected audience and issuer. Only asymmetric algorithms: the keys of the set are public.
Keys that cannot be renewed stay in use. A client that shows tokens with made-up key ids causes at most one
request per UNKNOWN_KEY_SECONDS. A key that the issuer means for something other than signatures verifies none.
Redirects are not followed: the keys come from the host that the operator named.
Source: RFC 7628, RFC 7517, RFC 7519; KIP-255, KIP-768 (names of the settings).
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import jwt

from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed
from headrace.agent.access.tls import FileWatch
from headrace.config.addresses import shown_address, without_logins
from headrace.config.errors import ConfigError
from headrace.config.security_settings import SecuritySettings
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

UNKNOWN_KEY_SECONDS = 10.0
_SETTING = "sasl.oauthbearer.jwks.endpoint.url"
_UNUSABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError, jwt.PyJWTError, TimeoutError)
Fetch = Callable[[str], Awaitable[bytes]]


class TokenKeys(Protocol):
    """Token keys for one event loop."""

    async def key(self, key_id: str | None) -> Any:
        """The key with this id; without an id the only key. AuthenticationFailed if there is none."""

    async def run(self) -> None:
        """Renew the keys for as long as it runs; returns if there is nothing to do."""


def token_keys(settings: SecuritySettings, clock: Clock) -> TokenKeys:
    """Return the token keys of sasl.oauthbearer.jwks.endpoint.url. ConfigError if a file is no key set."""
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if url.startswith("file://"):
        return FileKeys(url.removeprefix("file://"), clock)
    from headrace.agent.access.sasl.key_request import fetch  # here: no other agent needs an HTTP client

    return FetchedKeys(settings, clock, fetch)


class FileKeys:
    """Implements TokenKeys: the key set of a file, read again when it changes."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path, self._watch = path, FileWatch([path], clock)
        try:
            self._keys = self._load()
        except _UNUSABLE as error:
            raise ConfigError(f"{_SETTING}: no JSON Web Key Set: {path}: {error}") from error

    async def key(self, key_id: str | None) -> Any:
        if self._watch.changed():
            try:
                self._keys = self._load()
            except _UNUSABLE as error:
                logger.error("keys of tokens not reloaded, the earlier ones stay in use: %s: %s", self._path, error)
        return _chosen(self._keys, key_id)

    async def run(self) -> None:
        """A change is seen when a token comes."""

    def _load(self) -> list[Any]:
        with open(self._path, "rb") as file:
            return _key_set(file.read())


class FetchedKeys:
    """Implements TokenKeys: the key set of an HTTPS address."""

    def __init__(self, settings: SecuritySettings, clock: Clock, fetch: Fetch) -> None:
        self._url, self._clock, self._fetch = settings.sasl_oauthbearer_jwks_endpoint_url, clock, fetch
        self._shown = shown_address(self._url)
        self._refresh_seconds = settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._backoff_seconds = settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._backoff_seconds_max = settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        self._keys: list[Any] = []
        self._refreshing: asyncio.Task[bool] | None = None
        self._forced_at = float("-inf")

    async def run(self) -> None:
        failures = 0
        while True:
            failures = 0 if await self._refresh() else failures + 1
            backoff = min(self._backoff_seconds * 2.0 ** min(failures - 1, 30), self._backoff_seconds_max)
            await self._clock.sleep(backoff if failures else self._refresh_seconds)

    async def key(self, key_id: str | None) -> Any:
        """Waits for a refresh if the key is not known: the issuer may have replaced its keys."""
        try:
            return _chosen(self._keys, key_id)
        except AuthenticationFailed:
            now = self._clock.monotonic()
            if now - self._forced_at < UNKNOWN_KEY_SECONDS:
                raise
            self._forced_at = now
        await self._refresh()
        return _chosen(self._keys, key_id)

    async def _refresh(self) -> bool:
        """Return whether it worked; all callers share one request."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._ask())
        return await asyncio.shield(self._refreshing)

    async def _ask(self) -> bool:
        try:
            keys = _key_set(await self._fetch(self._url))
        except _UNUSABLE as error:
            said = without_logins(repr(error))
            logger.warning("keys of tokens not refreshed: url=%s keys=%d error=%s", self._shown, len(self._keys), said)
            return False
        if [key.key_id for key in keys] != [key.key_id for key in self._keys]:
            logger.info("keys of tokens: url=%s ids=%s", self._shown, [key.key_id for key in keys])
        self._keys = keys
        return True


def _key_set(text: bytes) -> list[Any]:
    """The keys for signatures: an issuer also publishes those that others encrypt with."""
    found = json.loads(text)
    keys = [key for key in found.get("keys", []) if _verifies(key)]
    if found.get("keys") and not keys:
        raise ValueError("no key of the set is for signatures (use, key_ops)")
    return list(jwt.PyJWKSet.from_dict(found | {"keys": keys}).keys)


def _verifies(key: dict[str, Any]) -> bool:
    """Return whether the issuer means the key for signatures (RFC 7517, 4.2 and 4.3)."""
    operations = key.get("key_ops", ["verify"])
    return key.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


def _chosen(keys: list[Any], key_id: str | None) -> Any:
    found = [key for key in keys if key_id in (None, key.key_id)]
    if len(found) != 1:
        raise AuthenticationFailed("the token's key is not in the key set")
    return found[0].key


_MESSAGE = re.compile(rb"[ny],(?:a=([^,]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)+)\x01")
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_REFUSED = b'{"status":"invalid_token"}'
_LAST_SECOND = 253_402_300_799
"""The end of the year 9999: what a token says of later times is no time."""


class OauthBearerExchange:
    """One authentication."""

    def __init__(self, settings: SecuritySettings, keys: TokenKeys, clock: Clock) -> None:
        self._settings, self._keys, self._clock = settings, keys, clock
        self._refused: AuthenticationFailed | None = None
        self.user = ""

    async def step(self, message: bytes) -> bytes | Authenticated:
        """After a token that is refused, the client gets to know so by the protocol, and must send one more message."""
        if self._refused is not None:
            raise self._refused
        try:
            return await self._judge(message)
        except AuthenticationFailed as error:
            self._refused = error
            return _REFUSED

    async def _judge(self, message: bytes) -> Authenticated:
        match = _MESSAGE.fullmatch(message)
        pairs = dict(pair.split(b"=", 1) for pair in match[2].split(b"\x01") if pair) if match else {}
        scheme, _, token = pairs.get(b"auth", b"").partition(b" ")
        if match is None or scheme.lower() != b"bearer":
            raise AuthenticationFailed("malformed message")
        claims = await self._claims(token.strip())
        name = claims.get(self._settings.sasl_oauthbearer_sub_claim_name)
        if not isinstance(name, str) or not name:
            raise AuthenticationFailed("the token has no name")
        if match[1] and match[1].decode(errors="replace") != name:
            raise AuthenticationFailed("a user cannot act as another one")
        return Authenticated(f"User:{name}", expires_ms=int(claims["exp"] * 1000))

    async def _claims(self, token: bytes) -> dict[str, Any]:
        """Return the claims of a token that is signed; AuthenticationFailed. Times are compared with the injected
        clock.
        """
        own = self._settings
        audiences = [each.strip() for each in own.sasl_oauthbearer_expected_audience.split(",") if each.strip()]
        try:
            key = await self._keys.key(jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                audience=audiences or None,
                issuer=own.sasl_oauthbearer_expected_issuer or None,
                options={
                    "require": ["exp"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": bool(audiences),
                },
            )
        except RecursionError as error:
            raise AuthenticationFailed("token refused: too deep JSON") from error
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise AuthenticationFailed(f"token refused: {error}") from error
        self.user = str(claims.get(own.sasl_oauthbearer_sub_claim_name, ""))  # signed, though maybe no longer valid
        now, skew = self._clock.wall_ms() / 1000, own.sasl_oauthbearer_clock_skew_seconds
        expiry, begin = claims["exp"], claims.get("nbf", now)
        if not _is_time(expiry) or not _is_time(begin):
            raise AuthenticationFailed("the token's times are no seconds since 1970")
        if expiry + skew <= now or begin - skew > now:
            raise AuthenticationFailed("the token has expired, or is not valid yet")
        return claims


def _is_time(value: object) -> bool:
    """Return whether a claim is a NumericDate; JSON also has true, NaN and 1e300 here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LAST_SECOND
