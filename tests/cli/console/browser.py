"""A plain HTTP client for the pages: no scripts, cookies kept, redirects not followed."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit


class Answer(NamedTuple):
    status: int
    text: str
    headers: Mapping[str, str]


class PlainBrowser:
    """`url` is the first page."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **query: object) -> Answer:
        return self._ask("GET", f"{path}?{urlencode(query)}" if query else path, None, {})

    def post(self, path: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", path, urlencode(form), {**kind, **(headers or {})})

    def ask(self, path: str, headers: Mapping[str, str]) -> Answer:
        return self._ask("GET", path, None, headers)

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self._address, timeout=300)
        sent = {"Accept": "text/html", **headers}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        for cookie in answer.headers.get_all("Set-Cookie") or []:
            self.cookies |= {name: morsel.value for name, morsel in SimpleCookie(cookie).items()}
        connection.close()
        return Answer(answer.status, text, {name.lower(): value for name, value in answer.getheaders()})


def fields(page: str) -> dict[str, str]:
    """The hidden fields of the page's POST form."""
    form = page[page.index('method="post"') :]
    form = form[: form.index("</form>")]
    return {name: _plain(value) for name, value in re.findall(r'type="hidden" name="([^"]*)" value="([^"]*)"', form)}


def _plain(text: str) -> str:
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&#34;", '"'), ("&#39;", "'"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return text
