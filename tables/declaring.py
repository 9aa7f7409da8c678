"""Makes the tables that topic configs declare (`table.enable`), and says which it cannot make.

    metadata log -> configs of each topic -> declaration -> is there such a table? -> create it

Place: before each turn of follower.py. Several processes may do it: the catalog creates a name once.
Invariant: only new tables are written. A name that another table has is a named refusal, and holds up no other
topic.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.config.table_configs import why_reserved
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.errors import OptionError
from headrace.scan.partitions import TopicCatalog
from headrace.storage.errors import AlreadyExistsError, HeadraceError
from headrace.tables.catalog import TableCatalog
from headrace.tables.creating import NewTable, Values, create_table, require_key
from headrace.tables.declaration import Declaration
from headrace.tables.errors import TableError


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
