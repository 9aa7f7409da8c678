"""Templates to HTML.

Place: under every page; templates/ has one file for each, layout.html around them.
Invariant: every value is escaped, invisible characters are shown by their numbers (storage/client_text.py), and a name
that a page did not give is an error. No template has a script, a style or an event handler in it: the browser would
refuse them (headers.py). A time is UTC, and says so; a number that is not known is a dash.
"""

from __future__ import annotations

import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from headrace import __version__
from headrace.storage.client_text import visible

DASH = "–"  # noqa: RUF001
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Pages:
    """Renders templates. `facts` are what every page may show: the servers, whether changes are allowed. A page with
    `is_open` shows none of them: it needs no sign-in."""

    def __init__(self, **facts: Any) -> None:
        self._environment = Environment(
            loader=PackageLoader("headrace.cli.console", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "exact": escape,
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


def _shown(value: Any) -> Any:
    """Return what a template writes of a value. Markup is what another template made, and by `exact` what a form
    sends back."""
    return visible(value) if type(value) is str else value


def link(path: str, **query: Any) -> str:
    """A path with a query; values of None and empty texts are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def grouped(value: float | None) -> str:
    """12,345; with one digit after the point if it is small and not whole."""
    if value is None:
        return DASH
    return f"{value:,.1f}" if value != int(value) and abs(value) < 100 else f"{value:,.0f}"


def in_bytes(value: float | None) -> str:
    """1.5 MiB."""
    if value is None:
        return DASH
    size, unit = float(value), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {_UNITS[unit]}" if unit == 0 or size >= 100 else f"{size:,.1f} {_UNITS[unit]}"


def utc(at_ms: int | None) -> str:
    """2026-01-31 12:00:00.250 UTC; a dash for None and negative times."""
    if at_ms is None or at_ms < 0:
        return DASH
    try:
        at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):  # a producer may write any time
        return f"{at_ms} ms"
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d} UTC"


def lasted(milliseconds: float | None) -> str:
    """350 ms, 12 s, 5 min, 3 h, 2 d."""
    if milliseconds is None:
        return DASH
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(milliseconds) >= size * (2 if unit != "s" else 1):
            return f"{milliseconds / size:,.0f} {unit}"
    return f"{milliseconds:,.0f} ms"
