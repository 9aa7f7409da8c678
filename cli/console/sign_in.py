"""The page on which a browser gives its token, and the health of the process: what needs no session.

Place: the second application of access.py, only if tokens are used.
Invariant: a token is accepted only by POST, and is never in a URL. The page says nothing about the cluster, neither
its servers nor the version; a token that no file can have is refused without an error of the server.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from headrace.cli.console.access import SESSION, SIGN_IN, Sessions
from headrace.cli.console.form_tokens import read_form
from headrace.cli.console.rendering import Pages


def add_sign_in(app: FastAPI, pages: Pages, sessions: Sessions, accepts: Callable[[str], bool]) -> None:
    """/sign-in"""

    @app.get(SIGN_IN)
    def form() -> Response:
        return pages.render("sign_in", error="", is_open=True)

    @app.post(SIGN_IN)
    async def check(request: Request) -> Response:
        token = (await read_form(request)).get("token", "")
        if not token.isascii():
            return pages.render("sign_in", 400, error="a token has ASCII characters only", is_open=True)
        if not accepts(token):
            return pages.render("sign_in", 401, error="this token is not accepted", is_open=True)
        answer = RedirectResponse("/", 303)
        is_secure = request.url.scheme == "https"
        session = sessions.open(token.strip())
        answer.set_cookie(SESSION, session, httponly=True, samesite="strict", secure=is_secure, path="/")
        return answer
