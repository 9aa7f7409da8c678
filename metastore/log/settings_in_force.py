"""The settings that apply in a process now: its own, with the cluster's values in place of its file's.

Place: asked by everything in an agent or controller that acts on a cluster setting, each time it acts; background
workers read the values before each job.
Invariant: what is answered belongs to one metadata image; a change reaches a process with the metadata log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.config.cluster_values import in_force
from headrace.config.settings import Settings
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.effective_configs import set_for_all_brokers
from headrace.metastore.log.image import MetadataImage


class SettingsInForce:
    """`current()` costs a comparison unless a cluster-wide value changed."""

    def __init__(self, settings: Settings, image: Callable[[], MetadataImage] = MetadataImage) -> None:
        """`image`: the process's newest image."""
        self._own = self._current = settings
        self._image = image
        self._values: Mapping[str, str] | None = None

    def current(self) -> Settings:
        """Return the settings of the newest image."""
        return self.of(self._image())

    def of(self, image: MetadataImage) -> Settings:
        """Read the settings of this image."""
        values = set_for_all_brokers(image)
        if values is not self._values:
            self._values, self._current = values, in_force(self._own, values)
        return self._current


async def read_settings(api: ClusterApi, settings: Settings) -> Settings:
    """The settings in force now, for a process that does not follow the metadata log. One query."""
    return in_force(settings, await api.cluster_configs())
