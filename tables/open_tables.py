"""Opens the tables of a catalog to change them as a user says: what `headrace tables` does.

Place: under cli/topic_tables.py, the doctor and the console; imports pyiceberg. `headrace tables resume` continues a
table that was changed by others: the user says from where. Blocks.
Invariant of resume: offsets change only together with a snapshot, also here: so a commit that is bound to the
snapshot before cannot continue the old offsets.
Invariant: as cli/topic_tables.py.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pyiceberg.expressions.parser import parse
from pyiceberg.table import Table

from headrace.config.settings import Settings
from headrace.config.table_configs import ENABLE
from headrace.config.table_configs import RETENTION_MS as RETENTION_CONFIG
from headrace.config.table_configs import TOLERANCE as TOLERANCE_CONFIG
from headrace.scan.cluster import open_cluster
from headrace.scan.errors import OptionError
from headrace.scan.partitions import TopicCatalog
from headrace.storage.errors import NotFoundError, UnavailableError
from headrace.tables.catalog import CatalogAddress, name_of, translated, view_of
from headrace.tables.commit.appending import Append, append
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.snapshots import KnownManifests, offsets_at
from headrace.tables.creating import NewTable, Values, create_table, declarations, require_key
from headrace.tables.listing import ListedTables
from headrace.tables.log.policy import Ahead
from headrace.tables.looking import Condition, TableLook
from headrace.tables.state import (
    AS_IT_IS,
    DETACHED,
    PAUSED,
    RETENTION_MS,
    TOLERANCE,
    WITH_UPKEEP,
    Broken,
    Follows,
    NotBegun,
    TablePosition,
    TableProgress,
    before_positions,
    standing_of,
)
from headrace.tables.upkeep.deleting import RowDeletion, column_in, condition_of, count_rows, with_key
from headrace.tables.upkeep.expiry import expire
from headrace.tables.upkeep.replacing import Replacer


class Choice(enum.Enum):
    """The place from which a table continues."""

    ROWS = "rows"
    """Continue after the rows of the current snapshot: what was rolled back is appended again."""
    OFFSETS = "offsets"
    """Continue at the table's offsets: what was rolled back stays out."""
    LOG = "log"
    """Continue where the log ends: rows that the log does not have (any more) are deleted."""


def decide(table: Table, choice: Choice, letters: Table | None = None) -> dict[int, TablePosition]:
    """Commit the choice for a table that was rolled back, and return the positions at which it continues. `letters`:
    its dead-letter table, which goes back with it.

    OptionError if the table was not rolled back, or if it does not record the position of this choice.
    UnavailableError: try again.
    """
    standing = standing_of(view_of(table))
    if isinstance(standing, (Follows, NotBegun)):
        raise OptionError(f"the table's offsets are those of its rows: nothing to decide: {name_of(table)}")
    positions = None if standing.own_id is None else offsets_at(table, standing.own_id)
    if choice is Choice.OFFSETS:
        positions = None if standing.progress is None else standing.progress.positions
    if choice is Choice.LOG or positions is None:
        raise OptionError(f"the table does not say where to continue by {choice.value!r}: {standing.reason}")
    if letters is not None:
        withdraw(letters, positions)
    _commit(table, standing.progress, positions)
    return dict(positions)


def decide_letters(letters: Table, choice: Choice) -> None:
    """Continue a dead-letter table that was rolled back: what was rolled back stays out. Errors as `decide`."""
    if choice is not Choice.OFFSETS:
        raise OptionError(f"a dead-letter table continues at its offsets: say --at offsets: {name_of(letters)}")
    decide(letters, choice)


def follow_log(table: Table, ahead: Mapping[int, Ahead], letters: Table | None = None) -> dict[int, TablePosition]:
    """Delete the rows that the log does not have, and continue at its end; the positions there. Errors as `decide`."""
    standing = standing_of(view_of(table))
    if isinstance(standing, (Broken, NotBegun)):
        raise OptionError(f"the table's offsets are not those of its rows: {name_of(table)}")
    ends = {each.partition: TablePosition(each.log_end) for each in ahead.values()}
    if letters is not None:
        withdraw(letters, ends)
    _delete_behind(table, ends)
    positions = standing.progress.positions | ends
    _commit(table, standing.progress, positions)
    return positions


def withdraw(letters: Table, ends: Mapping[int, TablePosition]) -> None:
    """Delete the dead letters at and behind these positions: their table goes back there, and decides again."""
    standing = standing_of(view_of(letters))
    if isinstance(standing, Broken):
        raise OptionError(f"the dead-letter table cannot go back: {standing.reason}")
    if isinstance(standing, NotBegun):
        return
    have = standing.progress.positions
    back = {p: end for p, end in ends.items() if p in have and have[p].offset > end.offset}
    if back:
        _delete_behind(letters, back)
        _commit(letters, standing.progress, have | back)


def _delete_behind(table: Table, ends: Mapping[int, TablePosition]) -> None:
    """Delete the rows at and behind these positions; `table` is as after that. Errors as RowDeletion."""
    partition, offset = (column_in(table, name) for name in ("partition", "offset"))

    def load() -> Table:
        with translated(f"table {name_of(table)}"):
            return table.catalog.load_table(table.name())

    replacer = Replacer(load, KnownManifests())
    for number, end in ends.items():
        RowDeletion(parse(f"{partition} == {number} and {offset} >= {end.offset}")).delete(replacer)
    with translated(f"table {name_of(table)}"):
        table.refresh()


def _commit(table: Table, before: TableProgress | None, positions: Mapping[int, TablePosition]) -> None:
    dead = () if before is None else before_positions(before.dead, positions)
    made = append(table, before, Append(None, positions, dead=dead))
    if made.outcome is not CommitOutcome.COMMITTED:
        raise UnavailableError(f"the table changed meanwhile, or the catalog did not answer: {name_of(table)}")


@asynccontextmanager
async def open_tables(settings: Settings) -> AsyncIterator[OpenTables]:
    """Metastore, bucket and catalog. Errors as open_cluster and CatalogAddress.open."""
    address = CatalogAddress.of(settings)
    catalog = await asyncio.to_thread(address.open)
    try:
        async with open_cluster(settings) as cluster:
            yield OpenTables(cluster, catalog, address)
    finally:
        await asyncio.to_thread(catalog.close)


class OpenTables(ListedTables):
    """The tables of one namespace, to read and to change."""

    __slots__ = ()

    async def create(
        self,
        name: str,
        topic: str,
        start: str,
        layout: Sequence[str],
        properties: Mapping[str, str],
        values: Values | None = None,
        retention_ms: int = -1,
    ) -> None:
        """Create the table and fix where it begins. NotFoundError for an unknown topic; errors as TableCatalog and
        require_format.
        """
        image = await TopicCatalog(self.cluster.metastore.cluster).refresh()
        found = image.topics_by_name.get(topic)
        if found is None:
            raise NotFoundError(f"topic does not exist: topic={topic}")
        _require_retention(retention_ms)
        values = values or Values()
        require_key(image, topic, values)
        await create_table(self.cluster, self.catalog, found, NewTable(name, start, layout, properties, values))
        if retention_ms >= 0:
            await asyncio.to_thread(self.catalog.set_property, name, RETENTION_MS, str(retention_ms))

    async def pause(self, name: str, reason: str) -> None:
        """Let no worker append until `resume`."""
        await asyncio.to_thread(self.catalog.set_property, name, PAUSED, reason)

    async def alter(self, name: str, *, retention_ms: int) -> None:
        """Change how long the table keeps its rows. OptionError for a table that topic configs made."""
        _require_retention(retention_ms)
        look = await self.look(name)
        if look.declared is not None:
            raise OptionError(f"topic configs made this table: set {RETENTION_CONFIG} of topic {look.definition.topic}")
        value = str(retention_ms) if retention_ms >= 0 else ""
        await asyncio.to_thread(self.catalog.set_property, name, RETENTION_MS, value)

    async def delete_rows(
        self, name: str, where: str | None, key: str | None, *, yes: bool, expires: bool
    ) -> dict[str, Any]:
        """Count the rows of a condition, or of records with a key, and with `yes` delete them. OptionError for a
        condition that this table cannot have; TableError for a table of others; UnavailableError: try again.
        """
        if expires and not yes:
            raise OptionError("--expire-snapshots needs --yes: rows that are only counted stay")
        return await asyncio.to_thread(self._delete_rows, name, where, key, yes=yes, expires=expires)

    def _delete_rows(
        self, name: str, where: str | None, key: str | None, *, yes: bool, expires: bool
    ) -> dict[str, Any]:
        table = self.catalog.load_own_or_letters(name)
        condition = with_key(table, (key or "").encode()) if where is None else condition_of(table, where)
        if yes:
            replacer = Replacer(lambda: self.catalog.load_own_or_letters(name), KnownManifests())
            done = RowDeletion(condition).delete(replacer)
            if expires:
                expire(self.catalog.load_own_or_letters(name), sys.maxsize)
        else:
            done = count_rows(table, condition)
        snapshots = len(self.catalog.load_own_or_letters(name).metadata.snapshots)
        return {
            "table": name,
            "rows": done.rows,
            "files": done.dropped + done.rewritten,
            "is_deleted": yes,
            "snapshots": max(0, snapshots - 1),
        }

    async def resume(self, name: str, at: str | None, tolerance: str | None = None) -> None:
        """Let workers append again. OptionError if the table is stopped and `at` does not say from where.

        `tolerance`: the table's from now on.
        """
        look = await self.look(name)
        if look.condition is Condition.DETACHED or look.is_topic_gone:
            raise OptionError(f"the table has no topic to follow: {look.reason}")
        if look.condition is Condition.STOPPED:
            if at is None:
                raise OptionError(f"the table is stopped: {look.reason}. Say --at rows, offsets or log")
            await self._continue(look, Choice(at))
        elif at is not None:
            raise OptionError(f"the table is not stopped: {name}: --at is for one that is")
        if look.declared is not None and (tolerance is not None or not look.declared.is_enabled):
            config = ENABLE if tolerance is None else TOLERANCE_CONFIG
            raise OptionError(f"topic configs made this table: set {config} of topic {look.definition.topic}")
        if tolerance is not None:
            if not look.definition.has_dead_letters:
                raise OptionError(f"every record fits: {name} has no schema")
            await asyncio.to_thread(self.catalog.set_property, name, TOLERANCE, tolerance)
        await asyncio.to_thread(self.catalog.set_property, name, PAUSED, "")

    async def detach(self, name: str, *, with_upkeep: bool) -> None:
        """Keep the table of a topic that was deleted, with its upkeep or as it is. OptionError if the topic exists."""
        look = await self.look(name)
        if not look.is_topic_gone and look.condition is not Condition.DETACHED:
            raise OptionError(f"topic {look.definition.topic} exists: `headrace tables pause {name}` stops appending")
        await asyncio.to_thread(self.catalog.set_property, name, DETACHED, WITH_UPKEEP if with_upkeep else AS_IT_IS)

    async def _continue(self, look: TableLook, choice: Choice) -> None:
        if look.letters.broken and look.letters.table is not None:
            await asyncio.to_thread(decide_letters, look.letters.table, choice)
            return
        letters = None
        if look.definition.has_dead_letters:
            letters = await asyncio.to_thread(self.catalog.own_dead_letters, look.table)
        if look.step is None or not look.step.ahead:
            await asyncio.to_thread(decide, look.table, choice, letters)
        elif choice is not Choice.LOG:
            raise OptionError(f"say --at log: {look.reason}")
        elif look.definition.is_keyed:
            raise OptionError(
                "a table with a row per key cannot go back: the rows that it replaced are gone. Drop it and create it"
                f" again: {look.reason}"
            )
        else:
            ahead = {each.partition: each for each in look.step.ahead}
            await asyncio.to_thread(follow_log, look.table, ahead, letters)

    async def drop(self, name: str, *, purge: bool) -> None:
        """Remove it from the catalog."""
        _, definition = await asyncio.to_thread(self.catalog.load_own, name)
        image = await TopicCatalog(self.cluster.metastore.cluster).refresh()
        for topic, declared in declarations(image):
            if definition.declared and (topic.topic_id, declared.name) == (definition.topic_id, name):
                raise OptionError(
                    f"topic {topic.name} has {ENABLE}=true, which would make {name} again: set it to false"
                )
        await asyncio.to_thread(self.catalog.drop, name, purge=purge)


def _require_retention(retention_ms: int) -> None:
    if retention_ms < -1:
        raise OptionError(f"--retention-ms is -1, or milliseconds: {retention_ms}")
