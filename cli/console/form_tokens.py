"""Tokens of forms: a POST counts only if it comes from a page of this console in the same browser.

Place: pages/changes.py gives them out and asks for them.
Invariant: a token belongs to one cookie, which other sites can neither read nor send along (SameSite=Strict), and to
one process of the console.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import parse_qsl

from fastapi import Request, Response

from headrace.storage.errors import InvalidError

COOKIE = "headrace_browser"
FIELD = "csrf_token"
BODY_BYTES_MAX = 256 * 1024


class FormTokens:
    """Tokens of forms, for one process."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def browser_of(self, request: Request) -> str:
        """The cookie's value, or a new one that `keep` will set."""
        return request.cookies.get(COOKIE) or secrets.token_urlsafe(24)

    def token(self, browser: str) -> str:
        """Return the token for the forms of this browser."""
        return hmac.new(self._secret, browser.encode(), hashlib.sha256).hexdigest()

    def keep(self, request: Request, response: Response, browser: str) -> None:
        """Set the cookie."""
        is_secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, browser, httponly=True, samesite="strict", secure=is_secure, path="/")

    def accepts(self, request: Request, form: dict[str, str]) -> bool:
        """Return whether the form was made for this browser, and no other site sent it. InvalidError for what is no
        token.
        """
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        browser = request.cookies.get(COOKIE, "")
        shown = form.get(FIELD, "")
        if not shown.isascii():
            raise InvalidError(f"{FIELD}: a token has ASCII characters only")
        return bool(browser) and hmac.compare_digest(self.token(browser), shown)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of a name that is given twice, the last. InvalidError if it is too large or no form."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise InvalidError(f"the form is larger than {BODY_BYTES_MAX // 1024} KiB")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=10_000))
    except ValueError as error:
        raise InvalidError("not a form") from error
