"""How the HTTP pages of a running cluster are read: encrypted or not, with or without a token.

Place: made of a target's settings by targets.py, used by window.py.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec

from headrace.config.errors import ConfigError
from headrace.storage.errors import UnavailableError

TIMEOUT_SECONDS = 30
TRUST, KEY, TOKEN = "http.ssl.truststore.location", "http.ssl.keystore.location", "http.bearer.token.location"
NAMES = frozenset({TRUST, KEY, TOKEN})


class HttpAccess(msgspec.Struct, frozen=True):
    """`trust` or `key` (a client certificate): HTTPS."""

    trust: str = ""
    key: str = ""
    token: str = ""

    @staticmethod
    def of(given: Mapping[str, str]) -> HttpAccess:
        """Read the keys NAMES; the token is read from its file. ConfigError if that cannot be read."""
        path = given.get(TOKEN)
        try:
            token = Path(path).read_text().split()[0] if path else ""
        except (OSError, IndexError, UnicodeDecodeError) as error:
            raise ConfigError(f"{TOKEN}: no token in {path}") from error
        return HttpAccess(given.get(TRUST, ""), given.get(KEY, ""), token)

    def page(self, address: str, path: str) -> str:
        """The text of a page of the process at host:port. UnavailableError if it does not answer."""
        scheme = "https" if self.trust or self.key else "http"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            request = Request(f"{scheme}://{address}{path}", headers=headers)
            with urlopen(request, timeout=TIMEOUT_SECONDS, context=self._context()) as page:
                return str(page.read().decode())
        except OSError as error:
            raise UnavailableError(f"no metrics from {address}: {error}") from error

    def _context(self) -> ssl.SSLContext | None:
        if not self.trust and not self.key:
            return None
        context = ssl.create_default_context(cafile=self.trust or None)
        if self.key:
            context.load_cert_chain(self.key)
        return context


OPEN = HttpAccess()
"""Open without TLS and token."""
