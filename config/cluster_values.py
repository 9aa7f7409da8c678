"""The settings that have one value in the cluster, with what a file proposes for them.

Place: between the declarations and the metadata log, which stores the values as text (ConfigRecord of resource
BROKER with an empty name). Processes and the doctor also ask which settings the next release refuses. Pure.
Invariant: a value from the cluster always replaces the value of a file. log.retention.minutes and
log.retention.hours are other units of log.retention.ms for files: the cluster has one value, in milliseconds.
Invariant of settings that the next release refuses: the value that was set applies in this release, also if it is
the default: the line is there because the next release does not start with the name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.config.declared import declared
from headrace.config.settings import Settings, SettingScope

RETENTION_MS = "log.retention.ms"
UNITS_OF_RETENTION = {"log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
"""Names for files -> milliseconds of one unit."""


NEEDED_TO_DELETE = (
    "log.retention.ms",
    "log.retention.bytes",
    "file.delete.delay.ms",
    "producer.id.expiration.ms",
    "offsets.retention.minutes",
)
"""What decides which data is deleted or forgotten: nothing is, by a setting that the cluster has no value of."""


class IgnoredSetting(NamedTuple):
    """A value of this process's file that differs from the cluster's."""

    name: str
    own: str
    cluster: str


@functools.cache
def cluster_settings() -> tuple[str, ...]:
    """Names of all settings with one value in the cluster."""
    return tuple(
        name
        for name, setting in declared().items()
        if setting.scope is not SettingScope.PROCESS and name not in UNITS_OF_RETENTION
    )


def proposed(settings: Settings) -> dict[str, str]:
    """Return what a process's file says about them, defaults included: name -> value as text."""
    found = {name: setting_text(getattr(settings, declared()[name].field)) for name in cluster_settings()}
    return found | {RETENTION_MS: str(_retention_ms(settings))}


def in_force(settings: Settings, values: Mapping[str, str]) -> Settings:
    """The settings with the cluster's values in place of the file's. A value that this version refuses is left out:
    it was set by a newer version.
    """
    changes: dict[str, Any] = {
        declared()[name].field: parsed(name, values[name])
        for name in cluster_settings()
        if name in values and why_invalid(name, values[name]) is None
    }
    return msgspec.structs.replace(settings, **changes) if changes else settings


def ignored(settings: Settings, values: Mapping[str, str]) -> list[IgnoredSetting]:
    """Return what the file sets to something else than the cluster has. A file that keeps a default says nothing."""
    own, defaults = proposed(settings), proposed(Settings())
    return [
        IgnoredSetting(name, own[name], values[name])
        for name in cluster_settings()
        if name in values and own[name] != defaults[name] and own[name] != values[name]
    ]


def parsed(name: str, value: str) -> Any:
    """The value of a setting from its text; msgspec.ValidationError if it is not one."""
    return msgspec.convert(value, declared()[name].annotation, strict=False)


def why_invalid(name: str, value: str) -> str | None:
    """Return None if the cluster may have this value."""
    try:
        accepted = parsed(name, value)
    except msgspec.ValidationError:
        return f"not accepted: {declared()[name].accepted}"
    return "not a value" if accepted is None else None


def setting_text(value: Any) -> str:
    """Return the value as in a properties file; empty when unset."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _retention_ms(settings: Settings) -> int:
    """-1 is "never" in every unit."""
    if settings.log_retention_ms is not None:
        return settings.log_retention_ms
    for name, factor in UNITS_OF_RETENTION.items():
        value = getattr(settings, declared()[name].field)
        if value is not None:
            return int(value) * factor if value >= 0 else -1
    raise AssertionError("log.retention.hours has a default")


class SettingThatGoes(NamedTuple):
    """One that was set, with its values as text. `reason`: why the default is right for every cluster."""

    name: str
    value: str
    default: str
    reason: str

    def __str__(self) -> str:
        return (
            f"setting goes: {self.name}={self.value} applies in this release, and the next one refuses the name;"
            f" remove it (default {self.default}): {self.reason}"
        )


def settings_that_go(settings: Settings) -> list[SettingThatGoes]:
    """Those that file, environment or flags set, by name."""
    going = (declared()[name] for name in sorted(settings.set_that_go))
    return [
        SettingThatGoes(each.name, setting_text(getattr(settings, each.field)), setting_text(each.default), each.goes)
        for each in going
    ]
