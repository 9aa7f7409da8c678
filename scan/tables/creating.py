"""Creates a topic's table, and fixes where it begins: for `headrace tables create` and for topic configs.

Place: on open connections to metastore, bucket and catalog.
Invariant: a table exists with its whole definition or not at all. If its creator ends before the beginning is fixed,
the worker's first round does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.metastore.log.image import TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.tables.appending import Append, CommitOutcome, append
from headrace.scan.tables.catalog import TableCatalog, dead_letters_of
from headrace.scan.tables.log_ranges import EARLIEST, LATEST, start_positions, start_timestamp
from headrace.scan.tables.state import BINARY, Definition
from headrace.scan.tables.values.formats import require_format
from headrace.scan.tables.values.open import Tolerance
from headrace.storage.errors import AlreadyExistsError, UnavailableError


class Values(NamedTuple):
    """What the values of a new table are. `schema_text`: of a file."""

    format: str = BINARY
    schema_text: str | None = None
    tolerance: str = Tolerance.INVALID_DATA.value


async def create_table(
    cluster: ScannedCluster,
    catalog: TableCatalog,
    name: str,
    topic: TopicImage,
    start: str,
    layout: Sequence[str],
    properties: Mapping[str, str],
    values: Values,
    declared: str = "",
) -> None:
    """Errors as TableCatalog and require_format. `declared`: as Definition."""
    if start not in (EARLIEST, LATEST):
        start_timestamp(start)
    definition = Definition(
        *(cluster.metastore.cluster_id, topic.name, topic.topic_id, start, ""),
        *(values.format, values.schema_text or "", values.tolerance, declared),
    )
    columns = require_format(definition, has_file=values.schema_text is not None)
    if values.format != BINARY and dead_letters_of(name) in await asyncio.to_thread(catalog.names):
        raise AlreadyExistsError(f"the name of its dead-letter table is taken: {dead_letters_of(name)}")
    table = await asyncio.to_thread(catalog.create, name, definition, layout, properties, columns)
    positions = await start_positions(cluster, topic, start)
    made = await asyncio.to_thread(append, table, None, Append(None, positions))
    if made.outcome is CommitOutcome.UNKNOWN:
        raise UnavailableError(f"the table was created, and begins at its worker's first round: {name}")
