"""Names of the data files that a worker writes: they say which table they were written for.

    data/[partition/]headrace-<table uuid>-00000-0-<commit uuid>.parquet

Place: set by appending.py while it writes; read by orphans.py.
Invariant: no other engine, and no worker of another table at the same location, writes such a name. So what a name says
holds without a memory: the file was written for one commit of a Headrace worker to this table.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import MutableMapping

from pyiceberg.partitioning import PartitionKey
from pyiceberg.table.locations import LocationProvider, load_location_provider

PROVIDER = "write.py-location-provider.impl"
"""pyiceberg's property with the class that names files."""
SEGMENT_BYTES_MAX, PATH_BYTES_MAX = 180, 500
"""Limits of a partition value in a path, and of all. File systems take names of 255 bytes, S3 keys of 1,024."""
_SHORT_BYTES = 60
PREFIX = "headrace.file-prefix"
"""Set in memory only, for the class below."""


def file_prefix(table_uuid: uuid.UUID) -> str:
    """Return how the names of the files begin that workers write for this table."""
    return f"headrace-{table_uuid}-"


def name_files(properties: MutableMapping[str, str], table_uuid: uuid.UUID) -> None:
    """Let what is written with these properties have such names; they must not be stored. A class that a user gave
    stays, and its files are never taken for orphans.
    """
    if PROVIDER not in properties:
        properties[PROVIDER] = f"{NamedFiles.__module__}.{NamedFiles.__name__}"
        properties[PREFIX] = file_prefix(table_uuid)


class NamedFiles(LocationProvider):
    """Puts the prefix before the name that pyiceberg gives, at the place where the table's properties want it."""

    def __init__(self, table_location: str, table_properties: dict[str, str]) -> None:
        super().__init__(table_location, table_properties)
        others = {key: value for key, value in table_properties.items() if key != PROVIDER}
        self._places = load_location_provider(table_location, others)

    def new_data_location(self, data_file_name: str, partition_key: PartitionKey | None = None) -> str:
        place = None if partition_key is None else _ShortPath(partition_key)
        return self._places.new_data_location(self.table_properties[PREFIX] + data_file_name, place)  # type: ignore[arg-type]


class _ShortPath:
    """A partition with a short path, in place of pyiceberg's. Readers take a file's partition from the metadata."""

    def __init__(self, partition: PartitionKey) -> None:
        self._partition = partition

    def to_path(self) -> str:
        parts = [shortened(each, SEGMENT_BYTES_MAX) for each in self._partition.to_path().split("/")]
        if sum(map(len, parts)) > PATH_BYTES_MAX:
            parts = [shortened(each, _SHORT_BYTES) for each in parts]
        path = "/".join(parts)
        return path if len(path) <= PATH_BYTES_MAX else hashlib.sha256(path.encode()).hexdigest()


def shortened(segment: str, most: int) -> str:
    """Return the segment of a path; of a longer one than `most` bytes its beginning and a digest of the whole."""
    if len(segment) <= most:
        return segment
    digest = hashlib.sha256(segment.encode()).hexdigest()[:16]
    beginning = segment[: most - len(digest) - 1]
    cut = beginning.rfind("%", len(beginning) - 2)
    return f"{beginning if cut < 0 else beginning[:cut]}~{digest}"
