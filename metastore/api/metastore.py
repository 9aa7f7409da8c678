"""The boundary of the metastore: its nouns, each of which is one Protocol, one page of metastore/api.

Place: code that composes a process holds it, and code that needs several nouns; everything else takes its noun.
Readiness (cli/process/http_app.py) and `headrace doctor` probe whether commits end: the server may answer every read
while each commit waits for a synchronous standby.
Invariant of a probe: a probe changes nothing, and at most one waits at a time: its commit is canceled after
PROBE_SECONDS.

    await metastore.groups.claim_group(…)
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, Protocol

from headrace.metastore.api.audit_archive import AuditArchiveApi
from headrace.metastore.api.cleaning import CleaningApi
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.commit import CommitApi
from headrace.metastore.api.compaction import CompactionApi
from headrace.metastore.api.controller import ControllerApi
from headrace.metastore.api.files import FileApi
from headrace.metastore.api.groups import GroupApi
from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.metastore.api.inline import InlineApi
from headrace.metastore.api.jobs import JobApi
from headrace.metastore.api.life import LifeApi
from headrace.metastore.api.linked_groups import LinkedGroupApi
from headrace.metastore.api.links import LinkApi
from headrace.metastore.api.outcomes import OutcomeApi
from headrace.metastore.api.read import IndexApi
from headrace.metastore.api.reports import ReportApi
from headrace.metastore.api.retention import RetentionApi
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.api.segments import SegmentApi
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.api.transactions import TransactionApi
from headrace.metastore.backups import WalArchive

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


class Metastore(Protocol):
    """The nouns, and the connections under them (standbys.py says what a probe of a commit is for)."""

    @property
    def commits(self) -> CommitApi:
        """Files of agents and bulk writes, in order."""

    @property
    def index(self) -> IndexApi:
        """Where records are."""

    @property
    def cluster(self) -> ClusterApi:
        """The metadata log, and what processes say of themselves."""

    @property
    def topics(self) -> TopicApi:
        """Growth, shrinking and restoring of topics."""

    @property
    def controller(self) -> ControllerApi:
        """The lease of the active controller, and what only its holder may do."""

    @property
    def groups(self) -> GroupApi:
        """Groups of all kinds, and their offsets."""

    @property
    def transactions(self) -> TransactionApi:
        """Transactional ids."""

    @property
    def outcomes(self) -> OutcomeApi:
        """Decisions that are also recorded in the bucket."""

    @property
    def jobs(self) -> JobApi:
        """The queue of background work, and read pins."""

    @property
    def compaction(self) -> CompactionApi:
        """Merges, and damage."""

    @property
    def cleaning(self) -> CleaningApi:
        """Cleaning by key."""

    @property
    def segments(self) -> SegmentApi:
        """The lifecycle of remote segments."""

    @property
    def segment_logs(self) -> SegmentLogApi:
        """The logs of that lifecycle."""

    @property
    def audit_archive(self) -> AuditArchiveApi:
        """The part of the audit trail that is in the bucket."""

    @property
    def files(self) -> FileApi:
        """The end of segment files, and their index made again."""

    @property
    def inline(self) -> InlineApi:
        """Bytes of small files, until they are moved."""

    @property
    def links(self) -> LinkApi:
        """Topics that are copies of another cluster's."""

    @property
    def linked_groups(self) -> LinkedGroupApi:
        """Groups of another cluster, the offsets of which are copied."""

    @property
    def retention(self) -> RetentionApi:
        """Log starts."""

    @property
    def housekeeping(self) -> HousekeepingApi:
        """What keeps tables small."""

    @property
    def reports(self) -> ReportApi:
        """What people read."""

    @property
    def life(self) -> LifeApi:
        """Which life of the metastore it is, and its bucket."""

    @property
    def cluster_id(self) -> str:
        """The id that `headrace storage format` wrote."""

    @property
    def incarnation_id(self) -> uuid.UUID:
        """Return which life of the metastore this is, as of when it was opened: another one after a restore."""

    @property
    def commit_shards(self) -> int:
        """How many commit shards there were when it was opened (metastore/keys.py); an image says how many there are
        now.
        """

    async def probe_commit(self) -> None:
        """Commit something that changes nothing. UnavailableError if that does not end in PROBE_SECONDS. If commits
        wait for a synchronous standby, there is no error, and `refusal` says so: all processes wait.
        """

    def commits_made(self) -> int:
        """Return how many calls of this process have committed a write so far, of those that certainly wrote."""

    async def keep_connections(self, count: int) -> None:
        """Keep so many connections instead of metastore.pool.size; those in use end with their call."""

    def refusal(self) -> str | None:
        """Return why the metastore answers and does not write, for any process (a full disk, read-only, a synchronous
        standby that is away); None if it does.
        """

    async def wal_archive(self) -> WalArchive:
        """Return what Postgres says of its WAL archive."""

    async def close(self) -> None:
        """Close the connections; calls in progress fail."""
