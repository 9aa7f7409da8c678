"""The .sql files of this package: functions of the database, plain queries, numbers that Python shares.

Place: read by migrate (functions) and by each Statement when it is first sent. A function's .sql file is the only
place that names its parameters, types and result columns. For each shared number there is a SQL function without
parameters that returns it; migrate installs these with the functions of the files.
Invariant of numbers: Python is the only source: the enums of metastore/api/, the types of records, and a few
constants. Most numbers are stored: never change one, and never use it again for something else
(tests/golden/sql_names.txt). A function keeps its type: Postgres refuses another one.
The planner puts the number in the place of each call, so partial indexes and plans are those of the numbers.
Locks: none. Idempotent: pure. Cost: none.
Invariant of signatures: parse_signatures reads the few forms that this package's files use, and refuses any other.
tests/metastore/test_statements.py compares the result with the catalog of a migrated database.
Invariant of files: a name means one thing: a function that one file defines, or a plain query that is one file. A
function can have a second signature in another file, for agents of the release before; Python calls the one in the
file with the function's name.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable

from headrace.config.link_configs import LINK_RESOURCE
from headrace.metastore.api.commit import BatchOutcome, BatchTransaction, BulkOutcome, FileStatus, MovedKeys
from headrace.metastore.api.compaction import SwapOutcome
from headrace.metastore.api.files import FileState
from headrace.metastore.api.inline import InlineSlotState
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.linked_groups import GroupOutcome, LastOffsets
from headrace.metastore.api.links import LinkedOutcome, Promotion
from headrace.metastore.api.read import FeedKind, OffsetKind
from headrace.metastore.api.restoring import RestoreOutcome
from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionDeleteState
from headrace.metastore.api.segments import ReferenceState, SegmentCause, StartOutcome
from headrace.metastore.api.topics import PartitionState, RemovalOutcome
from headrace.metastore.api.transactions import TransactionState
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.kip631_records import (
    TOPIC_RESOURCE,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.own_records import ControlledShutdownRecord, HideBrokerRecord, ShowBrokerRecord
from headrace.metastore.partitions.merging import MergePhase
from headrace.metastore.transaction_markers import MARKER_BYTES
from headrace.storage.errors import InvalidError

INTEGERS: Mapping[str, type[enum.IntEnum]] = {
    "job": JobState,
    "file": FileState,
    "removal": RemovalOutcome,
    "batch": BatchOutcome,
    "in": BatchTransaction,
    "keys": MovedKeys,
    "offset": OffsetKind,
    "segment": RemoteLogSegmentState,
    "partition": RemotePartitionDeleteState,
    "cause": SegmentCause,
    "reference": ReferenceState,
    "restore": RestoreOutcome,
}
"""By the prefix of the names: enums with functions that return int."""
SMALL_INTEGERS: Mapping[str, type[enum.IntEnum]] = {
    "state": PartitionState,
    "merge": MergePhase,
    "commit": FileStatus,
    "bulk": BulkOutcome,
    "feed": FeedKind,
    "swap": SwapOutcome,
    "start": StartOutcome,
    "inline": InlineSlotState,
    "linked": LinkedOutcome,
    "promotion": Promotion,
    "group": GroupOutcome,
    "last": LastOffsets,
}
"""The same for smallint."""
SINGLE: Mapping[str, int] = {
    "marker_bytes": MARKER_BYTES,
    "topic_resource": TOPIC_RESOURCE,
    "broker_resource": BROKER_RESOURCE,
    "link_resource": LINK_RESOURCE,
    "record_unregister_broker": UnregisterBrokerRecord.record_type,
    "record_fence_broker": FenceBrokerRecord.record_type,
    "record_unfence_broker": UnfenceBrokerRecord.record_type,
    "record_controlled_shutdown": ControlledShutdownRecord.record_type,
    "record_hide_broker": HideBrokerRecord.record_type,
    "record_show_broker": ShowBrokerRecord.record_type,
}
"""Numbers without an enum, that return int."""


def named_numbers() -> Iterator[tuple[str, str, int]]:
    """Name, type and number of each function."""
    for kind, enums in (("int", INTEGERS), ("smallint", SMALL_INTEGERS)):
        for prefix, members in enums.items():
            for member in members:
                yield f"{prefix}_{_suffix(prefix, member)}", kind, int(member)
    yield "transaction_ongoing", "smallint", int(TransactionState.ONGOING)
    for name, number in SINGLE.items():
        yield name, "int", number


def names_sql() -> str:
    """The functions' definitions."""
    return "".join(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS {kind}\n"
        f"LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN {number}{'' if kind == 'int' else '::smallint'};\n"
        for name, kind, number in named_numbers()
    )


def _suffix(prefix: str, member: enum.IntEnum) -> str:
    """The member's name; of Kafka's names, which contain the prefix, the rest."""
    return member.name.lower().replace(f"_{prefix}", "") if prefix in ("segment", "partition") else member.name.lower()


_COMMENT = re.compile(r"--[^\n]*")
_FUNCTION = re.compile(
    r"CREATE OR REPLACE FUNCTION\s+(?P<name>\w+)\s*\((?P<parameters>[^()]*)\)\s*"
    r"(?:RETURNS\s+(?:TABLE\s*\((?P<table>[^()]*)\)|(?P<set>SETOF\s+)?(?P<type>[\w \[\]]+?))\s+)?LANGUAGE\b"
)
_DEFINITION = re.compile(r"CREATE\s+(?:OR\s+REPLACE\s+)?FUNCTION\b", re.IGNORECASE)
_PREFIX = "p_"


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter or a column. `type` as the file spells it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Signature:
    """One function. `columns` is empty when it returns a single unnamed value per row."""

    name: str
    parameters: tuple[Field, ...]
    columns: tuple[Field, ...]
    returns: str
    """The type of that value; "record" when there are columns."""

    @property
    def call(self) -> str:
        """The statement that calls it, with psycopg's `%(x)s` for parameter p_x, cast to its type.

        An interval is given in milliseconds, as `%(x_ms)s`: psycopg would send a whole day of a
        timedelta as one calendar day, which a daylight saving time makes longer or shorter.
        """
        arguments = ", ".join(f"{field.name} => {_argument(field)}" for field in self.parameters)
        if not self.columns:
            return f"SELECT {self.name}({arguments})"
        return f"SELECT {self._selected} FROM {self.name}({arguments})"

    @property
    def call_in_life(self) -> str:
        """The same, refused unless `%(life)s` is the metastore's life (life/assert_life.sql).

        assert_life comes first, as its lock comes before all others: the arguments are taken from its row.
        """
        life = "assert_life(%(life)s::int) AS life (is_current)"
        if not self.columns:
            return f"{self.call} FROM {life}"
        arguments = ", ".join(
            f"{field.name} => CASE WHEN life.is_current THEN {_argument(field)} END" for field in self.parameters
        )
        return f"SELECT {self._selected} FROM {life} CROSS JOIN LATERAL {self.name}({arguments}) AS called"

    @property
    def _selected(self) -> str:
        return ", ".join(column.name for column in self.columns)


def parse_signatures(text: str) -> tuple[Signature, ...]:
    """The functions that a file defines, in its order; InvalidError for a form that is not known here."""
    bare = _COMMENT.sub("", text)
    found = tuple(_signature(match) for match in _FUNCTION.finditer(bare))
    defined = len(_DEFINITION.findall(bare))
    if len(found) != defined:
        names = ",".join(signature.name for signature in found)
        raise InvalidError(f"a function's signature cannot be read: defined={defined} read={names or 'none'}")
    return found


def _signature(match: re.Match[str]) -> Signature:
    fields = _fields(match["parameters"])
    parameters = tuple(field for mode, field in fields if mode != "OUT")
    columns = tuple(field for mode, field in fields if mode != "IN")
    if match["table"] is not None:
        columns = tuple(field for _, field in _fields(match["table"]))
    return Signature(match["name"], parameters, columns, "record" if columns else match["type"])


def _fields(text: str) -> list[tuple[str, Field]]:
    """Each element of a list with its mode: IN, OUT or INOUT."""
    fields = []
    for element in filter(None, (" ".join(part.split()) for part in text.split(","))):
        mode, _, rest = element.partition(" ")
        if mode not in ("OUT", "INOUT"):
            mode, rest = "IN", element
        name, _, kind = rest.partition(" ")
        fields.append((mode, Field(name, kind)))
    return fields


def _argument(field: Field) -> str:
    if not field.name.startswith(_PREFIX):
        raise InvalidError(f"a function that is called needs parameters named p_...: parameter={field.name}")
    name = field.name.removeprefix(_PREFIX)
    match field.type:
        case "interval":
            return f"%({name}_ms)s::bigint * interval '1 ms'"
        case "interval[]":
            elements = f"unnest(%({name}_ms)s::bigint[]) WITH ORDINALITY AS given (ms, number)"
            return f"array(SELECT ms * interval '1 ms' FROM {elements} ORDER BY number)"
        case plain:
            return f"%({name})s::{plain}"


PACKAGE = resources.files("headrace.metastore.postgres")


@dataclass(frozen=True)
class SqlFile:
    """One file; `name` without its suffix."""

    name: str
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The functions that the file defines; none for a plain query."""
        return parse_signatures(self.text)


def sql_files(directory: Traversable) -> list[SqlFile]:
    """The directory's .sql files in order of their names."""
    entries = [entry for entry in directory.iterdir() if entry.name.endswith(".sql")]
    found = [SqlFile(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in entries]
    return sorted(found, key=lambda file: file.name)


@cache
def function_files() -> tuple[SqlFile, ...]:
    """Return what migrate installs, in this order: a folder's own files before those of its subfolders, by name."""
    return (SqlFile("names", names_sql()), *(file for file in _package_files() if file.signatures))


@cache
def query_files() -> dict[str, SqlFile]:
    """The plain queries by name."""
    return {file.name: file for file in _package_files() if not file.signatures}


@cache
def signatures() -> dict[str, Signature]:
    """Every function by name; of two signatures the one in the file of that name."""
    found: dict[str, Signature] = {}
    for file in function_files():
        for signature in file.signatures:
            if signature.name == file.name or signature.name not in found:
                found[signature.name] = signature
    return found


@cache
def _package_files() -> tuple[SqlFile, ...]:
    return tuple(_walk(PACKAGE))


def _walk(directory: Traversable) -> Iterator[SqlFile]:
    yield from sql_files(directory)
    folders = [entry for entry in directory.iterdir() if entry.is_dir() and entry.name != "__pycache__"]
    for folder in sorted(folders, key=lambda entry: entry.name):
        yield from _walk(folder)
