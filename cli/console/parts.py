"""What the pages are made from: templates, connections, the values in their URLs.

Place: given to every module of pages/; templates/ has one file for each page, layout.html around them.
Invariant of templates: every value is escaped, invisible characters are shown by their numbers
(storage/client_text.py), and a name that a page did not give is an error. No template has a script, a style or an
event handler in it: the browser would refuse them (access.py). A time is UTC, and says so; a number that is not
known is a dash.
Invariant: a URL says everything that a page shows, so links can be shared. A value that makes no sense is
InvalidError with the name of the field.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from headrace import __version__
from headrace.cli.console.access import FormTokens
from headrace.cli.console.cluster_link import ClusterLink
from headrace.cli.console.metastore_link import MetastoreLink
from headrace.cli.console.sampler import Sampler
from headrace.cli.console.table_link import TableLink
from headrace.cli.options import INT64_MAX
from headrace.storage.client_text import visible
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError

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


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """`metastore` is None if only the cluster's address is known."""

    link: ClusterLink
    metastore: MetastoreLink | None
    tables: TableLink
    sampler: Sampler
    pages: Pages
    tokens: FormTokens
    allows_changes: bool
    clock: Clock


def whole_number(text: str, field: str, low: int = 0, high: int = INT64_MAX) -> int | None:
    """Return None for an empty text. InvalidError for everything but a number from low to high."""
    if not text.strip():
        return None
    try:
        found = int(text) if len(text) <= 20 else high + 1
    except ValueError as error:
        raise InvalidError(f"{field}: not a whole number: {text[:40]}") from error
    if not low <= found <= high:
        raise InvalidError(f"{field}: not between {low} and {high}: {text[:40]}")
    return found


def time_ms(text: str, field: str) -> int:
    """Return the milliseconds of a date and time in ISO 8601, UTC unless it says another zone, or of milliseconds
    since 1970.
    """
    if text.strip().isdecimal():
        return whole_number(text, field) or 0
    try:
        at = datetime.datetime.fromisoformat(text.strip())
        return max(0, int((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise InvalidError(f"{field}: not a date and time like 2026-01-31T12:00: {text[:40]}") from error


@dataclass(frozen=True, slots=True)
class PageOfRows:
    """Rows of a long list that a page shows; pages count from 1."""

    number: int
    size: int
    total: int

    @classmethod
    def of(cls, text: str, size: int, total: int) -> PageOfRows:
        """The last page for a number that is too high."""
        last = max(1, -(-total // size))
        return cls(min(whole_number(text, "page", 1) or 1, last), size, total)

    @property
    def rows(self) -> slice:
        """Rows of the list."""
        return slice((self.number - 1) * self.size, self.number * self.size)

    @property
    def last(self) -> int:
        """Its number."""
        return max(1, -(-self.total // self.size))
