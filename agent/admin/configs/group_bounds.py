"""Whether a group may have the times that it would get: the agents' bounds, and beats shorter than sessions.

Place: the last word of rules.py about a group's configs; the bounds are settings of the agent that is asked.
Invariant: what was accepted here acts as it is shown on every agent with the same bounds. One with tighter bounds
takes the nearest of them instead (agent/groups/consumer/rules.py). Pure; if the process dies here nothing is lost.
Source: KIP-848; Kafka's GroupConfig.validate.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.group_configs import BOUNDS, HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from headrace.metastore.log.effective_configs import ConfigSource, EffectiveConfigs
from headrace.metastore.log.image import MetadataImage

Values = Mapping[str, str | None]
"""What is to change: each config's new value, None to take it away."""


def why_out_of_bounds(configs: EffectiveConfigs, image: MetadataImage, group_id: str, values: Values) -> str | None:
    """None when the group may change so; `values` are numbers already."""
    for name, value in values.items():
        if value is None:
            continue
        low, high = (int(configs.agent_value(bound)) for bound in BOUNDS[name])
        if not low <= int(value) <= high:
            least, most = BOUNDS[name]
            return f"invalid value for config {name}: {value!r} is not between {least}={low} and {most}={high}"
    beat, session = (_then(configs, image, group_id, values, name) for name in (HEARTBEAT_INTERVAL, SESSION_TIMEOUT))
    if values and beat >= session:
        return f"{HEARTBEAT_INTERVAL} must be less than {SESSION_TIMEOUT}: {beat} is not less than {session}"
    return None


def _then(configs: EffectiveConfigs, image: MetadataImage, group_id: str, values: Values, name: str) -> int:
    """What the group would have."""
    if (value := values.get(name)) is not None:
        return int(value)
    layers = configs.group_layers(image, group_id, name)
    return int(next(layer.value for layer in layers if name not in values or layer.source is not ConfigSource.GROUP))
