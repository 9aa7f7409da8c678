"""The console as a web application: its pages, its files, and what an error looks like.

Place: made by command.py; access.py and headers.py are around it.
Invariant: an error is a page with the reason; what is not reached is 503, says what was tried, and loads itself again.
GET changes nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from headrace.cli.console.access import IS_OPEN
from headrace.cli.console.pages import (
    changes,
    charts,
    clients,
    configs,
    files,
    groups,
    overview,
    records,
    tables,
    topics,
)
from headrace.cli.console.parts import ConsoleParts
from headrace.storage.client_text import shown as shown_text
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, RetryableError

logger = logging.getLogger(__name__)
STATIC_FILES = Path(__file__).with_name("static")
RETRY_SECONDS = 5


def make_app(console: ConsoleParts) -> FastAPI:
    """Every page."""
    app = FastAPI(title="Headrace console", docs_url=None, redoc_url=None, openapi_url=None)
    for pages in (overview, topics, records, groups, clients, files, tables, configs, charts, changes):
        pages.add_pages(app, console)
    app.mount("/static", StaticFiles(directory=STATIC_FILES), name="static")
    _add_errors(app, console)

    @app.get("/readyz")  # the pages say whether the cluster answers
    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "alive"}

    return app


def _add_errors(app: FastAPI, console: ConsoleParts) -> None:
    def render(request: Request, status: int, title: str, error: str, *, retries: bool = False) -> Response:
        tried = console.link.servers + (f" and Postgres at {console.metastore.address}" if console.metastore else "")
        shown = {"title": title, "error": error, "tried": tried, "retries": retries}
        page = console.pages.render("error", status, **shown, is_open=getattr(request.state, IS_OPEN, False))
        if retries:
            page.headers["Retry-After"] = str(RETRY_SECONDS)
        return page

    @app.exception_handler(HeadraceError)
    def refused(request: Request, error: HeadraceError) -> Response:
        if isinstance(error, RetryableError):
            return render(request, 503, "The cluster does not answer", str(error), retries=True)
        if isinstance(error, NotFoundError):
            return render(request, 404, "Not found", str(error))
        if isinstance(error, InvalidError):
            return render(request, 400, "This cannot be shown", str(error))
        return render(request, 502, "The cluster's answer cannot be used", str(error))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        lacking = ", ".join(str(each["loc"][-1]) for each in error.errors())
        return render(request, 400, "This cannot be shown", f"the address lacks or has wrong values: {lacking}")

    @app.exception_handler(HTTPException)
    def other(request: Request, error: HTTPException) -> Response:
        return render(request, error.status_code, str(error.detail), f"{request.method} {request.url.path[:100]}")

    @app.exception_handler(ClientDisconnect)
    def left(request: Request, _: Exception) -> Response:
        logger.debug("the client left before its request was complete: path=%s", shown_text(request.url.path))
        return Response(status_code=400)  # it cannot be sent

    @app.exception_handler(Exception)
    def failed(request: Request, error: Exception) -> Response:
        logger.error("page failed: path=%s", request.url.path, exc_info=error)
        return render(request, 500, "This page failed", "the console's log says why")
