"""The two data files of `headrace cost`: what was measured, and prices.

Place: under model.py.
Invariant: each value names where it comes from; a name that is not in the file is an error, never a default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from headrace.storage.errors import InvalidError

Pair = tuple[float, float]


class Constants:
    """Measured values by name."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.entries = entries

    def value(self, name: str) -> float:
        """InvalidError if the file has no such value."""
        return float(_field(self.entries, name, "value"))

    def points(self, name: str, x: str, y: str) -> tuple[Pair, Pair]:
        """Both coordinates of two measured points."""
        (x1, x2), (y1, y2) = _field(self.entries, name, x), _field(self.entries, name, y)
        return (float(x1), float(x2)), (float(y1), float(y2))

    def line(self, name: str, at: float, x: str = "bytes", y: str = "us") -> float:
        """The value at `at` of the line through the two points; at least the part that does not grow."""
        (x1, x2), (y1, y2) = self.points(name, x, y)
        return y1 + (y2 - y1) / (x2 - x1) * (at - x1)


class Prices(Constants):
    """Prices in the file's currency, as of the day `read_on`."""

    @property
    def currency(self) -> str:
        return str(self.entries["currency"])

    @property
    def read_on(self) -> str:
        return str(self.entries["read_on"])


def measured() -> Constants:
    """constants.toml."""
    return Constants(tomllib.loads(_own("constants.toml")))


def prices(path: Path | None = None) -> Prices:
    """prices.toml, or the file that is given. InvalidError if it is no TOML; OSError if it cannot be read."""
    try:
        return Prices(tomllib.loads(_own("prices.toml") if path is None else path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"prices are no TOML: file={path} error={error}") from error


def _own(name: str) -> str:
    return (resources.files("headrace.cli.cost") / name).read_text(encoding="utf-8")


def _field(entries: Mapping[str, Any], name: str, field: str) -> Any:
    try:
        return entries[name][field]
    except KeyError as error:
        raise InvalidError(f"no such value: name={name} field={field}") from error
