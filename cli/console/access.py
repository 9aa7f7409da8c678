"""Decide who may see the console: local users, or those with a token or certificate; what their browser may do.

Place: around the pages; HttpSecurity judges tokens and certificates, as for agents' HTTP listeners. pages/changes.py
gives out tokens of forms and asks for them.
Invariant of headers: every response has these headers, also errors.
Invariant: a browser cannot send a bearer token by itself, so it is given once (/sign-in) and kept in this process
under a random cookie; a token that leaves the file ends its sessions. Without authentication only names of this
machine are answered: another site cannot reach the console through its own name (DNS rebinding). A page of another
site that is open in the same browser may lead here, but gets no answer that it asks for itself: images, frames and
requests of its scripts would read the cluster again and again.
Invariant of a form's token: a token belongs to one cookie, which other sites can neither read nor send along
(SameSite=Strict), and to one process of the console.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections import OrderedDict
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.cli.process.http_server import HAS_CERTIFICATE
from headrace.storage.errors import InvalidError

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
STATIC = "/static/"


def with_headers(app: ASGIApp) -> ASGIApp:
    """`app` with these headers; no cache keeps its pages, because they show data."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                is_static = str(scope.get("path", "")).startswith(STATIC)
                headers["Cache-Control"] = "max-age=3600" if is_static else "no-store"
            await send(message)

        await app(scope, receive, answer)

    return guarded


SESSION = "headrace_session"
SESSIONS_MAX = 1_000
SIGN_IN = "/sign-in"
IS_OPEN = "is_open"
"""Entry of a request's state: it needs no sign-in, so its answer says nothing about the cluster."""
OTHER_SITES = ("cross-site", "same-site")
"""What browsers say of requests that pages of other sites, or of other ports of this machine, make."""
NEEDS_NO_SIGN_IN = ("/healthz", "/readyz", SIGN_IN)


class Sessions:
    """Random ids that browsers keep, and the token behind each; the oldest go first."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, str] = OrderedDict()

    def open(self, token: str) -> str:
        """A new id for this token."""
        session = secrets.token_urlsafe(32)
        self._tokens[_digest(session)] = token
        while len(self._tokens) > SESSIONS_MAX:
            self._tokens.popitem(last=False)
        return session

    def token(self, session: str) -> str | None:
        """Return None for an id that is not open."""
        return self._tokens.get(_digest(session))


def with_sessions(app: ASGIApp, open_app: ASGIApp, sessions: Sessions) -> ASGIApp:
    """`app`, with a session's token in the header. `open_app` serves what needs no sign-in."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        if path in NEEDS_NO_SIGN_IN or path.startswith(STATIC):
            scope["state"][IS_OPEN] = True
            await open_app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        token = sessions.token(_cookie(headers, SESSION))
        if "authorization" not in headers and not scope.get("state", {}).get(HAS_CERTIFICATE):
            if token is None and "text/html" in headers.get("accept", ""):
                await RedirectResponse(SIGN_IN, 303)(scope, receive, send)
                return
            if token is not None:
                scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {token}".encode())]
        await app(scope, receive, send)

    return guarded


def only_local_names(app: ASGIApp) -> ASGIApp:
    """`app` for requests to localhost and loopback addresses."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host", "")
        if not is_loopback(_without_port(host)):
            text = "this console answers to localhost only\n"
            await PlainTextResponse(text, 421)(scope, receive, send)
            return
        await app(scope, receive, send)

    return guarded


def not_for_other_sites(app: ASGIApp) -> ASGIApp:
    """`app` for requests of the console, of people and of programs; of other sites only if a link is followed."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":  # a form's token decides (FormTokens)
            await app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_link = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        if headers.get("sec-fetch-site") in OTHER_SITES and not is_link:
            text = "this console does not answer requests of other sites\n"
            await PlainTextResponse(text, 403)(scope, receive, send)
            return
        await app(scope, receive, send)

    return guarded


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _digest(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


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
