"""Building a change of a table: files and manifests are written, nothing is sent to the catalog. The call that
failed tells their errors apart.

    calls of the storage   (BuiltFiles)   it fails: UnavailableError, try again
    everything else        (building)     it fails: BuildingError, the same rows fail again

Place: around what committing.py stages, and what writes data files. The catalog's own calls are in catalog.py.
Invariant: an error of building, of any type, never means that the catalog is away: a record may be the reason, and
the caller finds out which (unwritable.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.tables.errors import BuildingError


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
