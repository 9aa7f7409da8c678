"""Whether commits end: the server may answer every read while each commit waits for a synchronous standby.

Place: the probe of a process's readiness (cli/process/shell.py) and of `headrace doctor`.
Invariant: a probe changes nothing, and at most one waits at a time: its commit is canceled after PROBE_SECONDS.
"""

from __future__ import annotations

from typing import NamedTuple

PROBE_SECONDS = 1.5
"""How long the commit of a probe may take."""
END_THE_WAIT = (
    "start the standby; or, if it is lost or this server was promoted: ALTER SYSTEM SET synchronous_standby_names = '';"
    " SELECT pg_reload_conf(); (a promotion then loses what is acknowledged from that moment on)"
)
"""What an operator does."""


class StandbyState(NamedTuple):
    """What a server says of its synchronous standbys, as far as this role sees it."""

    names: str
    """`synchronous_standby_names`; empty: no commit waits for a standby."""
    connected: list[str]
    """Application names of all connected standbys."""
    waiting: int
    """Sessions of this role in this database that have waited for a standby for half of PROBE_SECONDS or longer."""
    waiting_s: float
    """The seconds that the first of them has waited, its statement included."""

    @property
    def wait(self) -> str:
        """What waits for what."""
        connected = ", ".join(self.connected) or "none"
        return (
            f"commits wait for a synchronous standby: synchronous_standby_names={self.names!r}"
            f" connected standbys: {connected}"
        )
