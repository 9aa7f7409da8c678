"""The .sql files of this package: functions that the database keeps, and plain queries. And names.py's, as one file.

Place: read by migrate (functions) and by each Statement when it is first sent.
Invariant: a name means one thing: a function that one file defines, or a plain query that is one file. A function can
have a second signature in another file, for agents of the release before; Python calls the one in the file with the
function's name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable

from headrace.metastore.postgres.names import names_sql
from headrace.metastore.postgres.signature import Signature, parse_signatures

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
