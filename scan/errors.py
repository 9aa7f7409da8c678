"""What can be wrong with a scan: its options, the asked offsets, a segment file.

Place: raised by the other modules of scan/; a Spark user sees the text in the failed query or task.
Invariant: the text names the option, or topic, partition and offsets, and what to do.
"""

from __future__ import annotations

from headrace.storage.errors import InvalidError


class OptionError(InvalidError):
    """An option of the scan has no such value, or contradicts another one."""


class DataLossError(InvalidError):
    """Asked offsets are not in the log (any more), and failOnDataLoss is true."""


class UnreadableFileError(InvalidError):
    """A segment file is gone, or its bytes are not those that the metastore describes."""


class BulkWriteError(InvalidError):
    """A row does not fit its topic, or a write cannot be committed: nothing of it was, and never will be."""


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
