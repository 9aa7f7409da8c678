"""What a topic's configs `table.*` declare, next to what its table is. Pure.

Place: between the metadata log and the tables; creating.py makes what is missing, worker.py follows what changes.
Invariant: the configs say what is wanted, and the table's properties say what it is; what the table cannot follow is
a named conflict, and never changes the table. A table that `headrace tables create` made is not touched by configs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headrace.config import table_configs as c
from headrace.config.config_definition import list_items
from headrace.tables.state import Definition

DISABLED = f"{c.ENABLE} is false"
"""Why a declared table is paused; only such a pause ends when the config is true again."""


class Declaration(NamedTuple):
    """What the configs of one topic say."""

    name: str
    is_enabled: bool
    value_format: str
    start: str
    layout: tuple[str, ...]
    tolerance: str
    interval_ms: int | None
    """None: that of the process."""
    retention_ms: int
    """-1: rows stay."""
    fixed: str
    """What cannot change once the table exists, as the table's property has it."""
    is_keyed: bool = False
    key_columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, topic: str, configs: Mapping[str, str]) -> Declaration:
        """`configs`: those that the topic has, accepted by the cluster."""
        said = c.fixed_values(configs)
        said[c.NAME] = c.table_name(topic, configs)
        mode, key_columns = said[c.MODE], said[c.KEY_COLUMNS]
        for name in (c.MODE, c.KEY_COLUMNS):  # tables that were made before there were modes do not name one
            if said[name] == c.TABLE_CONFIGS[name].default:
                del said[name]
        interval = int(configs.get(c.INTERVAL_MS, "-1"))
        return cls(
            said[c.NAME],
            c.is_enabled(configs),
            said[c.VALUE_FORMAT],
            said[c.START],
            tuple(list_items(said[c.PARTITION_BY])),
            configs.get(c.TOLERANCE, c.TABLE_CONFIGS[c.TOLERANCE].default),
            interval if interval > 0 else None,
            int(configs.get(c.RETENTION_MS, "-1")),
            msgspec.json.encode(said, order="sorted").decode(),
            mode == c.UPSERT,
            tuple(list_items(key_columns)),
        )

    def why_conflicting(self, definition: Definition) -> str:
        """Return why the table cannot be what the configs say; empty: it can."""
        if not self.is_enabled or definition.declared == self.fixed:
            return ""
        return (
            f"the topic's configs say {self.fixed}, and the table was made with {definition.declared}: set them back,"
            f" or {c.NAME} to the name of a new table"
        )
