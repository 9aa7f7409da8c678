"""Decides when a setting that the cluster has no value for gets the one that all running processes propose.

Place: a row of controller.py's table. SettingAgreement is pure: it is given the time.
Invariant: a value is recorded only after all running processes have proposed the same one for SETTLE_SECONDS, and
while every unfenced agent has reported: an agent of an older version does not report its file. So a
process that is slow to start, or that could not reach the metastore for a while, still has its say. What processes
disagree about stays undecided until their files agree or an operator sets a value.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.config.cluster_values import cluster_settings, in_force
from headrace.config.consistency import why_inconsistent
from headrace.config.settings import Settings
from headrace.metastore.api.cluster import SettingProposals
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.effective_configs import set_for_all_brokers, setting_record
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord
from headrace.storage.clock import Clock

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
