"""Signatures of SQL functions, read from the files that define them, and the statement that calls one.

Place: between a function's .sql file and the Statement that calls it: the file is the only place that
names parameters, types and result columns.
Invariant: parse_signatures reads the few forms that this package's files use, and refuses any other.
tests/metastore/test_statements.py compares the result with the catalog of a migrated database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.storage.errors import InvalidError

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
