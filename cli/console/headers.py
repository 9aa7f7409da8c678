"""What the browser may do with a page: nothing with other hosts, and no scripts but the console's file.

Place: around the whole application.
Invariant: every response has these headers, also errors.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
