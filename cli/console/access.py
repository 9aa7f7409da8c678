"""Decide who may see the console: local users, or those with a token or certificate; and the names it answers to.

Place: around the pages; HttpSecurity judges tokens and certificates, as for agents' HTTP listeners.
Invariant: a browser cannot send a bearer token by itself, so it is given once (/sign-in) and kept in this process
under a random cookie; a token that leaves the file ends its sessions. Without authentication only names of this machine
are answered: another site cannot reach the console through its own name (DNS rebinding). A page of another site that is
open in the same browser may lead here, but gets no answer that it asks for itself: images, frames and requests of its
scripts would read the cluster again and again.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.cli.console.headers import STATIC
from headrace.cli.process.http_connection import HAS_CERTIFICATE

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
        if scope["method"] == "POST":  # a form's token decides (form_tokens.py)
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
