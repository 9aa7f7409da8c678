"""Templates to HTML.

Place: under every page; templates/ has one file for each, layout.html around them.
Invariant: every value is escaped, and a name that a page did not give is an error. No template has a script, a style
or an event handler in it: the browser would refuse them (headers.py).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from headrace import __version__
from headrace.cli.console.numbers_shown import DASH, grouped, in_bytes, lasted, utc
from headrace.cli.console.shown_bytes import visible


class Pages:
    """Renders templates. `facts` are what every page may show: the servers, whether changes are allowed. A page with
    `is_open` shows none of them: it needs no sign-in."""

    def __init__(self, **facts: Any) -> None:
        self._environment = Environment(
            loader=PackageLoader("headrace.cli.console", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "grouped": grouped,
            "in_bytes": in_bytes,
            "utc": utc,
            "lasted": lasted,
            "visible": lambda text: DASH if text is None else visible(str(text)),
        }
        self._environment.globals |= {"link": link, "version": __version__, "csrf_token": "", "is_open": False, **facts}

    def render(self, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
        """The template of that name."""
        text = self._environment.get_template(f"{template}.html").render(page_name=template, **values)
        return HTMLResponse(text, status)


def link(path: str, **query: Any) -> str:
    """A path with a query; values of None and empty texts are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path
