"""Creates a topic's table, and fixes where it begins: for `headrace tables create` and for topic configs.

Place: on open connections to metastore, bucket and catalog.
Invariant: a table exists with its whole definition or not at all. If its creator ends before the beginning is fixed,
the worker's first round does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.config.config_definition import list_items
from headrace.config.table_configs import BINARY, MODE, RECORD_KEY, UPSERT, why_no_key_column
from headrace.metastore.log.effective_configs import decided_topic_value
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import OptionError
from headrace.storage.errors import AlreadyExistsError, UnavailableError
from headrace.tables.catalog import TableCatalog, dead_letters_of
from headrace.tables.commit.appending import Append, append
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.log.ranges import EARLIEST, LATEST, start_positions, start_timestamp
from headrace.tables.state import Definition
from headrace.tables.values.formats import require_format
from headrace.tables.values.open import Tolerance

COMPACT, DEFAULT_CLEANUP = "compact", "delete"


class Values(NamedTuple):
    """What the values of a new table are. `schema_text`: of a file. `is_keyed`, `key_columns` as Definition."""

    format: str = BINARY
    schema_text: str | None = None
    tolerance: str = Tolerance.INVALID_DATA.value
    is_keyed: bool = False
    key_columns: tuple[str, ...] = ()


class NewTable(NamedTuple):
    """A table that is to be made of a topic."""

    name: str
    start: str
    layout: Sequence[str]
    properties: Mapping[str, str]
    values: Values
    declared: str = ""
    """As Definition."""


async def create_table(
    cluster: ScannedCluster,
    catalog: TableCatalog,
    topic: TopicImage,
    new: NewTable,
) -> None:
    """Errors as TableCatalog and require_format; OptionError for key columns that it cannot have."""
    name, start, values = new.name, new.start, new.values
    if start not in (EARLIEST, LATEST):
        start_timestamp(start)
    _require_columns(values)
    definition = Definition(
        cluster.metastore.cluster_id,
        topic=topic.name,
        topic_id=topic.topic_id,
        start=start,
        paused="",
        value_format=values.format,
        value_schema=values.schema_text or "",
        tolerance=values.tolerance,
        declared=new.declared,
        is_keyed=values.is_keyed,
        key_columns=values.key_columns,
    )
    columns = require_format(definition, has_file=values.schema_text is not None)
    if definition.has_dead_letters and dead_letters_of(name) in await asyncio.to_thread(catalog.names):
        raise AlreadyExistsError(f"the name of its dead-letter table is taken: {dead_letters_of(name)}")
    table = await asyncio.to_thread(catalog.create, name, definition, new.layout, new.properties, columns)
    positions = await start_positions(cluster, topic, start)
    made = await asyncio.to_thread(append, table, None, Append(None, positions))
    if made.outcome is CommitOutcome.UNKNOWN:
        raise UnavailableError(f"the table was created, and begins at its worker's first round: {name}")


def require_key(image: MetadataImage, topic: str, values: Values) -> None:
    """OptionError if the table would have a row per key, and nothing says that the topic has keys."""
    cleanup = decided_topic_value(image, topic, "cleanup.policy") or DEFAULT_CLEANUP
    if values.is_keyed and not values.key_columns and COMPACT not in list_items(cleanup):
        raise OptionError(
            f"topic {topic} has cleanup.policy={cleanup}: a table with {MODE}={UPSERT} needs one that is compacted, or"
            f" the columns of its key; `{RECORD_KEY}` is the record's"
        )


def _require_columns(values: Values) -> None:
    """OptionError for key columns that the table cannot have."""
    if values.key_columns and not values.is_keyed:
        raise OptionError(f"key columns are for a table with {MODE}={UPSERT}: {', '.join(values.key_columns)}")
    for each in values.key_columns:
        if reason := why_no_key_column(each):
            raise OptionError(f"cannot be a key: {each}: {reason}")
        if values.format == BINARY and each != RECORD_KEY:
            raise OptionError(f"cannot be a key: {each}: the table has no columns of the value")
