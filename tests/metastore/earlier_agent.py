"""A commit call as agents of the release before make it: some numbers carry more than one value.

It goes with metastore/postgres/commit/earlier_commit_files.sql.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.metastore.api.commit import NO_ALIAS, BatchTransaction, FileCommit, MovedKeys, StagedBatch
from headrace.metastore.postgres.commit.commit import Staged
from headrace.metastore.postgres.packing import pack_int2, pack_int4
from headrace.metastore.postgres.sql_files import Signature, function_files

STAY, MOVED, ALIAS_0, DIFFERENT = -3, -4, -16, -2
UNKNOWN_TO_IT = (
    *("parts_agree", "batch_transaction", "batch_keys", "batch_alias"),
    *("part_records", "part_extents", "part_bytes", "part_time", "prod_recent", "ring"),
)


def earlier_signature() -> Signature:
    """The one that they call."""
    (file,) = [file for file in function_files() if file.name == "earlier_commit_files"]
    return next(signature for signature in file.signatures if signature.name == "commit_files")


def earlier_parameters(files: Sequence[FileCommit]) -> dict[str, Any]:
    """Of the files, as such an agent lays them out."""
    given: dict[str, Any] = dict(Staged(files).parameters())
    for name in UNKNOWN_TO_IT:
        del given[name]
    batches = sorted((batch for file in files for batch in file.batches), key=lambda batch: batch.partition_key)
    by_part: dict[int, list[StagedBatch]] = {}
    for batch in batches:
        by_part.setdefault(batch.partition_key, []).append(batch)
    aliases = {batch.partition_key >> 24 << 24 | batch.alias for batch in batches if batch.alias != NO_ALIAS}
    nothing = [-1] * len(aliases)
    return given | {
        "batch_epoch": pack_int2(_array(_epoch(batch) for batch in batches)),
        "batch_sequence": pack_int4(_array(_sequence(batch) for batch in batches)),
        "batch_count": pack_int4(_array(_count(batch) for batch in batches)),
        "part_count": pack_int4(_array([*(_shared(map(_count, of)) for of in by_part.values()), *nothing])),
        "part_leader_epoch": pack_int4(
            _array([*(_shared(batch.leader_epoch for batch in of) for of in by_part.values()), *nothing])
        ),
    }


def _epoch(batch: StagedBatch) -> int:
    return batch.producer_epoch if batch.transaction == BatchTransaction.NO_TRANSACTION else -2 - batch.producer_epoch


def _sequence(batch: StagedBatch) -> int:
    return ~batch.base_sequence if batch.transaction == BatchTransaction.ANY_PARTITION else batch.base_sequence


def _count(batch: StagedBatch) -> int:
    if batch.alias != NO_ALIAS:
        return ALIAS_0 - batch.alias
    return {MovedKeys.STAY: STAY, MovedKeys.MOVED: MOVED}.get(MovedKeys(batch.keys), batch.partition_count)


def _shared(values: Any) -> int:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else DIFFERENT


def _array(values: Any) -> Any:
    return np.array(list(values), dtype=np.int64)
