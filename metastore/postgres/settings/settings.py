"""Reports of settings in Postgres, and what they add up to.

Place: under the reporter of each process and the active controller; a part of ClusterApi.
Invariant: a report is one row of one process; the values that apply are in the metadata log, not here.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from headrace.metastore.api.cluster import ClusterApi, SettingProposals, SettingReport
from headrace.metastore.postgres.packing import pack_int2
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_REPORT_PROCESS = Statement("report_process", writes=True)
_SETTING_PROPOSALS = Statement("setting_proposals", writes=False)


class PostgresSettings(PostgresNoun):
    """Implements what ClusterApi says of settings."""

    withdraw_settings = calls(ClusterApi.withdraw_settings, writes=True)
    compactors_without = calls(ClusterApi.compactors_without, writes=False)

    async def report_settings(self, report: SettingReport) -> None:
        await _REPORT_PROCESS.row(
            self.pool,
            incarnation_id=report.incarnation_id,
            process=report.process,
            roles=list(report.roles),
            node_id=report.node_id,
            names=list(report.proposals),
            proposals=list(report.proposals.values()),
            features=list(report.features),
            levels=pack_int2(np.array(list(report.features.values()), np.int16)),
        )

    async def setting_proposals(self) -> SettingProposals:
        undecided: defaultdict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
        counts: dict[str, int] = {}
        unreported = 0
        for kind, name, proposal, members in await _SETTING_PROPOSALS.rows(self.pool):
            match kind:
                case "proposal":
                    undecided[name][proposal] = tuple(members)
                case "role":
                    counts[name] = len(members)
                case "unreported":
                    unreported = len(members)
        return SettingProposals(dict(undecided), counts, unreported)
