"""Judges the settings that the doctor was given: those that the next release refuses.

Place: one area of `headrace doctor`, which has a line only if there is something to remove.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.cluster_values import settings_that_go
from headrace.config.settings import Settings

AREA = Area("settings")


def judge(settings: Settings) -> Iterator[Finding]:
    """One line for each that file, environment or flags set."""
    for each in settings_that_go(settings):
        found = f"{each.name}={each.value} applies in this release, and the next one refuses the name"
        yield AREA.warn("goes", found, f"remove it (default {each.default}): {each.reason}")
