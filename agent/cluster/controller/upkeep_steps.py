"""Steps of the active controller for the upkeep of the cluster: metadata snapshots, agreed settings, periodic jobs.

Place: rows of controller.py's table. Snapshots have a separate task: a large one takes longer than a round.
Processes with the role compactor claim the periodic jobs of jobs/kinds.py (compactor/worker.py); every kind has a
handler there (tests/compactor/test_schedules.py compares). SettingAgreement is pure: it is given the time.
Invariant: a snapshot is saved only if it reads back as the image, because the log before it will be deleted. After
metadata.format 4 is in force, two snapshots follow, so that no salted password is left in the log or in a snapshot.
A setting that the cluster has no value for is recorded only after all running processes have proposed the same value
for SETTLE_SECONDS, and while every unfenced agent has reported: an agent of an older version does not report its
file. So a process that is slow to start, or that could not reach the metastore for a while, still has its say. What
processes disagree about stays undecided until their files agree or an operator sets a value.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.cluster.controller.rounds import ControllerTimes
from headrace.agent.cluster.follower import MetadataFollower
from headrace.config.cluster_values import cluster_settings, in_force
from headrace.config.consistency import why_inconsistent
from headrace.config.settings import Settings
from headrace.jobs.kinds import PERIODIC
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.cluster import SettingProposals, StoredSnapshot
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.reports import JobCount
from headrace.metastore.log.effective_configs import EffectiveConfigs, set_for_all_brokers, setting_record
from headrace.metastore.log.features import SCRAM_KEYS_FORMAT
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord, FeatureLevelRecord
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 30.0
"""Three intervals of reports: after an outage of the metastore every process has reported again."""


class SettingAgreement:
    """Remembers since when each undecided setting has had one proposal only."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}

    def forget(self) -> None:
        """Start to observe again: this process was not the active controller meanwhile."""
        self._since.clear()

    def due(self, found: SettingProposals, values: Mapping[str, str], now: float) -> list[ConfigRecord]:
        """The records to append. `values`: what the cluster has; `now` in seconds of a monotonic clock."""
        agreed = {} if found.unreported_agents else _agreed(found)
        before, self._since = self._since, {}
        for name, value in agreed.items():
            known, since = before.get(name, (value, now))
            self._since[name] = (value, since if known == value else now)
        settled = {name: value for name, (value, since) in self._since.items() if now - since >= SETTLE_SECONDS}
        if reason := why_inconsistent(in_force(Settings(), {**values, **settled})):
            logger.warning("settings not recorded, they do not fit each other: reason=%s", reason)
            return []
        return [setting_record(name, value) for name, value in settled.items()]


class SettingRecorder:
    """A step of the active controller, until the cluster has all values."""

    def __init__(self, api: Metastore, clock: Clock) -> None:
        self._api, self._clock = api, clock
        self._agreement = SettingAgreement()
        self.stand_by = self._agreement.forget

    async def record(self, epoch: int, image: MetadataImage, _: bool) -> None:
        """Append what is agreed. If the log changed, the next look decides again."""
        values = set_for_all_brokers(image)
        due = self._agreement.due(await self._api.cluster.setting_proposals(), values, self._clock.monotonic())
        if due:
            appended = await self._api.cluster.append_records(image.offset, due, controller_epoch=epoch)
            named = " ".join(f"{record.name}={record.value}" for record in due)
            logger.info("recorded the settings that all processes agree on: appended=%s %s", appended, named)


def lacks_values(image: MetadataImage) -> bool:
    """Return whether the cluster has no value for one of its settings."""
    values = set_for_all_brokers(image)
    return any(name not in values for name in cluster_settings())


def _agreed(found: SettingProposals) -> dict[str, str]:
    """Undecided settings with one proposal; only those that this version knows."""
    known = cluster_settings()
    return {
        name: next(iter(proposals))
        for name, proposals in found.undecided.items()
        if name in known and len(proposals) == 1
    }


class JobSchedules:
    """Checks that the periodic jobs exist and that workers take jobs. One per candidate."""

    def __init__(self, api: Metastore, registry: CollectorRegistry) -> None:
        self._api = api
        self._jobs = Gauge(
            "headrace_jobs",
            "Background jobs of the cluster, on the active controller; finished ones count for a day",
            ["kind", "state"],
            registry=registry,
        )
        self._overdue = Gauge(
            "headrace_jobs_overdue_seconds",
            "Age of the oldest due job without a worker, on the active controller",
            ["kind"],
            registry=registry,
        )

    async def keep(self, epoch: int, _: MetadataImage, wanted: Sequence[JobSchedule]) -> None:
        """Make sure that the jobs are there, and show all jobs."""
        await self._api.jobs.schedule_jobs(epoch, wanted)
        self._show(await self._api.reports.count_jobs())

    def stand_by(self) -> None:
        """Show none."""
        self._show([])

    def _show(self, counts: Sequence[JobCount]) -> None:
        """Replace the previous counts."""
        self._jobs.clear()
        self._overdue.clear()
        overdue_ms: dict[str, int] = {}
        for count in counts:
            self._jobs.labels(count.kind, count.state.name.lower()).set(count.jobs)
            overdue_ms[count.kind] = max(overdue_ms.get(count.kind, 0), count.overdue_ms)
        for kind, longest_ms in overdue_ms.items():
            self._overdue.labels(kind).set(longest_ms / 1000)


def schedules(configs: EffectiveConfigs, image: MetadataImage) -> list[JobSchedule]:
    """Return the periodic jobs with their intervals, from the cluster's current configs."""
    cluster = set_for_all_brokers(image)
    return [kind.schedule(lambda name: int(configs.cluster_value(cluster, name))) for kind in PERIODIC]


CHECK_SECONDS = 30.0
TRUNCATED_ROWS = 10_000


class MetadataSnapshots:
    """One per candidate."""

    def __init__(
        self,
        api: Metastore,
        follower: MetadataFollower,
        times: Callable[[], ControllerTimes],
        registry: CollectorRegistry,
    ) -> None:
        self._api, self._follower, self._times = api, follower, times
        self._passwords_seen = 0
        self._lag = Gauge(
            "headrace_metadata_snapshot_lag_records",
            "Records of the metadata log after its newest snapshot, on the active controller; 0 on standbys",
            registry=registry,
        )

    def pause_seconds(self) -> float:
        """Return none if the log has secrets that are not needed any more since the last check."""
        return 0.0 if self._follower.image.passwords_until > self._passwords_seen else CHECK_SECONDS

    async def keep(self, epoch: int, image: MetadataImage, _: bool) -> bool:
        """Write a snapshot if one is due, and drop the log that no kept snapshot needs. True: another one is to
        follow."""
        self._passwords_seen = max(self._passwords_seen, image.passwords_until)
        state = await self._api.controller.snapshot_state()
        is_wanted = image.offset > state.end_offset and await self._log_has_passwords(image)
        if self._times().snapshot_is_due(state) or is_wanted:
            data = await asyncio.to_thread(_verified_snapshot, image)
            await self._api.controller.save_snapshot(epoch, StoredSnapshot(image.offset, data))
            logger.info("metadata snapshot written: end_offset=%d size=%d", image.offset, len(data))
            state = await self._api.controller.snapshot_state()
        self._lag.set(state.log_records)
        while await self._api.controller.truncate_metadata(epoch, TRUNCATED_ROWS) == TRUNCATED_ROWS:
            pass
        return (
            state.end_offset == image.offset
            and await self._log_has_passwords(image)
            and await self._repeat(epoch, image)
        )

    def stand_by(self) -> None:
        """Show that nothing is missing: the active controller says what is."""
        self._lag.set(0)

    async def _repeat(self, epoch: int, image: MetadataImage) -> bool:
        """Append a record that changes nothing, so that a second snapshot can follow the first."""
        levels = image.features[METADATA_FORMAT]
        record = FeatureLevelRecord(
            name=METADATA_FORMAT, min_feature_level=levels.min_level, max_feature_level=levels.max_level
        )
        return await self._api.cluster.append_records(image.offset, [record], controller_epoch=epoch)

    async def _log_has_passwords(self, image: MetadataImage) -> bool:
        """Return whether the log still has salted passwords or unencrypted keys of users that are no longer needed.

        They are gone after two snapshots without them: then the log before the older snapshot is deleted.
        """
        if image.metadata_format < SCRAM_KEYS_FORMAT or not image.passwords_until:
            return False
        return await self._api.cluster.metadata_log_start() < image.passwords_until - 1


def _verified_snapshot(image: MetadataImage) -> bytes:
    """CorruptError unless it reads back as the image: the log before it will be deleted."""
    data = encode_snapshot(image)
    if load_snapshot(data) != image:
        raise CorruptError(f"metadata snapshot does not read back: end_offset={image.offset}")
    return data
