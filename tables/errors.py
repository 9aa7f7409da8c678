"""What can be wrong with a table: in its catalog, with its schema, with a record's value, with a change of it.

Place: raised by the other modules of tables/. What an option cannot be, or the log does not have, is in scan/errors.py.
Invariant: none of them means that a catalog or a store does not answer: that is UnavailableError.
"""

from __future__ import annotations

from headrace.storage.errors import InvalidError


class TableError(InvalidError):
    """An Iceberg table is not Headrace's, or was changed so that Headrace cannot continue it."""


class SchemaError(TableError):
    """A schema asks for columns that a table cannot have, or cannot change to without rewriting its files."""


class BuildingError(TableError):
    """A change of a table cannot be built: nothing was sent to its catalog, and its storage did answer."""


class MisfitError(InvalidError):
    """A record's value is not what its table's format says."""


class ForeignTableError(TableError):
    """A table in the catalog that is not of a topic: others keep it."""


class NameTakenError(TableError):
    """The name of a table's dead-letter table is that of another table."""


class RefusedError(TableError):
    """The catalog answered that it does not do this: nothing happened."""
