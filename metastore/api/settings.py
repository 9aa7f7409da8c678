"""Settings with one value in the cluster: what the files of running processes propose.

Place: values of ClusterApi. Each process reports (metastore/setting_reporter.py), the active controller records what
all agree on (agent/cluster/controller/setting_agreement.py).
Invariant: a report says what a file says, not what applies. The value that applies is a ConfigRecord in the metadata
log; nothing here changes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metastore.api.agents import SUPPORTED_FEATURES


@dataclass(frozen=True, slots=True)
class SettingReport:
    """One running process. `proposals`: name of a cluster setting -> value in its file, or its default."""

    incarnation_id: uuid.UUID
    process: str
    """Host and process id, for people."""
    roles: tuple[str, ...]
    node_id: int | None
    """The node id of an agent that has registered."""
    proposals: Mapping[str, str]
    features: Mapping[str, int] = field(
        default_factory=lambda: {name: levels.max_level for name, levels in SUPPORTED_FEATURES.items()}
    )
    """The highest level that the process supports."""


class SettingProposals(NamedTuple):
    """What all running processes report together."""

    undecided: Mapping[str, Mapping[str, tuple[str, ...]]]
    """Settings without a value: name -> proposed value -> processes that propose it."""
    role_counts: Mapping[str, int]
    """Role -> running processes with it."""
    unreported_agents: int
    """Unfenced agents without a report: of an older version, or just starting or stopping."""

    @property
    def disputed(self) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
        """The undecided settings that running processes disagree about."""
        return {name: proposals for name, proposals in self.undecided.items() if len(proposals) > 1}
