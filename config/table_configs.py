"""The topic configs `table.*`: they declare a topic's Iceberg table; the role `tables` makes it and keeps it so.

Place: a part of config/topic_configs.py; tables/declaration.py reads the values.
Invariant: what a table cannot change once it exists is not changed while `table.enable` is true. A topic has such a
config only in a cluster with the feature level `topic.tables`: agents without it do not know these names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.config.config_definition import LONG_MAX, ConfigDefinition, list_items

TABLE_PREFIX = "table."
ENABLE, NAME, VALUE_FORMAT = "table.enable", "table.name", "table.value.format"
START, PARTITION_BY, TOLERANCE = "table.start", "table.partition.by", "table.errors.tolerance"
INTERVAL_MS = "table.commit.interval.ms"
RETENTION_MS = "table.retention.ms"
MODE, KEY_COLUMNS = "table.mode", "table.key.columns"
APPEND, UPSERT = "append", "upsert"
DEAD_LETTERS_SUFFIX = "_dead_letters"
"""A table's name with this at its end is that of its dead-letter table; no other table has such a name."""
RECORD_KEY = "key"
"""The record's key, among key columns."""
LAYOUTS = ("day", "partition")
"""What every table can be partitioned by: the day of the record's time, the topic's partition."""
_TRANSFORM = r"identity|year|month|day|hour|(?:bucket|truncate)\[[1-9][0-9]{0,5}\]"
_COLUMN = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_TERM = re.compile(rf"({_TRANSFORM})\(({_COLUMN})\)|({_COLUMN})", re.ASCII)
_TRANSFORM_NAMES = ("identity", "year", "month", "hour", "bucket", "truncate")
"""A column of such a name needs `identity(NAME)`: alone, it is a transform without its column."""
_TOP_COLUMN = re.compile(r"[A-Za-z_]\w{0,199}", re.ASCII)
_OTHER = re.compile(r"[^A-Za-z0-9_]")
INTERVAL_MS_MIN = 100
_TABLE_NAME = re.compile(r"[\w-]{1,200}", re.ASCII)
BINARY, REGISTRY, JSON, AVRO, JSON_SCHEMA = VALUE_FORMATS = ("binary", "registry", "json", "avro", "json-schema")
"""How values become columns (tables/values/formats.py)."""
_WITH_FILE = "the schema is in a file: `headrace tables create --schema-file`"


def _why_no_name(value: str) -> str | None:
    return None if not value or _TABLE_NAME.fullmatch(value) else "not up to 200 letters, digits, _ and -"


def _why_no_start(value: str) -> str | None:
    is_time = value.isascii() and value.isdecimal() and len(value) < 19
    return None if value in ("earliest", "latest") or is_time else "not earliest, latest or milliseconds since 1970"


def why_no_key_column(value: str) -> str | None:
    """Return None if this could be a key column; whether the table has it is not known here."""
    return None if _TOP_COLUMN.fullmatch(value) else f"not {RECORD_KEY} or the name of a column"


def _why_no_key_columns(value: str) -> str | None:
    columns = list_items(value)
    if len(set(columns)) < len(columns):
        return "a list with a column twice"
    return next((f"{each}: {why}" for each in columns if (why := why_no_key_column(each))), None)


def _why_no_interval(value: str) -> str | None:
    is_number = value.isascii() and value.isdecimal()
    if value == "-1" or (is_number and INTERVAL_MS_MIN <= int(value) <= LONG_MAX):
        return None
    return f"not -1, or at least {INTERVAL_MS_MIN}"


def _why_no_retention(value: str) -> str | None:
    is_number = value.isascii() and value.isdecimal()
    return None if value == "-1" or (is_number and int(value) <= LONG_MAX) else "not -1, or milliseconds"


def why_no_layout(text: str) -> str | None:
    """Return None if a table could be partitioned by this; whether it has the column is not known here."""
    if text in _TRANSFORM_NAMES or (text not in LAYOUTS and _TERM.fullmatch(text) is None):
        return f"not {', '.join(LAYOUTS)}, a column, or year, month, day, hour, bucket[N] or truncate[N] of (COLUMN)"
    return None


def layout_parts(text: str) -> tuple[str, str]:
    """Return transform and column of a text that `why_no_layout` accepts, and that is not in LAYOUTS."""
    found = _TERM.fullmatch(text)
    assert found is not None, text
    return ("identity", found[3]) if found[3] else (found[1], found[2])


def _why_no_layouts(value: str) -> str | None:
    return next((f"{each}: {why}" for each in list_items(value) if (why := why_no_layout(each))), None)


TABLE_CONFIGS: dict[str, ConfigDefinition] = {
    INTERVAL_MS: ConfigDefinition(
        "-1", "long", "The pause between commits to the table; -1: tables.commit.interval.ms of the process that keeps"
        " it.", check=_why_no_interval
    ),
    ENABLE: ConfigDefinition(
        "false", "boolean", "With true, the role `tables` makes the topic's Iceberg table and keeps it; false pauses"
        " it."
    ),
    TOLERANCE: ConfigDefinition(
        "invalid_data", "string", "Errors that do not pause the table: none; invalid_data, a record that does not fit;"
        " all, also a schema that the table cannot follow. Such records go to its dead-letter table.",
        allowed=("none", "invalid_data", "all"),
    ),
    KEY_COLUMNS: ConfigDefinition(
        "", "list", "The columns of the value that make the key of a table with table.mode=upsert; `key` is the"
        " record's key, which is what it is if the list is empty. Fixed while table.enable is true.",
        check=_why_no_key_columns
    ),
    MODE: ConfigDefinition(
        "append", "string", "append: a row per record; upsert: a row per key, which headrace-spark-tables keeps, for a"
        " topic with cleanup.policy=compact or with table.key.columns. Fixed while table.enable is true.",
        allowed=(APPEND, UPSERT),
    ),
    NAME: ConfigDefinition(
        "", "string", "The table's name; empty: the topic's in lower case, with _ for other characters. Fixed while"
        " table.enable is true.", check=_why_no_name
    ),
    PARTITION_BY: ConfigDefinition(
        "", "list", "What the table is partitioned by, as for `headrace tables create --partition-by`. Fixed while"
        " table.enable is true.", check=_why_no_layouts
    ),
    RETENTION_MS: ConfigDefinition(
        "-1", "long", "Rows of the table with an older record are deleted, however long the topic keeps it; -1: none"
        " are.", check=_why_no_retention
    ),
    START: ConfigDefinition(
        "earliest", "string", "The first record of the table: earliest, latest, or milliseconds since 1970. Fixed while"
        " table.enable is true.", check=_why_no_start
    ),
    VALUE_FORMAT: ConfigDefinition(
        "binary", "string", "How values become columns, as for `headrace tables create`. Fixed while table.enable is"
        " true.", allowed=VALUE_FORMATS,
        refused=dict.fromkeys((AVRO, JSON_SCHEMA), _WITH_FILE),
    ),
}  # fmt: skip
FIXED = (NAME, VALUE_FORMAT, START, PARTITION_BY, MODE, KEY_COLUMNS)
"""What a table has from its creation on."""


def default_name(topic: str) -> str:
    """The name of a topic's table: letters, digits and _, so that every engine takes it unquoted."""
    return _OTHER.sub("_", topic).lower()


def table_name(topic: str, configs: Mapping[str, str]) -> str:
    """Return the name of the table that a topic with these configs has."""
    return configs.get(NAME) or default_name(topic)


def why_reserved(name: str) -> str | None:
    """Return None if a topic's table can have this name."""
    if not name.lower().endswith(DEAD_LETTERS_SUFFIX):
        return None
    return f"{name}: names with {DEAD_LETTERS_SUFFIX} at the end are those of dead-letter tables: set {NAME} to another"


def why_not_named(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return None if the configs `after` declare no table, or one with a name that it can have. A table that is
    declared already keeps its name.
    """
    if not is_enabled(after):
        return None
    name = table_name(topic, after)
    return None if is_enabled(before) and table_name(topic, before) == name else why_reserved(name)


def is_enabled(configs: Mapping[str, str]) -> bool:
    """Return whether a topic with these configs has a table."""
    return configs.get(ENABLE, "false").lower() == "true"


def fixed_values(configs: Mapping[str, str]) -> dict[str, str]:
    """Return what the configs say of FIXED, defaults included; equal texts mean the same table."""
    found = {name: configs.get(name, TABLE_CONFIGS[name].default) for name in FIXED}
    return found | {name: ",".join(list_items(found[name])) for name in (PARTITION_BY, KEY_COLUMNS)}


def why_not_with(configs: Mapping[str, str], *, has_feature: bool) -> str | None:
    """Return None if a topic of this cluster can have the configs. `has_feature`: it has the level `topic.tables`."""
    if has_feature:
        return None
    ours = (name for name, value in configs.items() if name in TABLE_CONFIGS and value != TABLE_CONFIGS[name].default)
    if (name := next(ours, None)) is None:
        return None
    return f"{name} needs the feature level topic.tables=1: `headrace features upgrade --feature topic.tables=1`"


def why_fixed(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return None if a table with the configs `before` can continue with `after`."""
    if not is_enabled(before) or not is_enabled(after):
        return None
    was, wanted = fixed_values(before), fixed_values(after)
    changed = next((name for name in FIXED if was[name] != wanted[name]), None)
    if changed is None:
        return None
    return (
        f"{changed} cannot change while {ENABLE} is true: the table has {was[changed] or 'the default'!r}. Another"
        f" table needs another {NAME}, and {ENABLE}=false meanwhile"
    )
