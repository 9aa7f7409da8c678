"""The console's process: its pages on one address, its sampler, its connections.

Place: started by command.py, and by tests.
Invariant: others than this machine need a token or a certificate; without them only a loopback address is listened on.
What needs no session is the page on which a browser gives its token, and the health of the process: the second
application of access.py, only if tokens are used. A token is accepted only by POST, and is never in a URL. The page
says nothing about the cluster, neither its servers nor the version; a token that no file can have is refused without an
error of the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from prometheus_client import CollectorRegistry

from headrace.agent.limits.limit_metrics import limits_reached
from headrace.cli.client.transport import ClientConfig
from headrace.cli.console.access import (
    SESSION,
    SIGN_IN,
    Sessions,
    is_loopback,
    not_for_other_sites,
    only_local_names,
    with_sessions,
)
from headrace.cli.console.agent_metrics import AgentPages
from headrace.cli.console.app import make_app
from headrace.cli.console.cluster_link import ClusterLink
from headrace.cli.console.form_tokens import FormTokens, read_form
from headrace.cli.console.headers import with_headers
from headrace.cli.console.metastore_link import MetastoreLink
from headrace.cli.console.parts import ConsoleParts
from headrace.cli.console.rendering import Pages
from headrace.cli.console.sampler import Sampler
from headrace.cli.console.table_link import TableLink
from headrace.cli.process.http_connection import bounded
from headrace.cli.process.http_security import HttpSecurity
from headrace.cli.process.http_server import HttpServer
from headrace.config.addresses import address_text
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.storage.clock import Clock


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
