"""OAUTHBEARER: a signed JSON Web Token says who the client is and for how long.

Place: a mechanism of authentication.py.
Invariant: a token counts only with a signature by a key of the key set (token_keys.py), an expiry in the future, and
the expected audience and issuer. Only asymmetric algorithms: the keys of the set are public.
Source: RFC 7628, RFC 7517, RFC 7519; KIP-255, KIP-768 (names of the settings).
"""

from __future__ import annotations

import re
from typing import Any

import jwt

from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed
from headrace.agent.access.sasl.token_keys import TokenKeys
from headrace.config.security_settings import SecuritySettings
from headrace.storage.clock import Clock

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
