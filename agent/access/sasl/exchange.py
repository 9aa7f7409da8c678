"""What a mechanism is: an exchange of messages that ends with a principal or with a failure.

Place: implemented by passwords.py and oauthbearer.py; driven by authentication.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class AuthenticationFailed(Exception):
    """The reason is for the agent's log, not for the client; it has no secret."""


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The end of an exchange. `expires_ms`: by the wall clock, when the credential itself ends; None: never."""

    principal: str
    answer: bytes = b""
    expires_ms: int | None = None
    credential: object = None
    """What the metadata log had of the user or token: once it has something else, the authentication ends."""
    token_id: str | None = None
    """The delegation token, if it was one."""


class SaslExchange(Protocol):
    """One authentication."""

    user: str
    """The name that the client gave, of any length, known or not; empty until it did."""

    async def step(self, message: bytes) -> bytes | Authenticated:
        """The next message of the client; the answer, or the end. AuthenticationFailed."""
