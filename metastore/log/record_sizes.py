"""How large a record of the metadata log may be: each agent holds all of them in memory, and each snapshot.

Place: asked before records are appended (metastore/postgres/cluster/metadata_log.py); the function in Postgres that
appends them (append_metadata) checks the same, for every writer.
Invariant: a record that removes something is never too large. So a cluster that has larger records, from before there
was a limit, starts, reads them and can remove them.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log.kip631_records import ConfigRecord, QuotaRecord
from headrace.metastore.log.own_records import (
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveUserScramCredentialRecord,
)
from headrace.metastore.log.records import encode_record
from headrace.storage.errors import InvalidError

RECORD_BYTES_MAX = 128 * 1024
"""Encoded. Names have some hundred bytes; a config that lists 10,000 partitions has 80 KiB."""
_REMOVALS = (
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveUserScramCredentialRecord,
)


def is_removal(record: MetadataRecord) -> bool:
    """Return whether it only says that something is gone, by its name."""
    if isinstance(record, ConfigRecord):
        return record.value is None
    return record.remove if isinstance(record, QuotaRecord) else isinstance(record, _REMOVALS)


def refuse_large(records: Iterable[MetadataRecord]) -> None:
    """InvalidError for a record that is too large to be appended."""
    for record in records:
        size = 0 if is_removal(record) else len(encode_record(record))
        if size > RECORD_BYTES_MAX:
            raise InvalidError(
                f"metadata record is too large: record={type(record).__name__} bytes={size} max={RECORD_BYTES_MAX}"
            )
