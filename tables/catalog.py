"""Finds, creates and drops the cluster's tables in an Iceberg catalog.

Place: between the other modules of tables and pyiceberg's catalog. Snapshots are committed by commit/committing.py and
upkeep/expiry.py; open_tables.py loads a table again by itself. All methods block: asynchronous callers use a thread.
Invariant: a table that Headrace does not keep is never changed. Errors of pyiceberg become Headrace's here; a catalog
that does not answer is UnavailableError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg import exceptions
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.config import Config

from headrace.config.addresses import without_logins, without_secrets
from headrace.config.settings import Settings
from headrace.config.table_configs import BINARY, DEAD_LETTERS_SUFFIX, why_reserved
from headrace.scan.errors import OptionError
from headrace.storage.errors import AlreadyExistsError, HeadraceError, NotFoundError, ThrottledError, UnavailableError
from headrace.tables.errors import ForeignTableError, NameTakenError, RefusedError, TableError
from headrace.tables.layout import key_paths, keyed_layout, keyed_schema, layout_of, terms_of
from headrace.tables.rows import DEAD_LETTER_SCHEMA, SCHEMA, VALUED_SCHEMA
from headrace.tables.state import (
    CLUSTER_ID,
    DEAD_LETTERS_OF,
    DECLARED,
    KEY_COLUMNS,
    KEYED_TOPIC,
    OFFSETS,
    OFFSETS_IN,
    PARTITION_BY,
    START,
    TOLERANCE,
    TOPIC,
    TOPIC_ID,
    VALUE_FORMAT,
    VALUE_SCHEMA,
    Definition,
    SnapshotView,
    TableView,
    definition_of,
)
from headrace.tables.warehouse import place_of_files, secrets_of_files

RETRIES = "commit.retry.num-retries"
OWN_PROPERTIES = {
    "format-version": "2",
    RETRIES: "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.parquet.compression-codec": "zstd",
}
"""Properties of a new table; --set changes all but the first two."""
ATTEMPTS = 10
"""Commits that a change of a property may lose against others."""
_NAME = re.compile(r"[\w-]{1,200}")
"""Dots are for namespaces; the name is part of the paths of files."""
_FIXED = ("format-version", RETRIES)


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """The place of a catalog. `properties`: pyiceberg adds those of its configuration."""

    name: str
    namespace: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings) -> CatalogAddress:
        """OptionError if the settings name no catalog."""
        if not settings.tables_catalog_name:
            raise OptionError("tables.catalog.name is not set: it names the Iceberg catalog")
        given = {"uri": settings.tables_catalog_uri, **place_of_files(settings)}
        properties = {name: value for name, value in given.items() if value}
        return cls(settings.tables_catalog_name, settings.tables_namespace, properties)

    def open(self) -> TableCatalog:
        """Connect. OptionError for a catalog that pyiceberg does not know; UnavailableError if it does not answer."""
        if "uri" not in self.properties and Config().get_catalog_config(self.name) is None:
            raise OptionError(
                f"unknown catalog: {self.name}: set tables.catalog.uri, or configure it in .pyiceberg.yaml or by"
                f" PYICEBERG_CATALOG__{self.name.upper()}__URI"
            )
        configured = Config().get_catalog_config(self.name) or {}
        opened_by = secrets_of_files()
        known = [(name, str(value)) for name, value in (*self.properties.items(), *configured.items())]
        known += [(name, value) for name, value in opened_by.items()]
        secrets = [
            text for name, value in known for text in (value, f"{name}={value}") if text == value or "@" not in value
        ]
        try:
            return TableCatalog(load_catalog(self.name, **self.properties, **opened_by), self.namespace)
        except (ValueError, exceptions.NotInstalledError) as error:
            raise OptionError(
                f"catalog {self.name} cannot be opened: {without_secrets(str(error), *secrets)}"
            ) from None
        except Exception as error:
            told = f"{type(error).__name__}: {without_secrets(str(error), *secrets)}"
            raise UnavailableError(f"catalog {self.name}: the catalog does not answer: {told}") from None


class TableCatalog:
    """An open catalog, and the namespace with the tables of this cluster."""

    def __init__(self, catalog: Catalog, namespace: str) -> None:
        self.catalog, self.namespace = catalog, namespace

    def close(self) -> None:
        self.catalog.close()

    def create(
        self,
        name: str,
        definition: Definition,
        layout: Sequence[str],
        properties: Mapping[str, str],
        columns: pa.StructType | None = None,
    ) -> Table:
        """Create the table without a row. AlreadyExistsError; OptionError for a name, property or layout that is
        refused. `columns`: of values, if they are known; else a column that the layout names may come later.
        """
        if _NAME.fullmatch(name) is None:
            raise OptionError(f"a table's name has letters, digits, _ and -: {name!r}")
        if reason := why_reserved(name):
            raise OptionError(reason)
        if fixed := [key for key in properties if key in _FIXED or key.startswith("headrace.")]:
            raise OptionError(f"cannot be set: {', '.join(fixed)}")
        is_valued = definition.value_format != BINARY
        paths = key_paths(definition)
        if paths:
            layout = keyed_layout(layout, paths, is_valued=is_valued)
        own = _properties_of(definition, layout)
        schema = VALUED_SCHEMA if is_valued else SCHEMA
        if columns is not None:
            schema = with_columns(schema, columns)
        if paths and (columns is not None or not definition.has_column_key):
            schema = keyed_schema(schema, paths)
        spec, waiting = layout_of(terms_of(layout, is_valued=is_valued), schema)
        if waiting and (columns is not None or not is_valued):
            raise OptionError(f"cannot partition by {waiting[0].text}: the table has no column {waiting[0].column}")
        return self._create(name, schema, spec, OWN_PROPERTIES | dict(properties) | own)

    def create_dead_letters(self, of: Table, definition: Definition) -> Table:
        """Create the dead-letter table of a table; if it is there, return it. NameTakenError: it is of another."""
        own = {CLUSTER_ID: definition.cluster_id, DEAD_LETTERS_OF: str(of.metadata.table_uuid)}
        try:
            return self._create(
                dead_letters_of(of.name()[-1]), DEAD_LETTER_SCHEMA, UNPARTITIONED_PARTITION_SPEC, OWN_PROPERTIES | own
            )
        except AlreadyExistsError:
            found = self.load_dead_letters(of)
            if found is None:
                raise UnavailableError(f"the dead-letter table was dropped meanwhile: {of.name()[-1]}") from None
            return found

    def load_dead_letters(self, of: Table) -> Table | None:
        """The dead-letter table of a table; None if it has none yet. NameTakenError: another table has its name."""
        name = dead_letters_of(of.name()[-1])
        try:
            table = self.load(name)
        except NotFoundError:
            return None
        if table.properties.get(DEAD_LETTERS_OF) != str(of.metadata.table_uuid):
            raise NameTakenError(
                f"the name of its dead-letter table is taken: {self.namespace}.{name} {_whose(table)}: rename or drop"
                " that one"
            )
        return table

    def own_dead_letters(self, of: Table) -> Table | None:
        """The same; None also if another table has its name."""
        try:
            return self.load_dead_letters(of)
        except NameTakenError:
            return None

    def _create(self, name: str, schema: Schema, spec: PartitionSpec, properties: dict[str, str]) -> Table:
        with translated(f"table {self.namespace}.{name}"):
            try:
                return self._create_in_namespace(name, schema, spec, properties)
            except (ValueError, exceptions.BadRequestError) as error:
                raise OptionError(f"the catalog refuses the table: {self.namespace}.{name}: {error}") from error

    def _create_in_namespace(self, name: str, schema: Schema, spec: PartitionSpec, properties: dict[str, str]) -> Table:
        """Create the namespace only if it is missing: a role that may not do that can use one that is there."""
        identifier = (*self._namespace, name)
        try:
            return self.catalog.create_table(identifier, schema, partition_spec=spec, properties=properties)
        except exceptions.NoSuchNamespaceError:
            self.catalog.create_namespace_if_not_exists(self.namespace)
        return self.catalog.create_table(identifier, schema, partition_spec=spec, properties=properties)

    def load(self, name: str) -> Table:
        """The table as the catalog has it now. NotFoundError."""
        with translated(f"table {self.namespace}.{name}"):
            return self.catalog.load_table((*self._namespace, name))

    def load_own(self, name: str) -> tuple[Table, Definition]:
        """Return a table that Headrace keeps, as the catalog has it now, and what its properties define.

        NotFoundError if the catalog has no such table; ForeignTableError if Headrace did not create it.
        """
        table = self.load(name)
        definition = definition_of(table.properties)
        if definition is None:
            raise ForeignTableError(f"not a table of a topic: {self.namespace}.{name}: Headrace did not create it")
        return table, definition

    def load_own_or_letters(self, name: str) -> Table:
        """The same, or a dead-letter table of one."""
        table = self.load(name)
        return table if DEAD_LETTERS_OF in table.properties else self.load_own(name)[0]

    def names(self) -> list[str]:
        """The names of all tables in the namespace, also of those that are not of a topic."""
        with translated(f"namespace {self.namespace}"):
            try:
                return sorted(identifier[-1] for identifier in self.catalog.list_tables(self._namespace))
            except exceptions.NoSuchNamespaceError:
                return []

    def set_property(self, name: str, key: str, value: str) -> None:
        """Set a property that no commit depends on; empty: remove it. TableError for a table that is not ours."""
        for _ in range(ATTEMPTS):
            table, _ = self.load_own(name)
            with translated(f"table {self.namespace}.{name}"):
                try:
                    with table.transaction() as change:
                        if value:
                            change.set_properties({key: value})
                        elif key in table.properties:
                            change.remove_properties(key)
                    return
                except exceptions.CommitFailedException:
                    continue
        raise UnavailableError(f"the table changed {ATTEMPTS} times meanwhile: {self.namespace}.{name}")

    def drop(self, name: str, *, purge: bool) -> None:
        """Remove the table and its dead letters from the catalog; `purge`: and their files. TableError for a table
        that is not ours.
        """
        table, _ = self.load_own(name)
        if self.own_dead_letters(table) is not None:
            self._drop(dead_letters_of(name), purge=purge)
        self._drop(name, purge=purge)

    def _drop(self, name: str, *, purge: bool) -> None:
        with translated(f"table {self.namespace}.{name}"):
            if purge:
                self.catalog.purge_table((*self._namespace, name))
            else:
                self.catalog.drop_table((*self._namespace, name))

    @property
    def _namespace(self) -> tuple[str, ...]:
        return tuple(self.namespace.split("."))


def _properties_of(definition: Definition, layout: Sequence[str]) -> dict[str, str]:
    """The definition as the table's properties have it."""
    own = {
        CLUSTER_ID: definition.cluster_id,
        KEYED_TOPIC if definition.is_keyed else TOPIC: definition.topic,
        TOPIC_ID: str(definition.topic_id),
        START: definition.start,
    }
    if definition.has_dead_letters:
        own[TOLERANCE] = definition.tolerance
    if definition.value_format != BINARY:
        own |= {VALUE_FORMAT: definition.value_format, VALUE_SCHEMA: definition.value_schema}
    if definition.key_columns:
        own[KEY_COLUMNS] = ",".join(definition.key_columns)
    if definition.declared:
        own[DECLARED] = definition.declared
    if layout:
        own[PARTITION_BY] = ",".join(layout)
    return own


def with_columns(schema: Schema, columns: pa.StructType) -> Schema:
    """The schema with more columns at its end."""
    fields = [*schema_to_pyarrow(schema, include_field_ids=False), *columns]
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(pa.schema(fields)))


def name_of(table: Table) -> str:
    """Return the table's identifier as text."""
    return ".".join(table.name())


def dead_letters_of(name: str) -> str:
    """Return the name of a table's dead-letter table."""
    return f"{name}{DEAD_LETTERS_SUFFIX}"


def _whose(table: Table) -> str:
    """Return what keeps a table, for people."""
    if DEAD_LETTERS_OF in table.properties:
        return "is the dead-letter table of a table that is gone, or has another name"
    definition = definition_of(table.properties)
    return "is no table of a topic" if definition is None else f"is the table of topic {definition.topic}"


def view_of(table: Table) -> TableView:
    """Return what state.py judges."""
    current = table.metadata.current_snapshot_id
    snapshots = {each.snapshot_id: snapshot_view(each) for each in table.metadata.snapshots}
    return TableView(table.properties, snapshots, current)


def snapshot_view(snapshot: Snapshot) -> SnapshotView:
    """A snapshot, as far as it matters."""
    summary = snapshot.summary
    more: Mapping[str, str] = {} if summary is None else summary.additional_properties
    operation = "" if summary is None else summary.operation.value
    records = int(more.get("total-records", -1))
    return SnapshotView(
        snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        operation=operation,
        sequence_number=snapshot.sequence_number or 0,
        records=records,
        offsets=more.get(OFFSETS),
        has_offsets=OFFSETS in more or OFFSETS_IN in more,
    )


_THROTTLES = (429, 503)
_NOT_DEFINITE = (408, 409, 429)
"""Answers below 500 that are no refusal: too late, a conflict, too often."""
_CODES: dict[type[Exception], int] = {
    exceptions.BadRequestError: 400,
    exceptions.UnauthorizedError: 401,
    exceptions.OAuthError: 401,
    exceptions.ForbiddenError: 403,
    exceptions.AuthorizationExpiredError: 419,
    exceptions.TooManyRequestsError: 429,
    exceptions.ServiceUnavailableError: 503,
}


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status with which the catalog answered; None if it gave none."""
    if (known := next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)) is not None:
        return known
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def definite_answer(what: str, error: BaseException) -> HeadraceError | None:
    """Return what to raise if the catalog answered that it did nothing: RefusedError for a 4xx, ThrottledError for a
    429 or 503. None: it may have done it, or did not answer.
    """
    status = status_of(error)
    if status in _THROTTLES:
        return ThrottledError(
            f"{what}: the catalog asks for fewer requests: {type(error).__name__}: {without_logins(str(error))}"
        )
    if status is not None and 400 <= status < 500 and status not in _NOT_DEFINITE:
        return RefusedError(f"{what}: the catalog refuses: {type(error).__name__}: {without_logins(str(error))}")
    return None


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn errors of pyiceberg, its HTTP client and its database into Headrace's: unless said otherwise, the catalog
    or its storage does not answer.
    """
    try:
        yield
    except HeadraceError:
        raise
    except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError, exceptions.NoSuchIdentifierError) as error:
        raise NotFoundError(f"{what} does not exist: {without_logins(str(error))}") from error
    except exceptions.TableAlreadyExistsError as error:
        raise AlreadyExistsError(f"{what} exists: {without_logins(str(error))}") from error
    except (ValueError, exceptions.ValidationError, exceptions.NotInstalledError) as error:
        raise TableError(f"{what}: {without_logins(str(error))}") from error
    except Exception as error:
        if (definite := definite_answer(what, error)) is not None:
            raise definite from error
        raise UnavailableError(
            f"{what}: the catalog does not answer: {type(error).__name__}: {without_logins(str(error))}"
        ) from error
