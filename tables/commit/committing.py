"""Commits a change of a table, once: to the snapshot that the table was loaded with, or not at all.

Place: under what changes a table: appending.py and upkeep/replacing.py. Blocks: callers use a thread. The change is
built before: files and manifests are written, nothing is sent to the catalog. The catalog's own calls are in
catalog.py.
Invariant of removing files that no snapshot has: no error ends what the caller does: a file that cannot be deleted
stays, and upkeep/orphans.py finds it later.
The call that failed separates the errors of building:

    calls of the storage   (BuiltFiles)   it fails: UnavailableError, try again
    everything else        (building)     it fails: BuildingError, the same rows fail again

Invariant of building: an error, of any type, never means that the catalog is away: a record may be the reason, and
the caller finds out which (limits.py).

    stage    data files and manifests are written; nothing is sent to the catalog
    commit   one call of the catalog: assert the snapshot, change the table
             it agrees: COMMITTED   the table has another snapshot: CONFLICT   it does not answer: UNKNOWN
         it refuses, or asks for fewer requests: an error, and nothing happened

Invariant: of all commits that continue one snapshot at most one succeeds, also of several processes, and with or
without an answer: the catalog compares the snapshot in the same step that replaces it, and pyiceberg's own retry,
which would compare with the newest one, is off. So after a commit without an answer the caller reads the table
again, and needs no other memory. A commit that certainly did not happen leaves no file; one that may have happened
keeps them.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.table import CommitTableResponse, Table, Transaction

from headrace.storage.errors import HeadraceError, ThrottledError, UnavailableError
from headrace.tables.catalog import RETRIES, definite_answer, name_of, snapshot_view, status_of
from headrace.tables.errors import BuildingError, RefusedError
from headrace.tables.state import PROGRESS, TableProgress

logger = logging.getLogger(__name__)


def remove_files(storage: FileIO, locations: Iterable[str], what: str) -> int:
    """Return how many files were deleted; those that are gone already do not count. `what`: for the log."""
    count = 0
    for location in locations:
        try:
            storage.delete(location)
            count += 1
        except FileNotFoundError:
            continue  # pyiceberg removes manifests of a failed commit itself
        except Exception as error:
            logger.warning("%s was not removed: file=%s error=%s", what, location, error)
    return count


@contextmanager
def building(what: str) -> Iterator[None]:
    """Tell the errors apart. Arrow's streams report those of the storage as OSError, also while rows are encoded."""
    try:
        yield
    except (HeadraceError, MemoryError):
        raise
    except OSError as error:
        raise UnavailableError(f"{what}: its storage does not answer: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise BuildingError(f"{what}: cannot be written: {type(error).__name__}: {error}") from error


@contextmanager
def _asking(what: str) -> Iterator[None]:
    try:
        yield
    except (HeadraceError, MemoryError, OSError):
        raise
    except Exception as error:  # of any kind: each storage has a separate library
        raise UnavailableError(f"the storage does not answer: {what}: {type(error).__name__}: {error}") from error


class BuiltFiles(FileIO):
    """The storage of a table while a change is built: what fails in its calls is an error of the storage."""

    def __init__(self, storage: FileIO) -> None:
        super().__init__(storage.properties)
        self._storage = storage

    def new_input(self, location: str) -> InputFile:
        with _asking(location):
            return _File(self._storage.new_input(location))

    def new_output(self, location: str) -> OutputFile:
        with _asking(location):
            return _File(self._storage.new_output(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        with _asking(str(location)):
            self._storage.delete(location)


class _File(InputFile, OutputFile):
    """A file of the storage."""

    def __init__(self, file: Any) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        with _asking(self.location):
            return len(self._file)

    def exists(self) -> bool:
        with _asking(self.location):
            return bool(self._file.exists())

    def to_input_file(self) -> InputFile:
        return _File(self._file.to_input_file())

    def open(self, seekable: bool = True) -> InputStream:
        with _asking(self.location):
            found: InputStream = _stream(self._file.open(seekable), self.location)
            return found

    def create(self, overwrite: bool = False) -> OutputStream:
        with _asking(self.location):
            found: OutputStream = _stream(self._file.create(overwrite), self.location)
            return found


def _stream(stream: Any, location: str) -> Any:
    """Arrow's streams are as they are: their errors are OSErrors, and a detour through Python takes time."""
    return stream if isinstance(stream, pa.NativeFile) else _Stream(stream, location)


class _Stream:
    """A stream of a library in Python."""

    def __init__(self, stream: Any, location: str) -> None:
        self._stream, self._location = stream, location

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            with _asking(self._location):
                return found(*args, **more)

        return call

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


NO_RETRIES = "0"
SERVICE_UNAVAILABLE = 503
"""No answer to a commit: what is in front of the catalog says it, too, once the catalog has the request."""


class CommitOutcome(enum.Enum):
    """What became of a commit."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    """It did not happen: the table has another snapshot."""
    UNKNOWN = "unknown"
    """The catalog did not answer: read the table again."""


class WrittenFiles(BuiltFiles):
    """The table's storage; it remembers what was written, so that the files of a failed commit can be removed."""

    def __init__(self, storage: FileIO, written: Sequence[str] = ()) -> None:
        """`written`: what others wrote for the same commit."""
        super().__init__(storage)
        self._locations = list(written)

    def new_output(self, location: str) -> OutputFile:
        self._locations.append(location)
        return super().new_output(location)

    def remove(self) -> None:
        """Delete what was written. What cannot be deleted stays as an orphan, with a line in the log."""
        remove_files(self._storage, self._locations, "file of a failed commit")
        self._locations.clear()


class CommitResult(NamedTuple):
    """What became of a change. `base_id`: the snapshot that it continues; `files`: what it wrote."""

    outcome: CommitOutcome
    base_id: int | None
    files: WrittenFiles


def commit(table: Table, stage: Callable[[], Transaction], written: Sequence[str] = ()) -> CommitResult:
    """Commit what `stage` makes of `table`, on top of the snapshot that the table was loaded with.

    `written`: files that others wrote for this commit alone; they are removed with its own if it did not happen.
    Errors of `stage`, of the storage as UnavailableError, and BuildingError; RefusedError and ThrottledError of the
    catalog: nothing was committed.
    """
    storage, base_id = table.io, table.metadata.current_snapshot_id
    files = WrittenFiles(storage, written)
    table.metadata.properties[RETRIES] = NO_RETRIES  # in memory only: the table may have another value by now
    table.io = files
    try:
        change = _staged(table, stage, files)
        outcome = _sent(table, change, base_id)
    except (BuildingError, RefusedError, ThrottledError):
        files.remove()
        raise
    finally:
        table.io = storage
    if outcome is CommitOutcome.CONFLICT:
        files.remove()
    return CommitResult(outcome, base_id, files)


def _staged(table: Table, stage: Callable[[], Transaction], files: WrittenFiles) -> Transaction:
    try:
        with building(f"table {name_of(table)}"):
            return stage()
    except BaseException:
        files.remove()
        raise


class _AskedCatalog:
    """The table's catalog; it remembers whether it was asked to commit."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.is_asked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        self.is_asked = True
        return self._catalog.commit_table(table, requirements, updates)


def _sent(table: Table, change: Transaction, base_id: int | None) -> CommitOutcome:
    catalog, asked = table.catalog, _AskedCatalog(table.catalog)
    table.catalog = asked  # type: ignore[assignment]
    try:
        change.commit_transaction()
    except (CommitFailedException, ValidationException) as error:
        logger.info("table has another snapshot: table=%s base=%s error=%s", name_of(table), base_id, error)
        return CommitOutcome.CONFLICT
    except Exception as error:
        if not asked.is_asked:
            raise BuildingError(
                f"table {name_of(table)}: cannot be committed: {type(error).__name__}: {error}"
            ) from error
        definite = definite_answer(f"table {name_of(table)}", error)
        if definite is not None and status_of(error) != SERVICE_UNAVAILABLE:
            raise definite from error
        logger.warning("commit without an answer: table=%s base=%s error=%r", name_of(table), base_id, error)
        return CommitOutcome.UNKNOWN
    finally:
        table.catalog = catalog
    return CommitOutcome.COMMITTED


def set_progress(change: Transaction, progress: TableProgress) -> None:
    """Set the offsets' property in the same commit; it names the snapshot that the change has added."""
    snapshot = change.table_metadata.current_snapshot()
    assert snapshot is not None, "offsets change together with a snapshot"
    added = snapshot_view(snapshot)
    named = msgspec.structs.replace(progress, snapshot_id=added.snapshot_id, records=added.records)
    change.set_properties({PROGRESS: named.text()})
