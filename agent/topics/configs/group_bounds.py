"""Checks a group's timeouts: within the agents' bounds, and heartbeat interval less than session timeout.

Place: the last check of rules.py for a group's configs; the bounds are settings of the agent that gets the request.
Invariant: a value that was accepted here is used on every agent with the same bounds. An agent with tighter bounds
uses the nearest allowed value (agent/groups/consumer/rules.py).
Source: KIP-848; Kafka's GroupConfig.validate.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.group_configs import BOUNDS, HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from headrace.metastore.log.effective_configs import ConfigSource, EffectiveConfigs, set_for_all_brokers
from headrace.metastore.log.image import MetadataImage

Values = Mapping[str, str | None]
"""The change: each config's new value, None to delete it."""


def why_out_of_bounds(configs: EffectiveConfigs, image: MetadataImage, group_id: str, values: Values) -> str | None:
    """Return None if the change is allowed; `values` are already checked to be numbers."""
    for name, value in values.items():
        if value is None:
            continue
        low, high = (int(configs.cluster_value(set_for_all_brokers(image), bound)) for bound in BOUNDS[name])
        if not low <= int(value) <= high:
            least, most = BOUNDS[name]
            return f"invalid value for config {name}: {value!r} is not between {least}={low} and {most}={high}"
    beat, session = (_then(configs, image, group_id, values, name) for name in (HEARTBEAT_INTERVAL, SESSION_TIMEOUT))
    if values and beat >= session:
        return f"{HEARTBEAT_INTERVAL} must be less than {SESSION_TIMEOUT}: {beat} is not less than {session}"
    return None


def _then(configs: EffectiveConfigs, image: MetadataImage, group_id: str, values: Values, name: str) -> int:
    """The group's value after the change."""
    if (value := values.get(name)) is not None:
        return int(value)
    layers = configs.group_layers(image, group_id, name)
    return int(next(layer.value for layer in layers if name not in values or layer.source is not ConfigSource.GROUP))
