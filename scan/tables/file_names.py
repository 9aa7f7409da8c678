"""Names of the data files that a worker writes: they say which table they were written for.

    data/[partition/]headrace-<table uuid>-00000-0-<commit uuid>.parquet

Place: set by appending.py while it writes; read by orphans.py.
Invariant: no other engine, and no worker of another table at the same location, writes such a name. So what a name says
holds without a memory: the file was written for one commit of a Headrace worker to this table.
"""

from __future__ import annotations

import uuid
from collections.abc import MutableMapping

from pyiceberg.partitioning import PartitionKey
from pyiceberg.table.locations import LocationProvider, load_location_provider

PROVIDER = "write.py-location-provider.impl"
"""pyiceberg's property with the class that names files."""
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
        return self._places.new_data_location(self.table_properties[PREFIX] + data_file_name, partition_key)
