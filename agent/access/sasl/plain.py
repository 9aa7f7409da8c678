"""PLAIN: user and password in one message, checked with the SCRAM credentials. For listeners with TLS.

Place: a mechanism of authentication.py.
Invariant: the agent keeps no password: it derives the keys and forgets it.
Source: RFC 4616.
"""

from __future__ import annotations

from headrace.agent.access.sasl.credentials import Credentials
from headrace.agent.access.sasl.exchange import Authenticated, AuthenticationFailed

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
