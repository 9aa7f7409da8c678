"""The definition of one config: type, bounds, default, validation of a value, and its effect in Headrace.

Place: config/topic_configs.py and config/group_configs.py are tables of these.
Invariant: a value that passed `why_invalid` can be parsed by the code that uses it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Synonym(NamedTuple):
    """A broker config that sets the default of this config: its value times `factor`."""

    name: str
    factor: int = 1


class ConfigEffect(enum.Enum):
    """The effect of an accepted config, in the words of docs/operate/TOPIC_CONFIGS.md."""

    WORKS = "works"
    LATER = "works later"
    MET = "met by any value"
    UNUSED = "accepted without effect"
    REPLACED = "accepted, but extents take the place of log segments"


class ConfigDefinition(NamedTuple):
    """One config. `kind` is Kafka's type; bounds are inclusive; `allowed` lists a string's or list's values."""

    default: str
    kind: str
    meaning: str
    """What the config does and when; for the others, why it is accepted."""
    effect: ConfigEffect = ConfigEffect.WORKS
    synonyms: tuple[Synonym, ...] = ()
    """The synonyms in order of precedence. The first can change at run time, the others can only be set in the agents'
    files.
    """
    low: float = 0
    high: float = 0
    allowed: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}
    """Values that Kafka accepts and Headrace does not, each with the reason."""
    why_fixed: str = ""
    """Reason why the config is fixed: if set, every value but the default is refused, with this reason."""
    check: Callable[[str], str | None] | None = None
    """Function in place of kind, bounds and `allowed`: the reason why a value is refused, or None."""

    def why_invalid(self, value: str) -> str | None:
        """Return None if the config can have this value."""
        if self.check is not None:
            return self.check(value)
        return self._why_malformed(value) or self._why_refused(value)

    def _why_malformed(self, value: str) -> str | None:
        match self.kind:
            case "boolean":
                return None if value.lower() in ("true", "false") else "not true or false"
            case "list":
                unknown = [item for item in list_items(value) if self.allowed and item not in self.allowed]
                return f"not one of {', '.join(self.allowed)}: {unknown[0]}" if unknown else None
            case "string":
                return None if value in self.allowed else f"not one of {', '.join(self.allowed)}"
            case _:
                return self._why_not_a_number(value)

    def _why_not_a_number(self, value: str) -> str | None:
        try:
            if not value.isascii() or "_" in value:  # Python would take 1_000 and other scripts' digits
                raise ValueError
            number = float(value) if self.kind == "double" else int(value)
        except ValueError:
            return f"not a number of type {self.kind}"
        return None if self.low <= number <= self.high else f"not between {self.low} and {self.high}"

    def _why_refused(self, value: str) -> str | None:
        items = list_items(value) if self.kind == "list" else [value.lower()]
        if self.why_fixed and not self._is_default(value):
            return f"not offered, only the default {self.default or '(empty)'}: {self.why_fixed}"
        return next((f"not offered: {self.refused[item]}" for item in items if item in self.refused), None)

    def _is_default(self, value: str) -> bool:
        """Return whether a valid value is the default, however it is written."""
        match self.kind:
            case "list":
                return list_items(value) == list_items(self.default)
            case "boolean" | "string":
                return value.lower() == self.default.lower()
            case _:
                return float(value) == float(self.default)


def list_items(value: str) -> list[str]:
    """The items of a config of type list."""
    return [item.strip() for item in value.split(",") if item.strip()]
