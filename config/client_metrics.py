"""Kafka's configs of one client-metrics subscription: which metrics clients would send to the cluster, and how often.

Place: the config requests validate with it and show it; agents do not collect clients' metrics.
Invariant: what kafka-client-metrics sets is stored and shown, and nothing else: see the meanings.
Source: KIP-714, ClientMetricsConfigs.
"""

from __future__ import annotations

import re

from headrace.config.config_definition import ConfigDefinition, ConfigEffect, list_items

_NOT_COLLECTED = "stored and shown, but clients are not asked for their metrics"
_SELECTORS = frozenset(
    {
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


def _why_no_match(value: str) -> str | None:
    """Return None for a list of selector=pattern."""
    for item in list_items(value):
        selector, equals, pattern = item.partition("=")
        if not equals or selector.strip() not in _SELECTORS:
            return f"not a list of selector=pattern, with selectors of {', '.join(sorted(_SELECTORS))}"
        try:
            re.compile(pattern.strip())
        except re.error as error:
            return f"not a pattern: {error}"
    return None


CLIENT_METRICS_CONFIGS: dict[str, ConfigDefinition] = {
    "interval.ms": ConfigDefinition("300000", "int", _NOT_COLLECTED, ConfigEffect.UNUSED, low=100, high=3_600_000),
    "match": ConfigDefinition("", "list", _NOT_COLLECTED, ConfigEffect.UNUSED, check=_why_no_match),
    "metrics": ConfigDefinition("", "list", _NOT_COLLECTED, ConfigEffect.UNUSED),
}
"""Configs of client metrics by name."""
