"""How long a controller's lease is, and when a snapshot is due.

Place: under controller.py, which reads them in each round, because these settings can change in a running cluster.
Invariant: pure arithmetic on settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.settings import Settings
from headrace.metastore.api.controller import SnapshotState

TURNS_PER_LEASE = 4
"""A lease is requested for one round less: a standby asks in the first round after its end, so it takes over within
the whole lease."""


@dataclass(frozen=True, slots=True)
class ControllerTimes:
    """The lease duration, and the limits for snapshots; milliseconds and bytes."""

    lease_ms: int
    session_timeout_ms: int
    snapshot_interval_ms: int
    snapshot_bytes: int

    @classmethod
    def of(cls, settings: Settings) -> ControllerTimes:
        """Return the values of the settings of the same names."""
        return cls(
            settings.controller_lease_ms,
            settings.broker_session_timeout_ms,
            settings.metadata_snapshot_interval_ms,
            settings.metadata_snapshot_bytes,
        )

    @property
    def granted_ms(self) -> int:
        """The lease that a controller requests, so that a standby is active `lease_ms` after the last renewal."""
        return self.lease_ms - self.lease_ms // TURNS_PER_LEASE

    def snapshot_is_due(self, state: SnapshotState) -> bool:
        """Say whether a snapshot is due: by size, and by age if there are new records."""
        return state.log_bytes >= self.snapshot_bytes or (
            state.log_records > 0 and state.age_ms >= self.snapshot_interval_ms
        )
