"""The console's process: the web application on one address, its sampler, its connections.

Place: started by command.py, and by tests; access.py is around the application.
Invariant of pages: an error is a page with the reason; what is not reached is 503, says what was tried, and loads
itself again. GET changes nothing.
Invariant: others than this machine need a token or a certificate; without them only a loopback address is listened
on. What needs no session is the page on which a browser gives its token, and the health of the process: the second
application of access.py, only if tokens are used. A token is accepted only by POST, and is never in a URL. The page
says nothing about the cluster, neither its servers nor the version; a token that no file can have is refused without
an error of the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from headrace.agent.limits.metrics import limits_reached
from headrace.cli.console.access import (
    IS_OPEN,
    SESSION,
    SIGN_IN,
    FormTokens,
    Sessions,
    is_loopback,
    not_for_other_sites,
    only_local_names,
    read_form,
    with_headers,
    with_sessions,
)
from headrace.cli.console.agent_metrics import AgentPages
from headrace.cli.console.cluster_link import ClusterLink
from headrace.cli.console.metastore_link import MetastoreLink
from headrace.cli.console.pages import changes, groups, links, overview, records, topics
from headrace.cli.console.parts import ConsoleParts, Pages
from headrace.cli.console.sampler import Sampler
from headrace.cli.console.table_link import TableLink
from headrace.cli.process.http_security import HttpSecurity
from headrace.cli.process.http_server import HttpServer, bounded
from headrace.config.addresses import address_text
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.protocol.client.transport import ClientConfig
from headrace.storage.client_text import shown as shown_text
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, RetryableError

logger = logging.getLogger(__name__)
STATIC_FILES = Path(__file__).with_name("static")
RETRY_SECONDS = 5


ALL_PAGES = (
    *(overview.add_pages, overview.add_charts, overview.add_files),
    *(topics.add_pages, topics.add_configs, topics.add_tables),
    *(groups.add_pages, groups.add_clients),
    *(records.add_pages, changes.add_pages, links.add_pages),
)
"""What adds the pages of the console to its application."""


def make_app(console: ConsoleParts) -> FastAPI:
    """Every page."""
    app = FastAPI(title="Headrace console", docs_url=None, redoc_url=None, openapi_url=None)
    for add in ALL_PAGES:
        add(app, console)
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


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """`settings`: metastore.url (empty: not known) and those of HTTP. `listen`: host and port, 0 is a free one."""

    client: ClientConfig
    settings: Settings
    listen: tuple[str, int]
    agent_urls: tuple[str, ...] = ()
    agent_token: str = ""
    allows_changes: bool = False


class ConsoleServer:
    """Listens from the constructor on."""

    def __init__(self, options: ConsoleOptions, clock: Clock) -> None:
        """ConfigError if others would see everything; InvalidError for an address that cannot be used."""
        host, settings = options.listen[0], options.settings
        refuse_open_network(host, settings)
        security = HttpSecurity(settings, clock)
        link = ClusterLink(options.client, clock)
        self.sampler = Sampler(link, AgentPages(options.agent_urls, options.agent_token), clock)
        self._metastore = MetastoreLink(settings, clock) if settings.metastore_url else None
        self._tables = TableLink(settings, clock)
        pages = Pages(
            servers=link.servers, allows_changes=options.allows_changes, has_metastore=self._metastore is not None
        )
        console = ConsoleParts(
            link, self._metastore, self._tables, self.sampler, pages, FormTokens(), options.allows_changes, clock
        )
        self.http = _server(console, security, settings, options.listen)
        scheme = "https" if settings.http_ssl_keystore_location else "http"
        self.url = f"{scheme}://{address_text(host, self.http.port)}/"

    def start(self) -> None:
        """Serve pages and take samples."""
        self.http.start()
        self.sampler.start()

    def stop(self) -> None:
        """End both and close the connections."""
        self.http.stop()
        self.sampler.stop()
        self.close()

    def close(self) -> None:
        """Close the connections to the metastore, and end the threads of answers."""
        self._tables.close()
        if self._metastore is not None:
            self._metastore.close()


def refuse_open_network(host: str, settings: Settings) -> None:
    """ConfigError for an address that others can reach, if they need neither a token nor a certificate."""
    if is_loopback(host) or settings.http_ssl_truststore_location or settings.http_bearer_token_location:
        return
    raise ConfigError(
        f"--listen: others can reach {host}, and would see every record: set http.bearer.token.location or"
        " http.ssl.truststore.location, and http.ssl.keystore.location; or listen on 127.0.0.1, behind a tunnel"
    )


def _server(console: ConsoleParts, security: HttpSecurity, settings: Settings, address: tuple[str, int]) -> HttpServer:
    application, sessions = make_app(console), Sessions()
    app = security.guarded(application)
    if security.accepts_tokens:
        add_sign_in(application, console.pages, sessions, security.accepts_token)
        app = with_sessions(app, application, sessions)
    if not security.authenticates:
        app = only_local_names(app)
    app = not_for_other_sites(app)
    connection = bounded(settings.http_max_connections, limits_reached(CollectorRegistry()))
    return HttpServer(with_headers(app), *address, security.encrypted(connection))


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
