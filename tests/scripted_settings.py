"""ClusterApi and ClusterApi in memory: reports of processes and the cluster's values.

Fault model: `error` is raised by every call.
"""

from __future__ import annotations

import uuid
from collections import Counter

from headrace.metastore.api.cluster import SettingProposals, SettingReport
from headrace.storage.errors import HeadraceError


class ScriptedSettings:
    """A report counts until it is withdrawn."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.reports: dict[uuid.UUID, SettingReport] = {}
        self.error: HeadraceError | None = None
        self.asked: Counter[str] = Counter()
        """Calls of each operation."""

    async def cluster_configs(self) -> dict[str, str]:
        self._begin("cluster_configs")
        return dict(self.values)

    async def report_settings(self, report: SettingReport) -> None:
        self._begin("report_settings")
        self.reports[report.incarnation_id] = report

    async def withdraw_settings(self, incarnation_id: uuid.UUID) -> None:
        self._begin("withdraw_settings")
        self.reports.pop(incarnation_id, None)

    async def setting_proposals(self) -> SettingProposals:
        self._begin("setting_proposals")
        undecided: dict[str, dict[str, tuple[str, ...]]] = {}
        counts: dict[str, int] = {}
        for report in self.reports.values():
            for role in report.roles:
                counts[role] = counts.get(role, 0) + 1
            for name, value in report.proposals.items():
                if name not in self.values:
                    named = undecided.setdefault(name, {})
                    named[value] = (*named.get(value, ()), report.process)
        return SettingProposals(undecided, counts, 0)

    async def compactors_without(self, feature: str, level: int) -> tuple[str, ...]:
        self._begin("compactors_without")
        lacking = [report for report in self.reports.values() if report.features.get(feature, 0) < level]
        return tuple(report.process for report in lacking if {"compactor", "spark"} & set(report.roles))

    def _begin(self, operation: str) -> None:
        self.asked[operation] += 1
        if self.error:
            raise self.error
