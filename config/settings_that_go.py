"""The settings that the next release refuses, of those that were set: what a process and the doctor say of each.

Place: after config.load, which notes their names in the Settings. Pure.
Invariant: the value that was set applies in this release, also if it is the default: the line is there because the next
release does not start with the name.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.config.cluster_values import setting_text
from headrace.config.declared import declared
from headrace.config.settings import Settings


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
