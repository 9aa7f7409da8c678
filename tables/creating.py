"""Creates a topic's table, for `headrace tables create` or for topic configs.

Place: on open connections to metastore, bucket and catalog. Before each turn of follower.py, the tables that topic
configs declare (`table.enable`) are made. Several processes may do it: the catalog creates a name once.
Invariant: a table exists with its whole definition or not at all. If its creator ends before the beginning is fixed,
the worker's first round does that.

    metadata log -> configs of each topic -> declaration -> is there such a table? -> create it

Invariant of declared tables: only new tables are written. A name that another table has is a named refusal, and
holds up no other topic.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.config.config_definition import list_items
from headrace.config.table_configs import BINARY, MODE, RECORD_KEY, UPSERT, why_no_key_column, why_reserved
from headrace.metastore.log.effective_configs import decided_topic_value
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import OptionError
from headrace.scan.partitions import TopicCatalog
from headrace.storage.errors import AlreadyExistsError, HeadraceError, UnavailableError
from headrace.tables.catalog import TableCatalog, dead_letters_of
from headrace.tables.commit.appending import Append, append
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.declaration import Declaration
from headrace.tables.errors import TableError
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


def declarations(image: MetadataImage) -> Iterator[tuple[TopicImage, Declaration]]:
    """Return the topics that are to have a table, and which."""
    for name, topic in sorted(image.topics_by_name.items()):
        declared = Declaration.of(name, image.topic_configs(name))
        if declared.is_enabled:
            yield topic, declared


@dataclass(slots=True)
class TableDeclarer:
    """Makes the tables of one catalog."""

    cluster: ScannedCluster
    topics: TopicCatalog
    catalog: TableCatalog
    _seen: dict[uuid.UUID, str] = field(default_factory=dict)
    """By topic id, the name under which its table was seen: it is not looked at again."""

    async def make(self, names: Sequence[str]) -> tuple[bool, dict[str, str]]:
        """Create what is missing; whether a table was made, and by topic, why there is no such table. `names`: tables
        that the catalog has. Errors of the metastore.
        """
        image = await self.topics.refresh()
        refused, made = {}, False
        for topic, declared in declarations(image):
            if self._seen.get(topic.topic_id) == declared.name and declared.name in names:
                continue
            if reason := await self._one(image, topic, declared, exists=declared.name in names):
                refused[topic.name] = reason
            else:
                self._seen[topic.topic_id] = declared.name
                made |= declared.name not in names
        return made, refused

    async def why_not_made(self, topic: TopicImage, declared: Declaration, names: Sequence[str]) -> str:
        """Return why the topic has no such table; empty: no worker has made it yet. `names` as `make`. Errors of the
        catalog.
        """
        if declared.name in names:
            return await self._why_not_its_own(topic, declared)
        return why_reserved(declared.name) or ""

    async def _one(self, image: MetadataImage, topic: TopicImage, declared: Declaration, *, exists: bool) -> str:
        try:
            if exists:
                return await self._why_not_its_own(topic, declared)
            values = Values(
                declared.value_format,
                tolerance=declared.tolerance,
                is_keyed=declared.is_keyed,
                key_columns=declared.key_columns,
            )
            require_key(image, topic.name, values)
            new = NewTable(declared.name, declared.start, declared.layout, {}, values, declared.fixed)
            await create_table(self.cluster, self.catalog, topic, new)
        except AlreadyExistsError as error:
            return f"the name is taken: {error}"
        except HeadraceError as error:
            return str(error)
        return ""

    async def _why_not_its_own(self, topic: TopicImage, declared: Declaration) -> str:
        name = f"{self.catalog.namespace}.{declared.name}"
        try:
            _, definition = await asyncio.to_thread(self.catalog.load_own, declared.name)
        except (TableError, OptionError) as error:
            return f"the name is taken: {error}"
        if definition.topic_id != topic.topic_id:
            return f"the name is taken: {name} is the table of topic {definition.topic} {definition.topic_id}"
        if not definition.declared:
            return f"the name is taken: `headrace tables create` made {name}"
        return ""
